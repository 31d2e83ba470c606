"""Draft sources that are trained heads: their settings in configs, and how each is read and built."""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from weakref import WeakKeyDictionary

from pydantic import Field

from treespec.draft import BlockDraft, Eagle, Eagle3, Medusa, Mtp
from treespec.draft.trained.shipped import place_of_head
from treespec.experiments.config.files import stamp
from treespec.experiments.config.model_draft import all_of, built_in, label_of_draft
from treespec.plugins import Budget, Settings, Wanted
from treespec.protocols import Drafter
from treespec.search.growth.keys import Name
from treespec.tree import Law

Boundary = Annotated[int, Field(strict=True, ge=0)]

_READ: "WeakKeyDictionary[Any, dict[Any, Any]]" = WeakKeyDictionary()
"""Heads that were read, by target: each method and each prompt needs a drafter of its own, but one head."""


class TrainedHead(Settings):
    """A source that reads a head from files, and the target's hidden states while it drafts."""

    model: Name
    """Folder or hub id of the head, or the name of one that comes with treespec (`embedded-eagle3`)."""
    runs_passes: ClassVar[bool] = False
    """Whether the head is a model that runs trees, whose passes can be compiled."""

    drafter: ClassVar[Callable[..., Drafter]]
    """Drafts with the head."""

    @abstractmethod
    def read(self, target: Any) -> Any:
        """The head, read from its files anew."""

    def make(self, wanted: Wanted) -> Drafter:
        assert not isinstance(wanted.tree, Budget)
        head = self.head(wanted.pair.target)
        return type(self).drafter(head, wanted.tree, wanted.law, wanted.sampling)

    def head(self, target: Any) -> Any:
        """The head for a loaded target, read once unless its files change."""
        heads, key = (
            _READ.setdefault(target.model, {}),
            (self, target.vocab_size, _stamps(self.model)),
        )
        if key not in heads:
            heads[key] = self.read(target)
        return heads[key]

    @abstractmethod
    def write(self, head: Any, folder: Path) -> None:
        """Write a head in its authors' layout into a new folder.

        Raises:
            InvalidArgument: if the folder holds something already, or the layout cannot say what the head
                reads.
        """

    def conventions(self, target: Any) -> dict[str, dict[str, Any]]:
        """What the format leaves open for this head: by label, the keys that choose it."""
        return {}

    @property
    def sha256(self) -> str | None:
        """A digest of all files in the head's folder; None for a hub id, or without a folder of its own."""
        return _digest(self.model, _stamps(self.model))


@built_in(laws=Law)
class MedusaDraft(TrainedHead):
    """Medusa: several heads on the target's final state, each for one of the next positions."""

    source: Literal["medusa"] = "medusa"
    """Medusa's heads draft any shape or growth, at most as deep as there are heads."""
    drafter: ClassVar[Callable[..., Drafter]] = Medusa

    def read(self, target: Any) -> Any:
        from treespec.draft.trained.medusa import load_medusa

        return load_medusa(self.model, target)

    def write(self, head: Any, folder: Path) -> None:
        from treespec.draft.trained.medusa import save_medusa

        save_medusa(head, folder)


@built_in(laws=Law)
class BlockDraftSource(TrainedHead):
    """A block drafter (DFlash, JetSpec): one pass over the root and masks predicts all next positions."""

    source: Literal["block"] = "block"
    """A block drafter drafts any shape or growth, at most as deep as a block."""
    drafter: ClassVar[Callable[..., Drafter]] = BlockDraft
    causal: bool | None = None
    """Whether a token of a block sees only those before it (JetSpec); null for what the head states."""

    def read(self, target: Any) -> Any:
        from treespec.draft.trained.block_files import load_block

        return load_block(self.model, target, causal=self.causal)

    def write(self, head: Any, folder: Path) -> None:
        from treespec.draft.trained.block_files import save_block

        save_block(head, folder)

    def conventions(self, target: Any) -> dict[str, dict[str, Any]]:
        return {
            "causal within a block": {"causal": True},
            "two-way within a block": {"causal": False},
        }


