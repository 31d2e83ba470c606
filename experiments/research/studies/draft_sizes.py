"""How large drafts are: numbers that were trained, and bytes that a level of their trees reads."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from treespec.draft.trained.marginal_drafter import MarginalHead
from treespec.experiments.config.model_draft import draft_model
from treespec.experiments.config.schema import TreeMethod
from treespec.experiments.config.trained import TrainedHead
from treespec.models.load import Pair

EMBEDDING, HEAD = ("embed_tokens", "embedding"), ("lm_head", "head.", "heads.")
"""How the names of embeddings and heads begin, after the body's own."""


@dataclass(frozen=True)
class DraftSize:
    """What a draft costs.

    Args:
        trained: its own numbers, without embedding and vocabulary rows.
        level_bytes: bytes of weights that a drafted level reads, vocabulary rows included.
        once: whether these are read once for all levels.
    """

    trained: int
    level_bytes: int
    once: bool


def sizes_of(methods: Mapping[str, TreeMethod], pair: Pair) -> dict[str, DraftSize]:
    """The sizes of trained heads and draft models by the names of their sources.

    `pair`: the target, with the draft models.
    """
    found = {}
    for source, method in methods.items():
        draft: Any = method.draft
        if isinstance(draft, TrainedHead):
            head = draft.head(pair.target)
            found[source] = size_of(
                getattr(head, "net", head), pair, once=isinstance(head, MarginalHead)
            )
        else:
            model: Any = draft_model(pair, draft.model)
            found[source] = size_of(model.model, pair, once=False)
    return found


def size_of(net: nn.Module, pair: Pair, *, once: bool) -> DraftSize:
    """The size of a network: what it shares with the target was not trained, and is read all the same."""
    model: Any = pair.target.model
    shared = {parameter.data_ptr() for parameter in model.parameters()}
    rows = pair.target.vocab_size  # of the matrices that Medusa's heads may have
    own = [p for name, p in net.named_parameters() if not _of_vocabulary(name) and len(p) != rows]
    return DraftSize(
        trained=sum(p.numel() for p in own if p.data_ptr() not in shared),
        level_bytes=sum(p.nbytes for p in _read(net)),
        once=once,
    )


def _of_vocabulary(name: str) -> bool:
    return name.removeprefix("model.").startswith((*EMBEDDING, "lm_head", "head."))


def _read(net: nn.Module) -> Iterator[nn.Parameter]:
    """What a level reads: of an embedding a row, unless it is the head; features are fused before."""
    named = {name.removeprefix("model."): p for name, p in net.named_parameters()}
    skipped = ("fuse.", *EMBEDDING)
    if not any(name.startswith(HEAD) for name in named):  # the two are tied
        skipped = ("fuse.",)
    yield from (p for name, p in named.items() if not name.startswith(skipped))
