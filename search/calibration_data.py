"""What a trace says about calibration: the draft's probabilities beside acceptance, by depth and rank."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from search.errors import InvalidLimit, InvalidTrace
from search.trace import Trace

__all__ = ["CalibrationData", "calibration_data"]


@dataclass(frozen=True, eq=False)
class CalibrationData:
    """Drafted children of accepted nodes, one a row.

    Args:
        predicted: the draft's probability of the child given its parent.
        accepted: whether it was the accepted one.
        exact: the probability of that, given the children drafted beside it.
        rank: its place among its siblings.
        depth: edges between the root and its parent.
        path: the draft's probability of the whole path from the root to the child.
        text: the text that it is from.
    """

    predicted: Float[np.ndarray, "n"]
    accepted: Bool[np.ndarray, "n"]
    exact: Float[np.ndarray, "n"]
    rank: Int[np.ndarray, "n"]
    depth: Int[np.ndarray, "n"]
    path: Float[np.ndarray, "n"]
    text: Int[np.ndarray, "n"]


def calibration_data(trace: Trace, *, depth: int = 1) -> CalibrationData:
    """Every drafted child of a trace, with what the draft thought of it and whether it was accepted.

    Depth 0 holds every kept position once. Position s + d is a parent at depth d for each start s from
    which every position before it accepted one of its children, so with `depth` above 1 a position serves
    several depths: compare depths by `by=`, and fit maps on depth 0, or mind the overlap. The root's path
    has probability 1. Children of rejected nodes were never judged: how a path goes on is known only where
    its parent was accepted, so a curve over `path` is one given that.

    Args:
        trace: decoded, or of given texts (then only depth 0 is what would happen while decoding).
        depth: levels of parents.

    Raises:
        InvalidLimit: if depth is no positive integer.
        InvalidTrace: if no position reaches that depth, or depth is above 1 for given texts.
    """
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise InvalidLimit(f"depth = {depth!r}, but must be an integer of at least 1")
    if trace.forced and depth > 1:
        raise InvalidTrace(
            f"depth = {depth}, but the trace is of given texts, in which what was accepted did not go on: "
            "take depth = 1"
        )
    at = np.flatnonzero(trace.inside)
    above = np.ones(len(at))
    rows = []
    for level in range(depth):
        if not len(at):
            raise InvalidTrace(f"depth = {depth}, but no text of the trace reaches depth {level}")
        rows.append((at, above, np.full(len(at), level)))
        ranks = trace.ranks[at]
        taken = ranks < trace.width
        above = above[taken] * trace.probs[at[taken], ranks[taken]]
        at = at[taken] + 1
        fine = at < len(trace.tokens)
        fine[fine] = trace.inside[at[fine]] & (
            trace.text_of[at[fine]] == trace.text_of[at[fine] - 1]
        )
        at, above = at[fine], above[fine]
    at, above, depths = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    width = trace.width
    return CalibrationData(
        predicted=trace.probs[at].ravel(),
        accepted=(trace.ranks[at, None] == np.arange(width)).ravel(),
        exact=trace.accepted[at].ravel(),
        rank=np.tile(np.arange(width), len(at)),
        depth=np.repeat(depths, width),
        path=(above[:, None] * trace.probs[at]).ravel(),
        text=np.repeat(trace.text_of[at], width),
    )
