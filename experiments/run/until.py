"""Runs with `until`, which end when their result is clear enough: their prompts, and what their looks saw.

Looks come after 12, 18, 27, 40, ... prompts (`report.sequential.looks`), or files where prompts are
excerpts. Nothing is judged between two looks, and what a look saw is written to the manifest, so that a
run that was killed and resumed ends after the same prompt.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from treespec.experiments.config.build import BuiltMethod, Experiment, wants_measured
from treespec.experiments.config.schema import Config, Method, Prompts, TreeMethod, Until
from treespec.experiments.errors import ConfigError, NoFinishedPrompt
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.plain_data import plain_data
from treespec.experiments.report.comparisons import Comparison, compare, duels, speculation
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.report.sequential import looks


def at_most(config: Config) -> int | None:
    """The number of prompts, or of files where prompts are excerpts, that `until` allows; None without."""
    return None if config.until is None else config.until.at_most


def planned_prompts(config: Config) -> Prompts:
    """The prompts of the config, as many as `until` allows."""
    limit = at_most(config)
    if limit is None:
        return config.prompts
    count = limit * len(getattr(config.prompts, "excerpts", None) or {"": 0})
    return config.prompts.model_copy(update={"count": count})


def planned_of(samples: Sequence[int]) -> dict[str, int]:
    """How many prompts a run has at most, and how many samples (`prompts.samples_of`)."""
    return {"prompts": len(samples), "samples": len(set(samples))}


def ends_of_looks(samples: Sequence[int]) -> list[int]:
    """The numbers of prompts after which a run looks: before a prompt of a new sample, or at the end.

    `samples`: the number of each prompt's sample.

    Example:
        >>> ends_of_looks(range(20))
        [12, 18, 20]
        >>> ends_of_looks([i // 2 for i in range(30)])
        [24, 30]
    """
    first = {sample: i for i, sample in reversed([*enumerate(samples)])}
    ends = [*sorted(first.values())[1:], len(samples)]
    return [ends[count - 1] for count in looks(len(ends))]


def require_decidable(experiment: Experiment) -> None:
    """Refuse `until` if the methods of the run leave it nothing to decide.

    Raises:
        ConfigError: names what is missing.
    """
    until = experiment.config.until
    if until is None:
        return
    sides = set[str]().union(*map(_sides, experiment.config.methods, experiment.methods))
    if {"tree", "chain"} <= sides or experiment.config.compare:
        return
    wanted = {"tree": "no tree", "chain": "no chain or assisted generation"}
    missing = " and ".join(words for side, words in wanted.items() if side not in sides)
    if until.decided:
        raise ConfigError(
            f"until: decided compares trees with chains, but the methods have {missing} that is lossless: "
            "add one, or remove `until`"
        )
    if "plain" not in sides or sides == {"plain"}:
        missing += "" if "plain" in sides else ", and no plain decoding"
        raise ConfigError(
            f"until.half_width = {until.half_width:g} compares trees with chains, or else one of them with "
            f"plain decoding, but the methods have {missing}: add one, or remove `until`"
        )


def _sides(written: Method, built: BuiltMethod) -> set[str]:
    """The sides of a comparison that a method may be on; none for a lossy method."""
    if not built.lossless:
        return set()
    if not isinstance(written, TreeMethod):
        return {"chain" if written.kind == "assisted" else "plain"}
    if wants_measured(written):  # a search may find either
        return {"tree", "chain"}
    return {built.group}


def look_at(run: Run, until: Until, prompts: int) -> list[dict[str, Any]]:
    """Look at the first `prompts` prompts of a run: an entry of `looks` for each sampling setting."""
    counted = pl.col("prompt") < prompts
    seen = replace(
        run, all_prompts=run.all_prompts.filter(counted), all_steps=run.all_steps.filter(counted)
    )
    names = [setting["name"] for setting in run.manifest["samplings"]]
    return [_entry(seen, name, until, prompts) for name in names]


def _entry(run: Run | None, sampling: str, until: Until, prompts: int) -> dict[str, Any]:
    """What a look sees in one sampling setting; `run` is None if no prompt has been measured."""
    data = None if run is None else run.measurements.get(sampling)
    found = [] if run is None or data is None else _deciding(run, until, data)
    clear = [duel is not None and _clear(until, duel) for duel in found]
    # the least clear one: an entry has room for one ratio
    least = next((d for d, is_clear in zip(found, clear, strict=True) if not is_clear), None)
    shown = least or next(iter(found), None)
    ratio = None if shown is None else shown.ratio
    return plain_data(
        {
            "prompts": prompts,
            "samples": 0 if data is None else data.samples,
            "sampling": sampling,
            "ratio": ratio and ratio.estimate,
            "low": ratio and ratio.low,
            "high": ratio and ratio.high,
            "boundary": data and data.boundary,
            "decided": bool(clear) and all(clear),
        }
    )


def _deciding(run: Run, until: Until, data: Measurements) -> list[Comparison | None]:
    """The comparisons that `until` judges: those of the verdict.

    For `half_width`, if nothing else is asked and the run lacks trees or chains, the best method against
    plain decoding.
    """
    groups = {method.group for method in (*data.methods, *data.failed) if method.lossless}
    trees_and_chains = "tree" in groups and groups & {"chain", "assisted"}
    if until.decided or trees_and_chains or run.manifest["config"].get("compare"):
        return [duel for _, duel in duels(run, data)]
    return [compare(data, speculation(data))]


def _clear(until: Until, comparison: Comparison) -> bool:
    """Whether a comparison is clear enough for the run to end."""
    if until.half_width is None:
        return comparison.winner is not None
    return comparison.ratio.bounded and comparison.ratio.half_width < until.half_width


def clear_after(
    end: int, until: Until, samplings: Iterable[str], records: RunFolder, manifest: dict[str, Any]
) -> bool:
    """Whether the run may end here, by the look in the manifest or, if there is none, by a new look."""
    looks = manifest["looks"]
    if not any(look["prompts"] == end for look in looks):
        try:
            looks += look_at(load_run(records.path), until, end)
        except NoFinishedPrompt:
            looks += [_entry(None, name, until, end) for name in samplings]
        records.keep_manifest(manifest)
    return all(look["decided"] for look in looks if look["prompts"] == end)
