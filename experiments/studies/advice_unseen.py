"""Test advice from one half of a trace's texts on the other half, over many splits."""

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
"""Shapes that are predicted in addition to the advised one."""


def law_of(shape: TreeShape, trace: Trace, latency: LatencyModel) -> str:
    """The law by which `treespec search` draws the children of this shape and ranks its times."""
    chains = chains_as_run(trace, latency, 1) if shape.is_chain and shape.size > 1 else None
    return trace.law if chains is None else next(iter(chains))


def by_rates(trace: Trace, latency: LatencyModel, **limits: Any) -> Ranking:
    """Rank by rates alone: trees by depth, chains by first children, drawn as in a run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rates = estimate_acceptance(trace, by="depth")
        first = estimate_acceptance(trace, by="depth", ranks=1)
    chains = {law_of(TreeShape.chain(1), trace, latency): first}
    return best_tree(rates, latency, chains=chains, draws=40, **limits)


def first_drafted(ranking: Ranking) -> Choice:
    """The first row of the ranking whose shape is a tree or a chain."""
    return next(row for row in ranking.rows if row.kind in ("tree", "chain"))


def known_shapes(trace: Trace, latency: LatencyModel) -> dict[str, TreeShape]:
    """The shapes of `OTHERS` that fit the trace's width and length and whose times were measured."""
    usable = {}
    for name, tree in OTHERS.items():
        try:
            replay(trace, tree)
            latency.step_s(tree, law=law_of(tree, trace, latency))
        except SearchError:
            continue
        usable[name] = tree
    return usable


def halves(trace: Trace, rng: np.random.Generator) -> list[Int[np.ndarray, "half"]]:
    """Split the texts at random; return the indices of both halves. Excerpts of a file stay together."""
    order = rng.permutation(trace.samples)
    middle = trace.samples // 2
    return [
        np.flatnonzero(np.isin(trace.file_of, half)) for half in (order[:middle], order[middle:])
    ]


