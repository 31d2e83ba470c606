"""Draft sources that are trained heads: their settings in configs, and how each is read and built."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

from treespec.draft import BlockDraft, Medusa
from treespec.experiments.config.files import stamp
from treespec.experiments.config.model_draft import all_of, built_in, label_of_draft
from treespec.plugins import Budget, Settings, Wanted
from treespec.protocols import Drafter
from treespec.search.growth.keys import Name
from treespec.tree import Law

_READ: "WeakKeyDictionary[Any, dict[Any, Any]]" = WeakKeyDictionary()
"""Heads that were read, by target: each method and each prompt needs a drafter of its own, but one head."""


class TrainedHead(Settings):
    """A source that reads a head from files, and the target's hidden states while it drafts."""

    model: Name
    """Folder or hub id of the head."""

    @abstractmethod
    def read(self, target: Any) -> Any:
        """The head, read from its files anew."""

    def head(self, target: Any) -> Any:
        """The head for a loaded target, read once unless its files change."""
        heads, key = (
            _READ.setdefault(target.model, {}),
            (self, target.vocab_size, _stamps(self.model)),
        )
        if key not in heads:
            heads[key] = self.read(target)
        return heads[key]

    @property
    def sha256(self) -> str | None:
        """A digest of all files in the head's folder; None for a hub id."""
        digest, files = hashlib.sha256(), _files(self.model)
        for file in files:
            with file.open("rb") as content:
                digest.update(file.name.encode() + hashlib.file_digest(content, "sha256").digest())
        return digest.hexdigest() if files else None


@built_in(laws=Law)
class MedusaDraft(TrainedHead):
    """Medusa: several heads on the target's final state, each for one of the next positions."""

    source: Literal["medusa"] = "medusa"
    """Medusa's heads draft any shape or growth, at most as deep as there are heads."""

    def read(self, target: Any) -> Any:
        from treespec.draft.trained.medusa import load_medusa

        return load_medusa(self.model, target)

    def make(self, wanted: Wanted) -> Drafter:
        assert not isinstance(wanted.tree, Budget)
        head = self.head(wanted.pair.target)
        return Medusa(head, wanted.tree, wanted.law, wanted.sampling)


@built_in(laws=Law)
class BlockDraftSource(TrainedHead):
    """A block drafter (DFlash, JetSpec): one pass over the root and masks predicts all next positions."""

    source: Literal["block"] = "block"
    """A block drafter drafts any shape or growth, at most as deep as a block."""
    causal: bool | None = None
    """Whether a token of a block sees only those before it (JetSpec); null for what the head states."""

    def read(self, target: Any) -> Any:
        from treespec.draft.trained.block_files import load_block

        return load_block(self.model, target, causal=self.causal)

    def make(self, wanted: Wanted) -> Drafter:
        assert not isinstance(wanted.tree, Budget)
        head = self.head(wanted.pair.target)
        return BlockDraft(head, wanted.tree, wanted.law, wanted.sampling)


def heads_in(drafts: Iterable[Settings]) -> Iterator[TrainedHead]:
    """The trained heads among sources, and among those that they combine, each once."""
    heads = (one for draft in drafts for one in all_of(draft) if isinstance(one, TrainedHead))
    return iter(dict.fromkeys(heads))


def contracts(drafts: Iterable[Settings], target: Any) -> dict[str, str]:
    """By the name of each trained head, the conventions by which it is run."""
    return {label_of_draft(head): str(head.head(target).contract) for head in heads_in(drafts)}


def _files(model: str) -> list[Path]:
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_file())


def _stamps(model: str) -> tuple[Any, ...]:
    return tuple((file.name, stamp(str(file))) for file in _files(model))
