"""Tune assisted generation, so that the baseline is no straw man."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from treespec.experiments.config.build import BuiltMethod
from treespec.experiments.config.schema import AssistedMethod
from treespec.experiments.records.outcome import Outcome
from treespec.experiments.report.slowdown import Steps, adjust
from treespec.experiments.run.prompts import Prompt
from treespec.experiments.run.turns import Decoding, take_turns
from treespec.experiments.run.unit import Bench, seed_of

__all__ = ["RACE_KEEPS", "prompts_needed", "tune", "tuned_choices"]

Setting = tuple[int, float]
"""Length and threshold."""

RACE_KEEPS = (0.7, 0.8, 0.85, 0.9)
"""Candidates slower than this part of the fastest are dropped: after 1 prompt, 2, 3, and 4 or more."""


def prompts_needed(methods: Sequence[BuiltMethod]) -> int:
    """Prompts, besides the measured ones, that tuning these methods takes."""
    configs = [method.config for method in methods if isinstance(method.config, AssistedMethod)]
    return max((c.tune_prompts for c in configs if len(c.grid) > 1), default=0)


def tune(
    bench: Bench,
    prompts: Sequence[Prompt],
    started: Callable[[str], None] = lambda what: None,
    *,
    together: int,
) -> dict[str, dict[str, Any]]:
    """Choose length and threshold by tokens per second, for each assisted method and sampling setting.

    A race: all candidates decode the first prompt, those not far from the fastest the next, and so on. They
    take turns step by step, and how slow the machine was at a step is taken out of its time. Where memory
    does not hold all candidates at once, totals decide: those of different groups were not close in time.

    Args:
        bench: models, methods and settings.
        prompts: not measured later; `prompts_needed` of them.
        started: told what is tried.
        together: candidates that may be open at once.

    Returns:
        `tuning.assisted` of the manifest (SCHEMA.md).
    """
    result: dict[str, dict[str, Any]] = {}
    for method in bench.experiment.methods:
        if isinstance(method.config, AssistedMethod):
            result[method.name] = {
                sampling: _tune_one(
                    bench, method, method.config, sampling, prompts, started, together
                )
                for sampling in bench.experiment.samplings
            }
    return result


def tuned_choices(tuning: dict[str, dict[str, Any]]) -> dict[tuple[str, str], tuple[int, float]]:
    """What was chosen, by (method, sampling)."""
    return {
        (method, sampling): (tuned["chosen"]["length"], tuned["chosen"]["threshold"])
        for method, by_sampling in tuning.items()
        for sampling, tuned in by_sampling.items()
    }


def _tune_one(
    bench: Bench,
    method: BuiltMethod,
    config: AssistedMethod,
    sampling: str,
    prompts: Sequence[Prompt],
    started: Callable[[str], None],
    together: int,
) -> dict[str, Any]:
    grid = config.grid
    if len(grid) == 1:
        return {"table": [], "chosen": dict(zip(("length", "threshold"), grid[0], strict=True))}
    texts: dict[Setting, list[Outcome]] = {pair: [] for pair in grid}
    failed: dict[Setting, str] = {}
    rates: dict[Setting, float] = {}
    racing = list(grid)
    spent = _adjusted_s if len(grid) <= together else _totals_s
    for done, prompt in enumerate(prompts[: config.tune_prompts]):
        started(f"tuning {method.name}, {sampling}: {len(racing)} settings in turns")
        for pair, outcome in _race(bench, method, sampling, prompt, racing, together).items():
            if isinstance(outcome, str):
                failed[pair] = outcome
            else:
                texts[pair].append(outcome)
        racing = [pair for pair in racing if pair not in failed]
        if not racing:  # the run will record what is wrong, prompt by prompt
            errors = [
                {"length": length, "threshold": threshold, "error": failed[length, threshold]}
                for length, threshold in grid
                if (length, threshold) in failed
            ]
            chosen = dict(zip(("length", "threshold"), grid[0], strict=True))
            return {"table": [], "errors": errors, "chosen": chosen}
        rates = _rates({pair: measured for pair, measured in texts.items() if measured}, spent)
        least = RACE_KEEPS[min(done, len(RACE_KEEPS) - 1)] * max(rates[pair] for pair in racing)
        racing = [pair for pair in racing if rates[pair] >= least]
    best = max(racing, key=rates.__getitem__)
    table = [
        {
            "length": length,
            "threshold": threshold,
            "tokens_per_second": rates[length, threshold],
            "prompts": len(texts[length, threshold]),
        }
        for length, threshold in rates
    ]
    return {"table": table, "chosen": dict(zip(("length", "threshold"), best, strict=True))}


def _race(
    bench: Bench,
    method: BuiltMethod,
    sampling: str,
    prompt: Prompt,
    racing: Sequence[Setting],
    together: int,
) -> dict[Setting, Outcome | str]:
    """Decode a prompt with every setting, in turns of a step."""
    seed = seed_of(bench.experiment.config.seed, "tuning", prompt.index, sampling)

    def begin(setting: Setting) -> Callable[[], Decoding]:
        return lambda: bench.decode(method, prompt, sampling, seed=seed, tuned=setting)

    outcomes: dict[Setting, Outcome | str] = {}
    for first in range(0, len(racing), together):
        turns = {setting: begin(setting) for setting in racing[first : first + together]}
        outcomes |= take_turns(turns, seed=seed)
    return outcomes


def _rates(
    texts: Mapping[Setting, Sequence[Outcome]],
    spent: Callable[[Sequence[Sequence[Outcome]]], list[float]],
) -> dict[Setting, float]:
    """Tokens per second of each candidate on the texts that it decoded."""
    tokens = [sum(len(outcome.tokens) for outcome in outcomes) for outcomes in texts.values()]
    seconds = spent(list(texts.values()))
    return {pair: n / s for pair, n, s in zip(texts, tokens, seconds, strict=True)}


def _totals_s(texts: Sequence[Sequence[Outcome]]) -> list[float]:
    """Seconds of all steps of each candidate, as they were measured."""
    return [sum(step.took for outcome in outcomes for step in outcome.steps) for outcomes in texts]


def _adjusted_s(texts: Sequence[Sequence[Outcome]]) -> list[float]:
    """The same on the machine as it mostly is, of candidates that took turns.

    Steps that verify equally many tokens behind as many draft passes do equal work.
    """
    rows = [
        (number, (number, step.shape.size, place == 0), step.at + step.took / 2, step.took)
        for number, outcomes in enumerate(texts)
        for outcome in outcomes
        for place, step in enumerate(outcome.steps)
    ]
    method, work, at, seconds = zip(*rows, strict=True)
    places = {kind: place for place, kind in enumerate(dict.fromkeys(work))}
    numbers = np.array(method, dtype=np.int64)
    steps = Steps(
        method=numbers,
        prompt=np.zeros_like(numbers),
        work=np.array([places[kind] for kind in work], dtype=np.int64),
        at=np.array(at),
        seconds=np.array(seconds),
        steady=np.ones(len(texts), dtype=bool),
    )
    return adjust(steps).seconds.sum(1).tolist()