@built_in(laws=Law)
class EagleDraft(TrainedHead):
    """EAGLE-1, EAGLE-2 or HASS: one layer that extrapolates the target's final state."""

    source: Literal["eagle"] = "eagle"
    """An EAGLE-1, EAGLE-2 or HASS head drafts any shape or growth."""
    drafter: ClassVar[Callable[..., Drafter]] = Eagle
    runs_passes: ClassVar[bool] = True

    def read(self, target: Any) -> Any:
        from treespec.draft.trained.eagle_files import load_eagle

        return load_eagle(self.model, target)

    def write(self, head: Any, folder: Path) -> None:
        from treespec.draft.trained.eagle_files import save_eagle

        save_eagle(head, folder)


@built_in(laws=Law)
class Eagle3Draft(TrainedHead):
    """EAGLE-3: a layer or more on states of three of the target's layers."""

    source: Literal["eagle3"] = "eagle3"
    """An EAGLE-3 head drafts any shape or growth."""
    drafter: ClassVar[Callable[..., Drafter]] = Eagle3
    runs_passes: ClassVar[bool] = True
    boundaries: Annotated[tuple[Boundary, ...], Field(min_length=1, max_length=64)] | None = None
    """The boundaries that it reads (0 is the embedding's output, L the last layer's); null for what the
    head states, or 2, L // 2 and L - 3."""
    norm_output: bool | None = None
    """Whether drafted tokens read the normed state; null for what the head states."""

    def read(self, target: Any) -> Any:
        from treespec.draft.trained.eagle3_files import load_eagle3

        return load_eagle3(
            self.model, target, boundaries=self.boundaries, norm_output=self.norm_output
        )

    def write(self, head: Any, folder: Path) -> None:
        from treespec.draft.trained.eagle3_files import save_eagle3

        save_eagle3(head, folder)

    def conventions(self, target: Any) -> dict[str, dict[str, Any]]:
        from treespec.draft.trained.eagle3_files import conventions

        return conventions(self.head(target).contract, target.layer_count)


@built_in(laws=Law)
class MtpDraft(TrainedHead):
    """The target's module for multi-token prediction: one more layer of its own kind."""

    source: Literal["mtp"] = "mtp"
    """The target's module for multi-token prediction drafts any shape or growth."""
    drafter: ClassVar[Callable[..., Drafter]] = Mtp
    runs_passes: ClassVar[bool] = True
    model: Name | None = None  # pyrefly: ignore[bad-override]
    """Folder or hub id of the checkpoint that holds the module; null for the target's."""
    state: Literal["post", "pre"] = "post"
    """Whether it reads states after the final norm or before it; no file says which."""
    state_first: bool | None = None
    """Whether it reads the state before the embedding; null for what the layout of its files does."""
    zero_first: bool = False
    """Whether the embedding of a text's first pair is zero, as vLLM has it for DeepSeek and MiMo."""

    def read(self, target: Any) -> Any:
        from treespec.draft.trained.mtp_files import load_mtp

        return load_mtp(
            self.model,
            target,
            state=self.state,
            state_first=self.state_first,
            zero_first=self.zero_first,
        )

    def write(self, head: Any, folder: Path) -> None:
        from treespec.draft.trained.mtp_files import save_mtp

        save_mtp(head, folder)

    def conventions(self, target: Any) -> dict[str, dict[str, Any]]:
        from treespec.draft.trained.mtp_files import conventions

        return conventions()


def heads_in(drafts: Iterable[Settings]) -> Iterator[TrainedHead]:
    """The trained heads among sources, and among those that they combine, each once."""
    heads = (one for draft in drafts for one in all_of(draft) if isinstance(one, TrainedHead))
    return iter(dict.fromkeys(heads))


def contracts(drafts: Iterable[Settings], target: Any) -> dict[str, str]:
    """By the name of each trained head, the conventions by which it is run."""
    return {label_of_draft(head): str(head.head(target).contract) for head in heads_in(drafts)}


@lru_cache(maxsize=64)
def _digest(model: str | None, stamps: object) -> str | None:
    digest, files = hashlib.sha256(), _files(model)
    for file in files:
        with file.open("rb") as content:
            digest.update(file.name.encode() + hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest() if files else None


def _files(model: str | None) -> list[Path]:
    folder = None if model is None else Path(place_of_head(model)).expanduser()
    if folder is None or not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_file())


def _stamps(model: str | None) -> tuple[Any, ...]:
    return tuple((file.name, stamp(str(file))) for file in _files(model))
