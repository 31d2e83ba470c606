"""Advice from one half of a trace's texts, held against the other half, again and again."""

import warnings
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from rich.progress import track

from treespec.search import LatencyModel, Ranking, Trace, best_tree, estimate_acceptance
from treespec.search.choice.law_speed import chains_as_run
from treespec.search.choice.ranking import Choice
from treespec.search.errors import SearchError
from treespec.search.intervals import bootstrap_bounds, draws
from treespec.search.rates.replay import by_file, replay
from treespec.search.rates.totals import TextTotals
from treespec.shape import TreeShape

__all__ = [
    "OTHERS",
    "by_rates",
    "first_drafted",
    "halves",
    "known_shapes",
    "law_of",
    "many_splits",
    "off_own_replay",
    "quotient",
    "speed_on",
    "unseen",
]

OTHERS = {
    **{f"chain {deep}": TreeShape.chain(deep) for deep in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 31)},
    "2-ary 2": TreeShape.kary(2, 2), "2-ary 3": TreeShape.kary(2, 3), "3-ary 2": TreeShape.kary(3, 2),
    "2x1x1": TreeShape.expansion([2, 1, 1]), "3x2x1x1": TreeShape.expansion([3, 2, 1, 1]),
    "4 wide": TreeShape.expansion([4]), "2 chains x 4": TreeShape.independent_chains(2, 4),
    "3 chains x 3": TreeShape.independent_chains(3, 3),
}  # fmt: skip
"""Shapes that are predicted besides the advised one."""


def law_of(shape: TreeShape, trace: Trace, latency: LatencyModel) -> str:
    """How `treespec search` has the children of this shape drawn, and by whose times it ranks it."""
    chains = chains_as_run(trace, latency, 1) if shape.is_chain and shape.size > 1 else None
    return trace.law if chains is None else next(iter(chains))