def unseen(trace: Trace, latency: LatencyModel, splits: int, many: int) -> dict[str, Any]:
    """Compare predictions from one half of the texts with the other half, and evaluate the choice there.

    The advised shape is searched in each half, and each split is used both ways. Halves of few texts differ
    by chance: what lies above the mean of all texts in one half lies below it in the other. The mean of
    both ways cancels this difference and leaves the prediction error; `one way` of each split contains
    both. All figures are quotients of means, since a mean of quotients would lie above 1 by half their
    variance.

    All splits share the same texts, so the choice has a standard error over texts that more splits do not
    reduce. It belongs to the `pooled` logarithm of the speed of the choice over that of the choice by
    rates.

    Args:
        trace: a trace of decoding.
        latency: times for the trace's law.
        splits: number of splits whose halves are both searched.
        many: number of splits in which the other shapes are replayed (`many_splits`).
    """
    rng = np.random.default_rng(0)
    shapes = known_shapes(trace, latency)
    others = [(tree, law_of(tree, trace, latency)) for tree in shapes.values()]
    predictions, replays = [], []
    over_best, over_rates = [], []
    spent = np.zeros((2, 2, trace.texts))
    for _ in track(range(splits), description=f"{trace.about.get('name', 'trace')}"):
        places = halves(trace, rng)
        parts = [trace.part(half) for half in places]
        rankings = [best_tree(part, latency) for part in parts]
        rate_rankings = [by_rates(part, latency) for part in parts]
        for way, (ranking, rate_ranking) in enumerate(zip(rankings, rate_rankings, strict=True)):
            other, first = parts[1 - way], first_drafted(ranking)
            predictions.append(first.tokens_per_step)
            replays.append(replay(other, first.shape).interval(ranking.level))
            candidates = {*others, *((row.shape, row.law) for row in rankings[1 - way].rows)}
            best = max(speed_on(other, shape, law, latency) for shape, law in candidates)
            totals = [
                _totals(other, choice.shape, choice.law, latency)
                for choice in (ranking.best, rate_ranking.best)
            ]
            chosen, chosen_by_rates = (tokens.sum() / seconds.sum() for tokens, seconds in totals)
            over_best.append(float(chosen / best))
            over_rates.append(float(chosen / chosen_by_rates))
            spent[..., places[1 - way]] += np.array(totals)
    intervals = np.array([predictions, replays]).transpose(0, 2, 1)
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
    """Compare replays of shapes on one half of the texts with replays on the other half, one way per split.

    A shape that was not chosen is predicted by its own replay, so no search is needed.

    Args:
        trace: a trace of decoding.
        shapes: shapes by name.
        splits: number of splits of the trace's files into halves.

    Returns:
        By shape, the quotient of means with its standard error over the splits; the shape whose quotient is
        farthest from 1; and how often the halves agree (`_held`), for all shapes and for the worst shape.
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
    """The largest relative difference between predictions from all texts and replays on all texts.

    Args:
        trace: the trace that was searched.
        ranking: the ranking of the search.
        others: further shapes, and how their children are drawn.

    Returns:
        The difference for the `chosen` shapes (the first tree and the first chain), which are cross-fitted,
        and for all `others`, which are not.
    """
    chosen = {(row.shape, row.law) for row in (ranking.tree, ranking.chain) if row is not None}

    def largest_error(shapes: set[tuple[TreeShape, str]]) -> float:
        quotients = [
            ranking.speed(shape, law).tokens / replay(trace, shape).tokens_per_step
            for shape, law in shapes
        ]
        return max((abs(quotient - 1) for quotient in quotients), default=0.0)

    return {"chosen": largest_error(chosen), "others": largest_error({*others} - chosen)}


def quotient(
    over: Float[np.ndarray, "splits"], under: Float[np.ndarray, "splits"]
) -> dict[str, float]:
    """A quotient of means, and its standard error over the splits (delta method)."""
    value = over.mean() / under.mean()
    error = (over - value * under).std(ddof=1) / (len(over) ** 0.5 * under.mean())
    return {"quotient": float(value), "error": float(error)}


def speed_on(trace: Trace, shape: TreeShape, law: str, latency: LatencyModel) -> float:
    """Tokens per second of a shape by replay, with the times of this law."""
    tokens, seconds = _totals(trace, shape, law, latency)
    return float(tokens.sum() / seconds.sum())


def _totals(
    trace: Trace, shape: TreeShape, law: str, latency: LatencyModel
) -> Float[np.ndarray, "what texts"]:
    """Emitted tokens and seconds of each text."""
    if shape.size == 1:
        kept = trace.text_kept.astype(float)
        return np.array([kept, kept * latency.plain_s(law=law)])
    replayed = replay(trace, shape)
    return np.array([replayed.emitted, replayed.steps * latency.step_s(shape, law=law)])


def _held(
    predicted: Float[np.ndarray, "three ..."], replayed: Float[np.ndarray, "three ..."]
) -> dict[str, Bool[np.ndarray, "..."]]:
    """For each prediction, whether it holds on the other half.

    Args:
        predicted: estimate, lower and upper bound of each prediction.
        replayed: the same for the replay on the other half, which has an error of its own.

    Returns:
        `agreed`: whether the estimates differ by at most the root of the sum of squares of both
        half-widths. `inside`: whether the replayed estimate lies in the predicted interval.
    """
    allowed = np.hypot(predicted[2] - predicted[1], replayed[2] - replayed[1]) / 2
    return {
        "agreed": abs(predicted[0] - replayed[0]) <= allowed,
        "inside": (predicted[1] <= replayed[0]) & (replayed[0] <= predicted[2]),
    }


def _pooled(
    spent: Float[np.ndarray, "both what texts"], file_of: Int[np.ndarray, "texts"]
) -> dict[str, float]:
    """Logarithm of one choice's speed over another's, and its standard error over texts (jackknife)."""
    totals_by_file = np.array([[by_file(row, file_of) for row in choice] for choice in spent])
    totals_by_file = totals_by_file[:, :, totals_by_file[0, 0] > 0]

    def logs(totals: Float[np.ndarray, "both what ..."]) -> Float[np.ndarray, "..."]:
        speeds = np.log(totals[:, 0] / totals[:, 1])
        return speeds[0] - speeds[1]

    sums, number = totals_by_file.sum(axis=2, keepdims=True), totals_by_file.shape[2]
    left_out = logs(sums - totals_by_file)
    error = np.sqrt((number - 1) / number * ((left_out - left_out.mean()) ** 2).sum())
    return {"log": float(logs(sums[:, :, 0])), "error": float(error)}
