"""Tune assisted generation, so that the baseline is no straw man."""

from collections.abc import Callable, Sequence
from typing import Any

from treespec.experiments.config.build import BuiltMethod
from treespec.experiments.config.schema import AssistedMethod
from treespec.experiments.records.outcome import Outcome
from treespec.experiments.run.prompts import Prompt
from treespec.experiments.run.turns import Decoding, take_turns
from treespec.experiments.run.unit import Bench, seed_of

__all__ = ["RACE_KEEPS", "prompts_needed", "tune", "tuned_choices"]

RACE_KEEPS = (0.7, 0.8, 0.85, 0.9)
"""Candidates slower than this part of the fastest are dropped: after 1 prompt, 2, 3, and 4 or more."""


def prompts_needed(methods: Sequence[BuiltMethod]) -> int:
    """Prompts, besides the measured ones, that tuning these methods takes."""
    configs = [method.config for method in methods if isinstance(method.config, AssistedMethod)]
    return max((c.tune_prompts for c in configs if len(c.grid) > 1), default=0)


def tune(
    bench: Bench, prompts: Sequence[Prompt], started: Callable[[str], None] = lambda what: None
) -> dict[str, dict[str, Any]]:
    """Choose length and threshold by tokens per second, for each assisted method and sampling setting.

    A race: all candidates decode the first prompt, those not far from the fastest the next, and so on.

    Args:
        bench: models, methods and settings.
        prompts: not measured later; `prompts_needed` of them.
        started: told what is tried.

    Returns:
        `tuning.assisted` of the manifest (SCHEMA.md).
    """
    result: dict[str, dict[str, Any]] = {}
    for method in bench.experiment.methods:
        if isinstance(method.config, AssistedMethod):
            result[method.name] = {
                sampling: _tune_one(bench, method, method.config, sampling, prompts, started)
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
) -> dict[str, Any]:
    grid = config.grid
    if len(grid) == 1:
        return {"table": [], "chosen": dict(zip(("length", "threshold"), grid[0], strict=True))}
    tokens, seconds, tried = (dict.fromkeys(grid, 0.0) for _ in range(3))
    failed: dict[tuple[int, float], str] = {}
    racing = list(grid)
    for done, prompt in enumerate(prompts[: config.tune_prompts]):
        started(f"tuning {method.name}, {sampling}: {len(racing)} settings in turns")
        for pair, outcome in _race(bench, method, sampling, prompt, racing).items():
            if isinstance(outcome, str):
                failed[pair] = outcome
                continue
            tokens[pair] += len(outcome.tokens)
            seconds[pair] += outcome.total_s - outcome.prefill_s
            tried[pair] += 1
        racing = [pair for pair in racing if pair not in failed]
        if not racing:  # the run will record what is wrong, prompt by prompt
            errors = [
                {"length": length, "threshold": threshold, "error": failed[length, threshold]}
                for length, threshold in grid
                if (length, threshold) in failed
            ]
            chosen = dict(zip(("length", "threshold"), grid[0], strict=True))
            return {"table": [], "errors": errors, "chosen": chosen}
        fastest = max(tokens[pair] / seconds[pair] for pair in racing)
        least = RACE_KEEPS[min(done, len(RACE_KEEPS) - 1)] * fastest
        racing = [pair for pair in racing if tokens[pair] / seconds[pair] >= least]
    best = max(racing, key=lambda pair: tokens[pair] / seconds[pair])
    table = [
        {
            "length": length,
            "threshold": threshold,
            "tokens_per_second": tokens[length, threshold] / seconds[length, threshold],
            "prompts": int(tried[length, threshold]),
        }
        for length, threshold in grid
        if tried[length, threshold]
    ]
    return {"table": table, "chosen": dict(zip(("length", "threshold"), best, strict=True))}


def _race(
    bench: Bench,
    method: BuiltMethod,
    sampling: str,
    prompt: Prompt,
    racing: Sequence[tuple[int, float]],
) -> dict[tuple[int, float], Outcome | str]:
    """Decode a prompt with every setting, in turns of a step."""
    seed = seed_of(bench.experiment.config.seed, "tuning", prompt.index, sampling)

    def begin(setting: tuple[int, float]) -> Callable[[], Decoding]:
        return lambda: bench.decode(method, prompt, sampling, seed=seed, tuned=setting)

    at_once = max(map(len, bench.groups))
    outcomes: dict[tuple[int, float], Outcome | str] = {}
    for first in range(0, len(racing), at_once):
        turns = {setting: begin(setting) for setting in racing[first : first + at_once]}
        outcomes |= take_turns(turns, seed=seed)
    return outcomes
