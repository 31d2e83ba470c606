"""One budget of nodes for all texts of a batch: it goes to the texts in which nodes are worth most."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from treespec import plugins
from treespec.batch.meeting import meet
from treespec.checks import integer
from treespec.search.errors import InvalidGrowth
from treespec.search.growth.keys import CalibrationFile, GrowthSettings, Levels, Nodes, Size
from treespec.search.growth.values import (
    CalibrationMap,
    Chosen,
    best,
    least_of_best,
    rank_bounds,
    read_values,
    worth_more,
)
from treespec.tree import TreeShape


class Bid(NamedTuple):
    """What a text brings to the decision.

    Args:
        paths: the values of its nodes so far, its root first.
        done: whether it drafts no further.
    """

    paths: Float[np.ndarray, "N"]
    done: bool


class Share(NamedTuple):
    """What a text gets.

    Args:
        kept: number of its best nodes that are kept, the root included.
        least: only nodes worth more than this can still displace a kept node.
        settled: whether no text drafts any further.
    """

    kept: int
    least: float
    settled: bool


@dataclass(frozen=True)
class BestOverAll:
    """The best nodes of all texts; ties go to the earlier text, then to the node created first.

    No node is worth more than its parent, so the best nodes of a text form a tree, and the nodes kept have
    the largest sum of values, the expected number of accepted tokens, of all trees with as many nodes.
    """

    nodes: int

    def __call__(self, bids: Sequence[Bid]) -> list[Share]:
        """The shares of texts, each of which keeps its root.

        Raises:
            InvalidGrowth: if there are more texts than nodes.
        """
        _require_roots(self.nodes, len(bids))
        spare = self.nodes - len(bids)
        drafted = np.concatenate([bid.paths[1:] for bid in bids])
        owners = np.repeat(np.arange(len(bids)), [len(bid.paths) - 1 for bid in bids])
        counts = 1 + np.bincount(owners[best(drafted, spare)], minlength=len(bids))
        least = least_of_best(drafted, spare) if spare else 1.0
        settled = all(bid.done for bid in bids)
        return [Share(count, least, settled) for count in counts.tolist()]


@dataclass(frozen=True)
class EqualParts:
    """As many nodes for each text as for every other; the first texts get what remains."""

    nodes: int

    def __call__(self, bids: Sequence[Bid]) -> list[Share]:
        """The shares of texts, each of which keeps its root.

        Raises:
            InvalidGrowth: if there are more texts than nodes.
        """
        _require_roots(self.nodes, len(bids))
        each, more = divmod(self.nodes, len(bids))
        settled = all(bid.done for bid in bids)
        parts = [each + (i < more) for i in range(len(bids))]
        return [
            Share(part, least_of_best(bid.paths[1:], part - 1) if part > 1 else 1.0, settled)
            for part, bid in zip(parts, bids, strict=True)
        ]


@dataclass(frozen=True)
class BatchBudget(Chosen):
    """A growth of most probable nodes; how many of them a text keeps, the texts decide together."""

    decides: ClassVar[type[BestOverAll | EqualParts]]
    """How many nodes each text keeps, made from the number of nodes."""

    nodes: int
    depth: int
    branching: int | None = None
    calibration: CalibrationMap | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse budgets without a draft."""
        least = {"nodes": 2, "depth": 1, "branching": 1}
        for name, smallest in least.items():
            if (value := getattr(self, name)) is not None:
                integer(name, value, least=smallest)

    @property
    def size(self) -> int:
        """Most nodes of a tree: all, for a text that is alone."""
        return self.nodes

    @cached_property
    def _bounds(self) -> Float[np.ndarray, "k"]:
        widest = self.nodes - 1 if self.branching is None else min(self.branching, self.nodes - 1)
        return rank_bounds(widest, self.calibration)

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        """Nodes of the last level whose children can still be kept."""
        if shape.depth == self.depth:
            return ()
        paths = read_values(shape, probs, self.calibration).paths
        share = meet(self.decides(self.nodes), Bid(paths, done=False))
        return worth_more(shape, paths, share.least, self._bounds)

    def keep(self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]) -> Sequence[int]:
        """The best nodes, as many as this text's share, once no text drafts any further."""
        paths = read_values(shape, probs, self.calibration).paths
        while not (share := meet(self.decides(self.nodes), Bid(paths, done=True))).settled:
            pass
        return [0, *(1 + best(paths[1:], share.kept - 1)).tolist()]


