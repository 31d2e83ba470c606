"""Passes that wait for those of other texts, so that one pass runs the nodes of many.

`decode_many` (`treespec.batch`) runs each text on a stack of its own. There, the pass of a model is handed
to the driver of the batch: the text stops where it is, and goes on with its scores once the pass that holds
its nodes has run. So no drafter, rule or growth knows of other texts. Outside of a batch, a pass runs at
once.
"""

from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from treespec.step import Scores


class Nodes(NamedTuple):
    """Nodes of a tree that a pass runs; see `treespec.protocols.TreeModel.run`.

    `states`: for a model that reads a state beside each token (a trained head), these states.
    """

    tokens: Int[Tensor, "T"]
    parents: tuple[int, ...]
    first: int = 0
    states: Float[Tensor, "T W"] | None = None


@runtime_checkable
class Joinable(Protocol):
    """A model whose passes can be run together with those of other texts."""

    @property
    def joins(self) -> Hashable:
        """Models with equal values have the same weights and can share a pass; None: each runs alone."""

    def run_together(self, parts: Sequence[tuple[Any, Nodes]], /) -> list[Scores]:
        """One pass over the nodes of several models of equal `joins`, this one among them.

        Each model has a cache of its own: no node attends to rows of another model.
        """


Wait = Callable[[Joinable, Nodes], Scores]

WAIT: ContextVar[Wait | None] = ContextVar("WAIT", default=None)
"""Hands a pass to the driver of the batch in which this text is decoded; None outside of a batch."""


def run_or_wait(model: Joinable, nodes: Nodes) -> Scores:
    """Run nodes: in a batch with those of other texts, else at once."""
    wait = WAIT.get()
    if wait is None or model.joins is None:
        return model.run_together([(model, nodes)])[0]
    return wait(model, nodes)
