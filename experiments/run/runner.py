"""Run an experiment and record it in a folder. A run that was killed resumes where it stopped."""

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from treespec.experiments.config.build import Experiment
from treespec.experiments.config.places import inputs_of, place_of, require_apart
from treespec.experiments.config.schema import Config, ModelsConfig
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.machine_load import (
    IN_TURNS,
    NOT_RELIABLE,
    LoadWatch,
    busy_sentence,
)
from treespec.experiments.records.manifest import with_load
from treespec.experiments.records.rows import PromptRow
from treespec.experiments.report.run import load_run
from treespec.experiments.report.sequential import ending
from treespec.experiments.run.models import load_models
from treespec.experiments.run.preparation import prepare
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import Prompt, batches_of
from treespec.experiments.run.ranks import folder_of_rank
from treespec.experiments.run.session import (
    Ready,
    Searching,
    Session,
    open_session,
    ready,
)
from treespec.experiments.run.unit import Bench, Unit, run_unit
from treespec.experiments.run.until import clear_after, ends_of_looks

if TYPE_CHECKING:
    from treespec.models.load import Pair


@dataclass(frozen=True)
class RunResult:
    """Where the records of a run are, and which prompts failed."""

    folder: Path
    already_finished: bool
    failures: tuple[PromptRow, ...]


def run(
    config: Config,
    *,
    searching: Searching,
    folder: Path | None = None,
    source: Path | None = None,
    fresh: bool = False,
    retry: bool = False,
    console: Console | None = None,
    load: Callable[[ModelsConfig], "Pair"] = load_models,
) -> RunResult:
    """Run the units of an experiment that are not finished: open its folder, prepare, decode.

    Args:
        config: the experiment.
        searching: how to measure and resolve configs with `search`.
        folder: where to write the records; by default `config.output`, which must lie in `runs/`, or
            `runs/<name>`.
        source: the config's file. It must lie outside the folder, like every file that the config names.
        fresh: delete the records of an earlier run in the folder once the new run can start.
        retry: decode units that hold an error again.
        console: where to show progress; None shows nothing.
        load: loads the models.

    Raises:
        ConfigError, PromptError, RunFolderError, ContextOverflow, LoadError: errors that a user can fix,
            raised before anything is decoded. Unless it has measured something, a start that fails in this
            way leaves nothing in the folder.
    """
    reporter = Reporter(console)
    path, checked = place_for(config, folder, source, reporter.note)
    with RunFolder(folder_of_rank(config, path)) as records:
        session = open_session(searching, checked, records, reporter, fresh=fresh, retry=retry)
        if not session.complete:
            for _ in decode(session, *prepare(session, load)):
                pass
        return RunResult(records.path, session.complete, tuple(records.failures()))


def place_for(
    config: Config, folder: Path | None, source: Path | None, say: Callable[[str], None]
) -> tuple[Path, Ready]:
    """Choose the folder of a run, and check the experiment without opening that folder.

    Raises:
        ConfigError, PromptError: see `run`.
    """
    path = folder or place_of(config.output, config.name, "runs")
    config_file = [] if source is None else [("the config", source)]
    require_apart(path, [*config_file, *inputs_of(config)])
    return path, ready(config, say)


def decode(
    session: Session, bench: Bench, prompts: Sequence[Prompt], manifest: dict[str, Any]
) -> Generator[Unit, None, None]:
    """Decode the units that are not finished, giving each one when its rows are written; then finish."""
    records, tracker, reporter = session.records, session.ready.tracker, session.reporter
    units = units_of(bench.experiment, prompts, session.finished)
    tracker.begin(manifest)
    watch = LoadWatch()
    try:
        going = units if session.config.until is None else through_looks(session, manifest, units)
        yield from decode_units(session, bench, units, going)
        busy = watch.busy_percent()
        records.finish(with_load(manifest, busy) | {"meters": bench.meters.about()})
    except BaseException:
        with suppress(OSError):  # record the machine's load during the units decoded so far
            records.keep_manifest(with_load(manifest, watch.busy_percent()))
        tracker.end(None)
        raise
    consequence = IN_TURNS if manifest["together"] > 1 else NOT_RELIABLE
    if (caution := busy_sentence(busy, means=consequence)) is not None:
        reporter.note(caution)
    tracker.end(lambda: load_run(records.path))


def units_of(
    experiment: Experiment,
    prompts: Sequence[Prompt],
    finished: Collection[tuple[int, str, int]],
) -> list[Unit]:
    """The units of a run that are not finished, in order: all prompts once, then again for each repeat.

    With `until`, all repeats of a batch come before the next batch, so that a run that ends early has
    decoded every prompt equally often.
    """
    repeats = range(experiment.config.repeats)
    batches = batches_of(prompts, experiment.config.batch)
    order = product(repeats, batches)
    if experiment.config.until is not None:
        order = ((repeat, batch) for batch in batches for repeat in repeats)
    return [
        Unit(batch, sampling, repeat)
        for (repeat, batch), sampling in product(order, experiment.samplings)
        if (batch[0].index, sampling, repeat) not in finished
    ]


def decode_units(
    session: Session, bench: Bench, units: Sequence[Unit], going: Iterable[Unit]
) -> Iterator[Unit]:
    """Decode units, and write the rows of each one when it is done.

    `going` gives `units` in order, and may stop before their end where the run ends early.
    """
    config, prompts = session.config, len(session.ready.measured)
    alone = sum(unit.runs_alone(config) for unit in units)
    texts = len(units) * sum(map(len, bench.groups)) + alone * len(bench.experiment.methods)
    afresh = sum(unit.drafts_afresh(config, prompt) for unit in units for prompt in unit.prompts)
    drafting = sum(method.ranks_tokens for method in bench.experiment.methods)
    with session.reporter.units(
        texts * config.batch + afresh * drafting,
        done=session.wanted - len(units) * config.batch,
        counted="texts",
        may_end_early=config.until is not None,
    ) as advance:
        for unit in going:
            label = f"{unit.numbers}/{prompts}, {unit.sampling}"
            label += f", repeat {unit.repeat + 1}/{config.repeats}" if config.repeats > 1 else ""
            rows = run_unit(
                bench,
                unit,
                lambda methods, count, unit_label=label: advance(f"{unit_label}: {methods}", count),
            )
            session.records.append(*rows)
            session.ready.tracker.unit(rows[0])
            yield unit


def through_looks(
    session: Session, manifest: dict[str, Any], units: Sequence[Unit]
) -> Iterator[Unit]:
    """Iterate over the units to decode: look when all units before a look are written, maybe end there.

    The units come prompt by prompt; new looks are appended to the manifest's `looks`.
    """
    until, remaining = session.config.until, deque(units)
    assert until is not None
    for end in ends_of_looks(manifest["samples"] or range(len(session.ready.measured))):
        while remaining and remaining[0].prompts[0].index < end:
            yield remaining.popleft()
        # An earlier start may have decoded prompts past this look (as with `--retry`).
        went_on = any(prompt >= end for prompt, *_ in session.finished)
        clear = clear_after(end, until, session.known.samplings, session.records, manifest)
        if clear and not went_on:
            break
    session.reporter.note(str(ending(manifest)))