@dataclass(frozen=True)
class SharedBudget(BatchBudget):
    """The nodes of a step, given to the texts of a batch in which they are worth most.

    A node's value is the product of the (calibrated) draft probabilities along its path, an estimate of the
    probability that it is accepted. All texts are searched best first as if they were one tree: after each
    level, a text expands only nodes whose children can still be among the best `nodes` of all texts. These
    are verified, and the root of each text. So a text that its draft predicts well gets a deep tree, and
    another perhaps only its root. That a text is about to reach its last token is not known here.

    A text alone gets all nodes: then this is SpecExec (arXiv:2406.02532, Algorithm 2). As texts of a batch
    end, the others share their nodes.

    Which nodes are verified depends on the drafts' probabilities after committed tokens only, never on a
    drawn token, so each text keeps its law. In contrast to other growths, the text of a seed depends on
    the texts beside it. Drawn children are not offered: before they are drawn, nodes of equal depth and
    rank are worth the same in every text, and equal shares are best.

    Args:
        nodes: number of verified nodes of all texts together, their roots included.
        depth: maximum number of edges from a root, and of draft passes.
        branching: maximum number of children of a node; by default nodes - 1.
        calibration: ranks by acceptance instead of the draft's probability; must be non-decreasing.
    """

    decides = BestOverAll


@dataclass(frozen=True)
class EqualShares(BatchBudget):
    """The nodes of a step in equal parts for all texts of a batch: what `SharedBudget` is compared with.

    The same search as there, in each text by itself. As texts end, the parts of the others grow.

    Args:
        nodes: number of verified nodes of all texts together, their roots included.
        depth: maximum number of edges from a root, and of draft passes.
        branching: maximum number of children of a node; by default nodes - 1.
        calibration: ranks by acceptance instead of the draft's probability; must be non-decreasing.
    """

    decides = EqualParts


def _require_roots(nodes: int, texts: int) -> None:
    if texts > nodes:
        raise InvalidGrowth(
            f"a budget of {nodes} nodes cannot hold the roots of {texts} texts: give it more nodes, at "
            "least two for each text, or decode fewer texts at a time"
        )


class BatchBudgetSettings(GrowthSettings):
    """What growths with one budget for a batch are made from."""

    nodes: Size
    """Verified nodes of all texts of the batch together, their roots included."""
    depth: Levels
    branching: Nodes | None = None
    """Maximum children per node; null for as many as can make a difference."""
    calibration: CalibrationFile = None

    @property
    def size(self) -> int:
        """Most nodes of a tree."""
        return self.nodes


class SharedBudgetGrowth(BatchBudgetSettings):
    """One budget of nodes for all texts of a `batch`: best first over all of them by path probability."""

    example = "{kind: shared_budget, nodes: 64, depth: 8}"
    named = "shared {nodes}"

    kind: Literal["shared_budget"]


class EqualSharesGrowth(BatchBudgetSettings):
    """The nodes of a budget in equal parts for all texts of a `batch`, each best first."""

    example = "{kind: equal_shares, nodes: 64, depth: 8}"
    named = "equal shares of {nodes}"

    kind: Literal["equal_shares"]


plugins.growth("shared_budget", settings=SharedBudgetGrowth)(SharedBudget)
plugins.growth("equal_shares", settings=EqualSharesGrowth)(EqualShares)