def by_rates(trace: Trace, latency: LatencyModel, **limits: Any) -> Ranking:
    """The ranking by rates alone: of trees by depth, of chains by first children, drawn as in a run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rates = estimate_acceptance(trace, by="depth")
        first = estimate_acceptance(trace, by="depth", ranks=1)
    chains = {law_of(TreeShape.chain(1), trace, latency): first}
    return best_tree(rates, latency, chains=chains, draws=40, **limits)


def first_drafted(ranking: Ranking) -> Choice:
    """The first row of a given shape that drafts anything."""
    return next(row for row in ranking.rows if row.kind in ("tree", "chain"))


def known_shapes(trace: Trace, latency: LatencyModel) -> dict[str, TreeShape]:
    """Those of `OTHERS` that the trace is wide and long enough for, and whose times were measured."""
    known = {}
    for name, tree in OTHERS.items():
        try:
            replay(trace, tree)
            latency.step_s(tree, law=law_of(tree, trace, latency))
        except SearchError:
            continue
        known[name] = tree
    return known


def halves(trace: Trace, rng: np.random.Generator) -> list[Int[np.ndarray, "half"]]:
    """The places of half of the texts, and of the others. Excerpts of a file are in the same half."""
    order = rng.permutation(trace.samples)
    middle = trace.samples // 2
    return [
        np.flatnonzero(np.isin(trace.file_of, half)) for half in (order[:middle], order[middle:])
    ]


def unseen(trace: Trace, latency: LatencyModel, splits: int, many: int) -> dict[str, Any]:
    """Predictions from one half of the texts over the other half, and the choice itself there.

    The advised shape is searched in each half, and each split is taken both ways. Halves of few texts
    differ by chance, and what is above the mean of all texts in one is below it in the other; in the mean
    of both ways that cancels, and what is left is the error of predicting. `one way` of each split has
    both. All are quotients of means: a mean of quotients would lie above 1 by half their variance.

    All splits are of the same texts, so that the choice has a standard error over texts that more splits
    do not make smaller: the `pooled` logarithm of its speed over that of the choice by rates.

    Args:
        trace: of decoding.
        latency: with times of its law.
        splits: in halves, each of which is searched.
        many: splits in which the other shapes are replayed (`many_splits`).
    """
    rng = np.random.default_rng(0)
    shapes = known_shapes(trace, latency)
    others = [(tree, law_of(tree, trace, latency)) for tree in shapes.values()]
    said, there = [], []
    over_best, over_rates = [], []
    spent = np.zeros((2, 2, trace.texts))
    for _ in track(range(splits), description=f"{trace.about.get('name', 'trace')}"):
        places = halves(trace, rng)
        parts = [trace.part(half) for half in places]
        rankings = [best_tree(part, latency) for part in parts]
        olds = [by_rates(part, latency) for part in parts]
        for way, (ranking, old) in enumerate(zip(rankings, olds, strict=True)):
            other, first = parts[1 - way], first_drafted(ranking)
            said.append(first.tokens_per_step)
            there.append(replay(other, first.shape).interval(ranking.level))
            wide_set = {*others, *((row.shape, row.law) for row in rankings[1 - way].rows)}
            best = max(speed_on(other, *one, latency) for one in wide_set)
            totals = [
                _totals(other, one.best.shape, one.best.law, latency) for one in (ranking, old)
            ]
            mine, theirs = (tokens.sum() / seconds.sum() for tokens, seconds in totals)
            over_best.append(float(mine / best))
            over_rates.append(float(mine / theirs))
            spent[..., places[1 - way]] += np.array(totals)
    intervals = np.array([said, there]).transpose(0, 2, 1)
    predicted, replayed = intervals[:, 0].reshape(2, splits, 2)
    return {
        "texts": trace.texts,
        "splits": splits,
        "advised": {
            "both ways": quotient(predicted.sum(axis=1), replayed.sum(axis=1)),
            "one way": quotient(predicted[:, 0], replayed[:, 0]),
            **{name: float(held.mean()) for name, held in _held(*intervals).items()},
        },
        "others": many_splits(trace, shapes, many),
        "own replay": off_own_replay(trace, best_tree(trace, latency), others),
        "choice": {
            "of best there": median(over_best),
            "over rates": median(over_rates),
            "pooled": _pooled(spent, trace.file_of),
        },
    }


def many_splits(trace: Trace, shapes: Mapping[str, TreeShape], splits: int) -> dict[str, Any]:
    """Replays of shapes on one half of the texts over those on the other, in one way of many splits.

    A shape that was not chosen is predicted by its own replay, so that no search is needed.

    Args:
        trace: of decoding.
        shapes: by name.
        splits: in halves of its files.

    Returns:
        Quotients of means by shape, each with its standard error over the splits; which is the farthest
        from 1; how often halves agree (`_held`), of all shapes and of the one that does so the least.
    """
    emitted, steps = (
        np.array([by_file(row, trace.file_of) for row in part])
        for part in TextTotals(trace).of(list(shapes.values()))
    )
    rng, middle = np.random.default_rng(1), trace.samples // 2
    speeds = np.zeros((2, 3, splits, len(shapes)))
    for split in range(splits):
        order = rng.permutation(trace.samples)
        for side, half in enumerate(map(np.sort, (order[:middle], order[middle:]))):
            over, under = emitted[:, half], steps[:, half]
            weights = draws(len(half)).T
            drawn = (over @ weights) / (under @ weights)
            estimate = over.sum(axis=1) / under.sum(axis=1)
            speeds[side, :, split] = estimate, *bootstrap_bounds(drawn.T, len(half))
    predicted, replayed = speeds[:, 0]
    quotients = {name: quotient(predicted[:, i], replayed[:, i]) for i, name in enumerate(shapes)}
    held = {name: each.mean(axis=0) for name, each in _held(*speeds).items()}
    least = int(held["agreed"].argmin())
    return {
        "splits": splits,
        "quotients": quotients,
        "worst": max(quotients, key=lambda name: abs(quotients[name]["quotient"] - 1)),
        **{name: float(shares.mean()) for name, shares in held.items()},
        "least agreed": [float(held["agreed"][least]), list(shapes)[least]],
    }


def off_own_replay(
    trace: Trace, ranking: Ranking, others: Sequence[tuple[TreeShape, str]]
) -> dict[str, float]:
    """By how much predictions from all texts are off replays on all texts, at most.

    Args:
        trace: that was searched.
        ranking: of it.
        others: further shapes, and how their children are drawn.

    Returns:
        Of the shapes that were `chosen`, the first of their kind, which are cross-fitted; and of all
        `others`, which are not.
    """
    chosen = {(row.shape, row.law) for row in (ranking.tree, ranking.chain) if row is not None}

    def off(shapes: set[tuple[TreeShape, str]]) -> float:
        quotients = [
            ranking.speed(shape, law).tokens / replay(trace, shape).tokens_per_step
            for shape, law in shapes
        ]
        return max((abs(one - 1) for one in quotients), default=0.0)

    return {"chosen": off(chosen), "others": off({*others} - chosen)}


def quotient(
    over: Float[np.ndarray, "splits"], under: Float[np.ndarray, "splits"]
) -> dict[str, float]:
    """A quotient of means, and its standard error over the splits (delta method)."""
    value = over.mean() / under.mean()
    error = (over - value * under).std(ddof=1) / (len(over) ** 0.5 * under.mean())
    return {"quotient": float(value), "error": float(error)}


def speed_on(trace: Trace, shape: TreeShape, law: str, latency: LatencyModel) -> float:
    """Tokens per second by replay, with the times of this law."""
    tokens, seconds = _totals(trace, shape, law, latency)
    return float(tokens.sum() / seconds.sum())


def _totals(
    trace: Trace, shape: TreeShape, law: str, latency: LatencyModel
) -> Float[np.ndarray, "what texts"]:
    """Emitted tokens of each text, and seconds."""
    if shape.size == 1:
        kept = trace.text_kept.astype(float)
        return np.array([kept, kept * latency.plain_s(law=law)])
    replayed = replay(trace, shape)
    return np.array([replayed.emitted, replayed.steps * latency.step_s(shape, law=law)])


def _held(
    said: Float[np.ndarray, "three ..."], there: Float[np.ndarray, "three ..."]
) -> dict[str, Bool[np.ndarray, "..."]]:
    """Which predictions hold on the other half.

    Args:
        said: estimate, lower and upper bound of each prediction.
        there: the same of the replay on the other half, which has an error of its own.

    Returns:
        Those that have `agreed`: estimates differ by at most the root of the sum of squares of both
        half-widths. And those whose interval alone has the other estimate `inside`.
    """
    wide = np.hypot(said[2] - said[1], there[2] - there[1]) / 2
    return {
        "agreed": abs(said[0] - there[0]) <= wide,
        "inside": (said[1] <= there[0]) & (there[0] <= said[2]),
    }


def _pooled(
    spent: Float[np.ndarray, "both what texts"], file_of: Int[np.ndarray, "texts"]
) -> dict[str, float]:
    """The logarithm of one choice's speed over another's, and its standard error over texts (jackknife)."""
    each = np.array([[by_file(row, file_of) for row in one] for one in spent])
    each = each[:, :, each[0, 0] > 0]

    def logs(totals: Float[np.ndarray, "both what ..."]) -> Float[np.ndarray, "..."]:
        speeds = np.log(totals[:, 0] / totals[:, 1])
        return speeds[0] - speeds[1]

    left_out, number = logs(each.sum(axis=2, keepdims=True) - each), each.shape[2]
    error = np.sqrt((number - 1) / number * ((left_out - left_out.mean()) ** 2).sum())
    return {"log": float(logs(each.sum(axis=2))), "error": float(error)}
