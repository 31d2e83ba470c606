"""Tune assisted generation, so that it is a strong baseline."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from treespec.experiments.config.build import BuiltMethod
from treespec.experiments.config.schema import AssistedMethod
from treespec.experiments.records.outcome import Outcome
from treespec.experiments.run.prompts import Prompt
from treespec.experiments.run.seeds import seed_of
from treespec.experiments.run.unit import Bench, take_turns

Setting = tuple[int, float]
"""Length and threshold."""

RACE_KEEPS = (0.7, 0.8, 0.85, 0.9)
"""Candidates below this fraction of the fastest speed are dropped: after 1, 2, 3, and 4 or more prompts."""


def prompts_needed(methods: Sequence[BuiltMethod]) -> int:
    """Number of prompts that tuning these methods needs in addition to the measured ones."""
    configs = [method.config for method in methods if isinstance(method.config, AssistedMethod)]
    return max((c.tune_prompts for c in configs if len(c.grid) > 1), default=0)


def tune(
    bench: Bench,
    prompts: Sequence[Prompt],
    started: Callable[[str], None] = lambda label: None,
    *,
    together: int,
) -> dict[str, dict[str, Any]]:
    """Choose length and threshold by tokens per second, for each assisted method and sampling setting.

    A race: all candidates decode the first prompt, those not far behind the fastest decode the next, and so
    on. They take turns step by step, as many at once as memory holds, and total times decide.

    Args:
        bench: models, methods and settings.
        prompts: `prompts_needed` prompts that are not measured later.
        started: called with a label before each prompt.
        together: number of candidates that may be open at once.

    Returns:
        `tuning.assisted` of the manifest (SCHEMA.md).
    """
    return {
        method.name: {
            sampling: _tune_one(bench, method, method.config, sampling, prompts, started, together)
            for sampling in bench.experiment.samplings
        }
        for method in bench.experiment.methods
        if isinstance(method.config, AssistedMethod)
    }


def tuned_choices(tuning: dict[str, dict[str, Any]]) -> dict[tuple[str, str], tuple[int, float]]:
    """The chosen length and threshold, by (method, sampling)."""
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
    texts: dict[Setting, list[Outcome]] = {setting: [] for setting in grid}
    failed: dict[Setting, str] = {}
    rates: dict[Setting, float] = {}
    racing = list(grid)
    for done, prompt in enumerate(prompts[: config.tune_prompts]):
        started(f"tuning {method.name}, {sampling}: {len(racing)} settings in turns")
        for setting, outcome in _race(bench, method, sampling, prompt, racing, together).items():
            if isinstance(outcome, str):
                failed[setting] = outcome
            else:
                texts[setting].append(outcome)
        racing = [setting for setting in racing if setting not in failed]
        if not racing:  # the run will record the errors, prompt by prompt
            errors = [
                {"length": length, "threshold": threshold, "error": failed[length, threshold]}
                for length, threshold in grid
                if (length, threshold) in failed
            ]
            chosen = dict(zip(("length", "threshold"), grid[0], strict=True))
            return {"table": [], "errors": errors, "chosen": chosen}
        rates = {
            setting: sum(len(outcome.tokens) for outcome in outcomes)
            / sum(step.took for outcome in outcomes for step in outcome.steps)
            for setting, outcomes in texts.items()
            if outcomes
        }
        kept_share = RACE_KEEPS[min(done, len(RACE_KEEPS) - 1)]
        least = kept_share * max(rates[setting] for setting in racing)
        racing = [setting for setting in racing if rates[setting] >= least]
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
    chosen = dict(zip(("length", "threshold"), best, strict=True))
    return {"table": table, "chosen": chosen}


def _race(
    bench: Bench,
    method: BuiltMethod,
    sampling: str,
    prompt: Prompt,
    racing: Sequence[Setting],
    together: int,
) -> dict[Setting, Outcome | str]:
    """Decode a prompt with every setting, taking turns step by step."""
    seed = seed_of(bench.experiment.config.seed, "tuning", prompt.key, sampling)

    begin = partial(bench.decode, method, prompt, sampling, seed=seed)
    outcomes: dict[Setting, Outcome | str] = {}
    for start in range(0, len(racing), together):
        turns = {s: partial(begin, tuned=s) for s in racing[start : start + together]}
        outcomes |= take_turns(turns, seed=seed)
    return outcomes
