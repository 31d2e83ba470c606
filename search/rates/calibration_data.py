"""Calibration data of a trace: the draft's probabilities beside acceptance."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from treespec.search.arguments import of_class, takes
from treespec.search.errors import InvalidTrace
from treespec.search.rates.trace import Trace
from treespec.tree import Law


@dataclass(frozen=True, eq=False)
class CalibrationData:
    """Drafted children of accepted nodes, one per row.

    Args:
        predicted: the draft's probability of the child given its parent.
        accepted: whether the child was accepted.
        exact: the probability that it is accepted, given its siblings.
        rank: its rank among its siblings.
        text: index of its text, or of the file if texts are excerpts.
    """

    predicted: Float[np.ndarray, "n"]
    accepted: Bool[np.ndarray, "n"]
    exact: Float[np.ndarray, "n"]
    rank: Int[np.ndarray, "n"]
    text: Int[np.ndarray, "n"]


@takes(InvalidTrace, trace=of_class("a search.Trace", "Trace"))
def calibration_data(trace: Trace) -> CalibrationData:
    """Every drafted child of the kept positions of a trace, and whether it was accepted.

    Args:
        trace: a trace of deterministic children, decoded or of given texts.

    Raises:
        InvalidTrace: if children were drawn at random, since these are accepted with about min(1, p / q)
            and not with q; or if the trace is of a text source.
    """
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
    at, width = np.flatnonzero(trace.inside), trace.width
    return CalibrationData(
        predicted=trace.probs[at].ravel(),
        accepted=(trace.ranks[at, None] == np.arange(width)).ravel(),
        exact=trace.accepted[at].ravel(),
        rank=np.tile(np.arange(width), len(at)),
        text=np.repeat(trace.file_of[trace.text_of[at]], width),
    )
