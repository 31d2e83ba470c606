"""How fast a machine was at a later time, against the times that a latency model holds."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from treespec.search.latency.errors import NotMeasured
from treespec.search.latency.interpolation import Table
from treespec.search.latency.latency import LatencyModel
from treespec.search.latency.step_parts import PARTS
from treespec.search.latency.tables import BatchTimes
from treespec.shape import TreeShape

__all__ = ["PLAIN", "pace", "step_at_pace_s"]

PLAIN = "plain"
"""The stage that a whole step of plain decoding is, beside `PARTS`."""


def pace(before: LatencyModel, later: Sequence[LatencyModel]) -> dict[str, float]:
    """What the parts of a step took later, over what the model says of the same parts, by stage.

    Machines drift: neighbours take bandwidth, processors warm up. The same parts timed again say by how
    much. The sum of all later times of a stage over the sum of the model's at the same sizes and prefixes.
    Sums, because throughput is one over a mean; the model's times are medians, so that hiccups which these
    leave out, and a run does not, are in the pace too. So is an error of the model that all sizes share.
    What drawing further children takes is left out, a small difference of two times whose noise is cut off
    at 0; it takes the pace of the rest of drafting.

    Args:
        before: the model.
        later: times of batch 1. Sizes, prefixes and laws that the model does not cover do not count.

    Returns:
        Ratios by stage (`draft`, `verify`, `accept`, `commit`, `rest`, and `plain` for a whole step of
        plain decoding); above 1 where the machine was slower. 1 for a stage that was not timed again.

    Raises:
        ValueError: if nothing was timed again.

    Example:
        >>> usual = LatencyModel.from_tables(verify={1: 0.020, 16: 0.024}, draft=0.002)
        >>> slow = LatencyModel.from_tables(verify={1: 0.030, 16: 0.036}, draft=0.002)
        >>> {stage: round(ratio, 3) for stage, ratio in pace(usual, [slow]).items()}
        {'draft': 1.0, 'verify': 1.5, 'accept': 1.0, 'commit': 1.0, 'rest': 1.0, 'plain': 1.0}
    """
    if not later:
        raise ValueError("no later times: a pace takes at least one round of them")
    took: dict[str, float] = defaultdict(float)
    usual: dict[str, float] = defaultdict(float)
    known = _tables(before)
    for model in later:
        for (stage, key), table in _tables(model).items():
            if (stage, key) not in known:
                continue
            for prefix, curve in table.curves.items():
                for size, seconds in curve.samples.items():
                    try:
                        expected = known[stage, key].at(1 if size is None else size, prefix)
                    except NotMeasured:
                        continue
                    took[stage] += sum(seconds)
                    usual[stage] += len(seconds) * expected
    return {stage: took[stage] / usual[stage] if usual[stage] else 1.0 for stage in (*PARTS, PLAIN)}


def step_at_pace_s(
    model: LatencyModel,
    shape: TreeShape,
    paces: Mapping[str, float],
    prefix: int | None = None,
    *,
    law: str | None = None,
) -> float:
    """Seconds of a step when the stages take so much longer or shorter than the model says.

    Args:
        model: the times.
        shape: the tree of every step; of the root alone, a step of plain decoding.
        paces: see `pace`.
        prefix: see `LatencyModel.step_s`.
        law: see `LatencyModel.step_s`.

    Raises:
        NotMeasured: see `LatencyModel.step_s`.
    """
    if shape.size == 1:
        return model.plain_s(prefix, law=law) * paces[PLAIN]
    parts = model.parts_s(shape, prefix, law=law)
    return sum(seconds * paces[stage] for stage, seconds in parts.items())


def _tables(model: LatencyModel) -> dict[tuple[str, str], Table]:
    """The tables of batch 1 by stage, and by name and law."""
    times = model.times()
    tables = {(stage, stage): table for stage, table in _shared(times)}
    for law in model.laws:
        law_times = model.law_times(law)
        draft = {"level": law_times.level, "first": law_times.first, "assemble": law_times.assemble}
        tables |= {("draft", f"{n} {law}"): t for n, t in draft.items() if t is not None}
        tables["accept", law] = law_times.accept
        if law_times.plain is not None:
            tables[PLAIN, law] = law_times.plain
    return tables


def _shared(times: BatchTimes) -> Iterator[tuple[str, Table]]:
    yield from (("verify", times.verify), ("commit", times.commit), ("rest", times.rest))
