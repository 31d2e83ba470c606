"""Trees that grow, for ranking beside static ones: replayed with their own code, timed step by step."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from treespec.plugins import Budget
from treespec.protocols import Growth
from treespec.search.choice.candidates import Limits, Room
from treespec.search.choice.growth_replay import replay_growth
from treespec.search.choice.rows import Choice, Growing
from treespec.search.choice.trace_speed import Totals, TraceSpeed
from treespec.search.errors import InvalidGrowth, InvalidTrace, NotMeasured
from treespec.search.growth import CostAware, Eagle2, EqualGrowth, OptTree, SpecExec
from treespec.search.latency.step_parts import seconds_of
from treespec.search.traces.replay import Replay, replay_budget

SIZES = (8, 16, 32)
"""Nodes that growths of a fixed budget keep, as far as times were measured."""
LEAST_LEVEL_GAIN = 0.2
"""Expected tokens that a level of OPT-Tree must add."""
DECIDING = (
    "the time that trees that grow take to decide where to expand was not measured, so they look faster "
    "than they are"
)
"""Note if the times are of an older profile."""
SOURCES_TAKE_TIME = (
    "the time that the source itself takes to read and to draft is not included: `treespec run` shows it "
    "beside a pass of the target"
)
"""Note on budgets of a text source."""


def grown(side: TraceSpeed, limits: Limits, room: Room) -> tuple[list[Choice], list[str]]:
    """Growths over a small grid of their settings, the chosen one first, and notes.

    There are none if the trace has no draft rows, or the limits name `sizes`, which growths lack.
    """
    if side.trace.draft_rows is None or limits.sizes or not room.wide or room.depth < 1:
        return [], []
    replays = (
        (growing, lambda make=make: replay_growth(side.valued, make()))
        for growing, make in _grid(side, limits, room)
    )
    entries, notes = _chosen(side, replays)
    if entries and side.parts.decide is None:
        notes.append(f"{DECIDING}: profile again (`treespec profile`)")
    return entries, notes


def budgeted(side: TraceSpeed, limits: Limits, room: Room) -> tuple[list[Choice], list[str]]:
    """Budgets of a text source, the chosen one first, and notes.

    No draft model is run, so the time of a step depends on its number of nodes alone.
    """
    replays = (
        (growing, partial(replay_budget, side.valued, budget))
        for growing, budget in _budgets(side, limits, room)
    )
    entries, notes = _chosen(side, replays)
    return entries, [*notes, *([SOURCES_TAKE_TIME] if entries else [])]


def _chosen(
    side: TraceSpeed, replays: Iterable[tuple[Growing, Callable[[], Replay]]]
) -> tuple[list[Choice], list[str]]:
    """Entries of all growths that can be replayed and timed, and notes on the others."""
    growths: dict[Growing, Totals] = {}
    notes = []
    for growing, replay in replays:
        try:
            steps = replay()
            terms = steps.terms(side.parts)
        except (InvalidTrace, InvalidGrowth, NotMeasured) as error:
            notes.append(f"{side.law}: {growing.name} was skipped: {error}")
            continue
        nodes, sure = steps.nodes_per_step, float(steps.sure.mean())
        described = replace(growing, nodes=nodes, depth=steps.max_depth, sure=sure)
        number = float(steps.steps.sum())
        mean_step = [
            (curve, weights.sum(axis=0, keepdims=True) / number) for curve, weights in terms
        ]
        emitted, seconds = side.by_file(steps.emitted), side.by_file(seconds_of(terms))
        growths[described] = Totals(emitted, seconds, mean_step)
    return side.chosen(growths), notes


def _budgets(side: TraceSpeed, limits: Limits, room: Room) -> Iterator[tuple[Growing, Budget]]:
    """A small grid of chains and trees within the recorded and measured limits."""
    drafts = side.trace.text_drafts
    assert drafts is not None
    recorded = drafts.budget
    most = recorded.depth if limits.depth is None else limits.depth
    deepest = min(recorded.depth, side.deepest, most)
    widest = min(recorded.branching, limits.branching or recorded.branching)
    largest = min(recorded.size, room.size)
    sizes = limits.sizes or sorted({*(size for size in SIZES if size <= largest), largest})
    for depth in range(1, min(deepest, largest - 1) + 1):
        if limits.sizes is None or depth + 1 in limits.sizes:
            yield _budget(depth + 1, depth, 1)
    for size in sizes:
        if not 3 <= size <= largest or not deepest:
            continue
        for depth in sorted({max(1, deepest // 2), deepest}):
            for branching in sorted({min(2, widest), widest} - {1}):
                yield _budget(size, depth, branching)


def _budget(size: int, depth: int, branching: int) -> tuple[Growing, Budget]:
    config = {"kind": "budget", "depth": depth, "size": size, "branching": branching}
    name = f"budget {branching}x{depth}, {size}"
    return Growing(name, config, 0.0, depth, 1.0), Budget(size, depth, branching)


def _grid(
    side: TraceSpeed, limits: Limits, room: Room
) -> Iterator[tuple[Growing, Callable[[], Growth]]]:
    """Growths over a grid of settings within draft rows and times, each with a factory.

    Static trees end at levels too rarely reached for rates; growths are limited by the draft rows only.
    """
    rows, times = side.trace.draft_rows, side.times
    assert rows is not None
    deepest = min(rows.depth, side.deepest, room.size - 1, limits.depth or rows.depth)
    widest = min(rows.width, side.parts.widest or rows.width, limits.branching or rows.width)
    sizes = [size for size in SIZES if size <= room.size] or [room.size]
    depths = sorted({max(1, deepest // 2), deepest})
    growths: list[tuple[str, str, Callable[..., Growth], Mapping[str, int | float]]] = []
    for size in sizes:
        for depth in depths:
            for k in sorted({min(4, widest), widest}):
                settings = {"k": k, "depth": depth, "size": size}
                growths.append((f"EAGLE-2 {k}x{depth}, {size}", "eagle2", Eagle2, settings))
        settings = {"size": size, "branching": widest, "depth": deepest}
        growths.append((f"SpecExec {size}", "specexec", SpecExec, settings))
        with_gain = settings | {"delta": LEAST_LEVEL_GAIN}
        growths.append((f"OPT-Tree {size}", "opt_tree", OptTree, with_gain))
    for width in sorted({min(2, widest), min(4, widest)}):
        size = min(1 + width * deepest, room.size)
        settings = {"width": width, "depth": deepest, "size": size}
        name = f"equal growth {width}x{deepest}, {size}"
        growths.append((name, "equal_growth", EqualGrowth, settings))
    for name, kind, policy, settings in growths:
        config = {"kind": kind, **settings}
        yield Growing(name, config, 0.0, deepest, 1.0), partial(policy, **settings)
    size = sizes[-1]
    config = {"kind": "cost_aware", "size": size, "depth": deepest, "branching": widest}
    latency = times.latency.for_batch(times.batch)
    make = partial(CostAware, latency, size, deepest, widest, prefix=times.prefix)
    yield Growing(f"cost-aware {size}", config, 0.0, deepest, 1.0), make
