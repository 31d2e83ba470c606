"""Calibration data of a trace: the draft's probabilities beside acceptance, by depth and rank."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from treespec.door import integer
from treespec.search.arguments import of_class, takes
from treespec.search.errors import InvalidLimit, InvalidTrace
from treespec.search.rates.trace import Trace
from treespec.tree import Law
from treespec.verify import RULES

LEAST_PATH = 1e-12
"""Lower limit of a path's probability when its weight is computed."""


@dataclass(frozen=True, eq=False)
class CalibrationData:
    """Drafted children of accepted nodes, one per row.

    `predicted` against `accepted` or `exact` shows the calibration of a child given that its parent is
    accepted, with unweighted rows. `path` against `path_exact` shows that of whole paths, and needs
    `weight`: children of a node are recorded only where that node was accepted, so each such row stands for
    1 / P(accepted) rows. Weighted, the rows of a depth represent all nodes there whose parents can be
    accepted: `reliability(data.path, data.path_exact, weights=data.weight, by=data.depth)`.

    Args:
        predicted: the draft's probability of the child given its parent.
        accepted: whether the child was accepted.
        exact: the probability that it is accepted, given its siblings.
        rank: its rank among its siblings.
        depth: edges between the root and its parent.
        path: the draft's probability of the whole path from the root to the child.
        text: index of its text, or of the file if texts are excerpts.
        path_exact: the probability that the whole path is accepted, the product of `exact` along it. NaN
            below depth 0 at temperature 0, where a child is accepted with probability 0 or 1, and the
            draft's probabilities below the others are unknown.
        weight: 1 over the probability that the parent's path is accepted.
    """

    predicted: Float[np.ndarray, "n"]
    accepted: Bool[np.ndarray, "n"]
    exact: Float[np.ndarray, "n"]
    rank: Int[np.ndarray, "n"]
    depth: Int[np.ndarray, "n"]
    path: Float[np.ndarray, "n"]
    text: Int[np.ndarray, "n"]
    path_exact: Float[np.ndarray, "n"]
    weight: Float[np.ndarray, "n"]


@takes(InvalidTrace, trace=of_class("a search.Trace", "Trace"))
def calibration_data(trace: Trace, *, depth: int = 1) -> CalibrationData:
    """Every drafted child of a trace, with the draft's probability and whether it was accepted.

    Depth 0 holds every kept position once. Position s + d is a parent at depth d for each start s from
    which every position before it accepted one of its children, so with `depth` above 1 a position serves
    several depths: compare depths by `by=`, and fit maps on depth 0, or allow for the overlap. The root's
    path has probability 1.

    Args:
        trace: a trace of deterministic children, decoded or of given texts (for which only depth 0 is what
            would happen while decoding).
        depth: number of levels of parents.

    Raises:
        InvalidLimit: if depth is not a positive integer.
        InvalidTrace: if children were drawn at random, since these are accepted with about min(1, p / q)
            and not with q; if the trace is of a text source; if no position reaches that depth; or if
            depth is above 1 for given texts.
    """
    depth = integer("depth", depth, 1, InvalidLimit)
    if Law.of(trace.law) is not Law.DETERMINISTIC:
        raise InvalidTrace(
            f"the trace is of law '{trace.law}': a drawn child is accepted with the ratio of the target's "
            "to the draft's probability, which says nothing about calibration; record one of deterministic "
            "children instead (`treespec trace --law deterministic`)"
        )
    if trace.text_drafts is not None:
        raise InvalidTrace(
            "the trace is of a text source, which counts what it has read and has no model's "
            "probabilities: there is nothing to calibrate"
        )
    if trace.forced and depth > 1:
        raise InvalidTrace(
            f"depth = {depth}, but the trace is of given texts, which do not continue with the accepted "
            "tokens: use depth = 1"
        )
    at = np.flatnonzero(trace.inside)
    drafted, reached = np.ones(len(at)), np.ones(len(at))  # probabilities of the parents' paths
    rows = []
    for level in range(depth):
        if not len(at):
            raise InvalidTrace(f"depth = {depth}, but no text of the trace reaches depth {level}")
        rows.append((at, drafted, reached, np.full(len(at), level)))
        taken = trace.ranks[at] < trace.width
        cells = at[taken], trace.ranks[at[taken]]
        drafted = drafted[taken] * trace.probs[cells]
        reached = reached[taken] * trace.accepted[cells]
        at = at[taken] + 1
        inside = at < len(trace.tokens)
        inside[inside] = trace.inside[at[inside]] & (
            trace.text_of[at[inside]] == trace.text_of[at[inside] - 1]
        )
        at, drafted, reached = at[inside], drafted[inside], reached[inside]
    at, drafted, reached, depths = (np.concatenate(levels) for levels in zip(*rows, strict=True))
    path_exact = reached[:, None] * trace.accepted[at]
    one_hot = trace.rule in RULES and RULES[trace.rule].one_hot
    if one_hot or trace.greedy:
        path_exact[depths > 0] = np.nan
    width = trace.width
    return CalibrationData(
        predicted=trace.probs[at].ravel(),
        accepted=(trace.ranks[at, None] == np.arange(width)).ravel(),
        exact=trace.accepted[at].ravel(),
        rank=np.tile(np.arange(width), len(at)),
        depth=np.repeat(depths, width),
        path=(drafted[:, None] * trace.probs[at]).ravel(),
        text=np.repeat(trace.file_of[trace.text_of[at]], width),
        path_exact=path_exact.ravel(),
        weight=np.repeat(1 / np.maximum(reached, LEAST_PATH), width),
    )
