"""Advice from one half of a trace's texts, held against the other half, again and again."""

import warnings
from statistics import mean, median, stdev
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from rich.progress import track

from treespec.search import LatencyModel, Ranking, Trace, best_tree, estimate_acceptance
from treespec.search.choice.ranking import bounds
from treespec.search.errors import SearchError
from treespec.search.rates.replay import by_file, replay, replay_many
from treespec.shape import TreeShape

__all__ = ["OTHERS", "by_rates", "covered", "halves", "speed_on", "unseen"]

OTHERS = {
    **{f"chain {deep}": TreeShape.chain(deep) for deep in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 31)},
    "2-ary 2": TreeShape.kary(2, 2), "2-ary 3": TreeShape.kary(2, 3), "3-ary 2": TreeShape.kary(3, 2),
    "2x1x1": TreeShape.expansion([2, 1, 1]), "3x2x1x1": TreeShape.expansion([3, 2, 1, 1]),
    "4 wide": TreeShape.expansion([4]), "2 chains x 4": TreeShape.independent_chains(2, 4),
    "3 chains x 3": TreeShape.independent_chains(3, 3),
}  # fmt: skip
"""Shapes that are predicted besides the advised one."""


def by_rates(trace: Trace, latency: LatencyModel, **limits: Any) -> Ranking:
    """The ranking by rates alone: of trees by depth, and of chains by first children."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rates = estimate_acceptance(trace, by="depth")
        first = estimate_acceptance(trace, by="depth", ranks=1)
    return best_tree(rates, latency, chains=first, draws=40, laws=[trace.law], **limits)


def halves(trace: Trace, rng: np.random.Generator) -> list[Int[np.ndarray, "half"]]:
    """The places of half of the texts, and of the others. Excerpts of a file are in the same half."""
    order = rng.permutation(trace.samples)
    middle = trace.samples // 2
    return [
        np.flatnonzero(np.isin(trace.file_of, half)) for half in (order[:middle], order[middle:])
    ]


def unseen(trace: Trace, latency: LatencyModel, splits: int) -> dict[str, Any]:
    """Predictions from one half of the texts over the other half, and the choice itself there.

    Each split is taken both ways. Halves of few texts differ by chance, and what is above the mean of all
    texts in one is below it in the other; in the mean of both ways that cancels, and what is left is the
    error of predicting. One way of each split alone (`one way`) has both, with `chance` as its standard
    error. All are quotients of means: a mean of quotients would lie above 1 by half their variance.

    All splits are of the same texts, so that the choice has a standard error over texts that more splits
    do not make smaller: the `pooled` logarithm of its speed over that of the choice by rates.
    """
    rng = np.random.default_rng(0)
    shapes = {name: tree for name, tree in OTHERS.items() if covered(trace, tree)}
    predicted: dict[str, list[float]] = {name: [] for name in ("advised", *shapes)}
    replayed: dict[str, list[float]] = {name: [] for name in ("advised", *shapes)}
    agreed: list[bool] = []
    choice: dict[str, list[float]] = {"of best there": [], "over rates": []}
    spent = np.zeros((2, 2, trace.texts))
    for _ in track(range(splits), description=f"{trace.about.get('name', 'trace')}"):
        places = halves(trace, rng)
        parts = [trace.part(half) for half in places]
        rankings = [best_tree(part, latency, laws=[trace.law]) for part in parts]
        olds = [by_rates(part, latency) for part in parts]
        for way, (ranking, old) in enumerate(zip(rankings, olds, strict=True)):
            other = parts[1 - way]
            first = ranking.best if ranking.best.size > 1 else ranking.rows[1]
            asked = [first.shape, *shapes.values()]
            there = replay_many([other], asked)[0]
            for name, tree, found in zip(predicted, asked, there, strict=True):
                speed, value = ranking.speed(tree, trace.law), found.interval()
                predicted[name].append(speed.tokens)
                replayed[name].append(value.estimate)
                said = bounds(speed.tokens, speed.tokens_drawn, ranking.level, speed.texts)
                wide = np.hypot((said.high - said.low) / 2, (value.high - value.low) / 2)
                agreed.append(bool(abs(speed.tokens - value.estimate) <= wide))
            wide_set = {*shapes.values(), *(row.shape for row in rankings[1 - way].rows)}
            best = max(speed_on(other, shape, latency) for shape in wide_set)
            totals = [_totals(other, one.best.shape, latency) for one in (ranking, old)]
            mine, theirs = (tokens.sum() / seconds.sum() for tokens, seconds in totals)
            choice["of best there"].append(float(mine / best))
            choice["over rates"].append(float(mine / theirs))
            spent[..., places[1 - way]] += np.array(totals)
    both, one_way = (
        {name: mean(predicted[name][::step]) / mean(replayed[name][::step]) for name in predicted}
        for step in (1, 2)
    )
    logs = {name: np.log(np.divide(predicted[name], replayed[name])) for name in predicted}
    chance = {name: stdev(one[::2].tolist()) / splits**0.5 for name, one in logs.items()}
    return {
        "texts": trace.texts,
        "quotients": both,
        "worst": _farthest(both),
        "one way": {"quotients": one_way, "worst": _farthest(one_way), "chance": chance},
        "agreed": mean(agreed),
        "choice": {name: median(values) for name, values in choice.items()}
        | {"one way over rates": median(choice["over rates"][::2])}
        | {"pooled": _pooled(spent, trace.file_of)},
    }


def covered(trace: Trace, shape: TreeShape) -> bool:
    """Whether the trace is wide and long enough to replay this shape."""
    try:
        replay(trace, shape)
    except SearchError:
        return False
    return True


def speed_on(trace: Trace, shape: TreeShape, latency: LatencyModel) -> float:
    """Tokens per second by replay."""
    tokens, seconds = _totals(trace, shape, latency)
    return float(tokens.sum() / seconds.sum())


def _totals(
    trace: Trace, shape: TreeShape, latency: LatencyModel
) -> Float[np.ndarray, "what texts"]:
    """Emitted tokens of each text, and seconds."""
    law = trace.law if trace.law in latency.laws else None
    if shape.size == 1:
        kept = trace.text_kept.astype(float)
        return np.array([kept, kept * latency.plain_s(law=law)])
    found = replay(trace, shape)
    return np.array([found.emitted, found.steps * latency.step_s(shape, law=law)])


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


def _farthest(quotients: dict[str, float]) -> tuple[float, str]:
    return max((abs(one - 1), name) for name, one in quotients.items())
