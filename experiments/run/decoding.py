"""The units of a run: every prompt under every sampling setting, repeated, in their order."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from treespec.experiments.config.build import Experiment
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import Prompt
from treespec.experiments.run.tracking import NoTracker
from treespec.experiments.run.unit import Bench, run_unit, runs_alone

__all__ = ["Unit", "decode_units", "units_of"]


@dataclass(frozen=True)
class Unit:
    """A prompt under a sampling setting, once.

    Args:
        number: in the order of the whole run.
        prompt: what is continued.
        sampling: name of the setting.
        repeat: of the prompt.
    """

    number: int
    prompt: Prompt
    sampling: str
    repeat: int


def units_of(
    experiment: Experiment,
    prompts: Sequence[Prompt],
    finished: Collection[tuple[int, str, int]],
) -> list[Unit]:
    """What is missing of a run, in order: the prompts once, then again for every repeat.

    With `until` each prompt is decoded in all its repeats before the next one: a run that ends early has
    the same of every prompt.
    """
    repeats = range(experiment.config.repeats)
    order = product(repeats, prompts)
    if experiment.config.until is not None:
        order = ((repeat, prompt) for prompt in prompts for repeat in repeats)
    every = enumerate(product(order, experiment.samplings))
    return [
        Unit(number, prompt, sampling, repeat)
        for number, ((repeat, prompt), sampling) in every
        if (prompt.index, sampling, repeat) not in finished
    ]


def decode_units(
    bench: Bench,
    units: Sequence[Unit],
    going: Iterable[Unit],
    wanted: int,
    records: RunFolder,
    tracker: NoTracker,
    reporter: Reporter,
) -> None:
    """Decode what is missing, each unit written when it is finished.

    Args:
        bench: models, methods and settings.
        units: what is missing.
        going: the same, or those of them that the run takes before it ends early.
        wanted: units of the whole run.
        records: where rows go.
        tracker: told of every finished unit.
        reporter: shows the progress.
    """
    config = bench.experiment.config
    prompts = wanted // (len(bench.experiment.samplings) * config.repeats)
    alone = sum(runs_alone(config, unit.prompt, unit.repeat) for unit in units)
    together = sum(map(len, bench.groups))
    texts = len(units) * together + alone * len(bench.experiment.methods)
    early = config.until is not None
    with reporter.units(
        texts, done=wanted - len(units), counted="texts", may_end_early=early
    ) as advance:
        for unit in going:
            label = f"prompt {unit.prompt.index + 1}/{prompts}, {unit.sampling}"
            label += f", repeat {unit.repeat + 1}/{config.repeats}" if config.repeats > 1 else ""
            rows = run_unit(
                bench,
                unit.prompt,
                unit.sampling,
                lambda what, count, at=label: advance(f"{at}: {what}", count),
                repeat=unit.repeat,
            )
            records.append(*rows)
            tracker.unit(rows[0])
