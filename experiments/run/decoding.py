"""The units of a run, in order: every prompt under every sampling setting, with repeats."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from treespec.experiments.config.build import Experiment
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import Prompt
from treespec.experiments.run.tracking import Tracker
from treespec.experiments.run.unit import Bench, run_unit, runs_alone


@dataclass(frozen=True)
class Unit:
    """One repeat of one prompt under one sampling setting."""

    prompt: Prompt
    sampling: str
    repeat: int


def units_of(
    experiment: Experiment,
    prompts: Sequence[Prompt],
    finished: Collection[tuple[int, str, int]],
) -> list[Unit]:
    """The units of a run that are not finished, in order: all prompts once, then again for each repeat.

    With `until`, all repeats of a prompt come before the next prompt, so that a run that ends early has
    decoded every prompt equally often.
    """
    repeats = range(experiment.config.repeats)
    order = product(repeats, prompts)
    if experiment.config.until is not None:
        order = ((repeat, prompt) for prompt in prompts for repeat in repeats)
    return [
        Unit(prompt, sampling, repeat)
        for (repeat, prompt), sampling in product(order, experiment.samplings)
        if (prompt.index, sampling, repeat) not in finished
    ]


def decode_units(
    bench: Bench,
    units: Sequence[Unit],
    going: Iterable[Unit],
    wanted: int,
    records: RunFolder,
    tracker: Tracker,
    reporter: Reporter,
) -> None:
    """Decode the units that are not finished, and write each one when it is done.

    `going` gives the same units in order, and may stop before their end where the run ends early; `wanted`
    counts those of the whole run.
    """
    config = bench.experiment.config
    prompts = wanted // (len(bench.experiment.samplings) * config.repeats)
    alone = sum(runs_alone(config, unit.prompt, unit.repeat) for unit in units)
    texts = len(units) * sum(map(len, bench.groups)) + alone * len(bench.experiment.methods)
    with reporter.units(
        texts,
        done=wanted - len(units),
        counted="texts",
        may_end_early=config.until is not None,
    ) as advance:
        for unit in going:
            label = f"prompt {unit.prompt.index + 1}/{prompts}, {unit.sampling}"
            label += f", repeat {unit.repeat + 1}/{config.repeats}" if config.repeats > 1 else ""
            rows = run_unit(
                bench,
                unit.prompt,
                unit.sampling,
                lambda methods, count, unit_label=label: advance(f"{unit_label}: {methods}", count),
                repeat=unit.repeat,
            )
            records.append(*rows)
            tracker.unit(rows[0])
