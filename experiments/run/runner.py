"""Run an experiment into its folder. A run that was killed goes on where it stopped."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

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
from treespec.experiments.run.decoding import decode_units
from treespec.experiments.run.looks import Looks
from treespec.experiments.run.models import load_models
from treespec.experiments.run.preparation import Prepared, prepare
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.ranks import folder_of_rank
from treespec.experiments.run.readiness import Ready, ready
from treespec.experiments.run.session import Searching, Session, open_session

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["RunResult", "place_for", "run"]


@dataclass(frozen=True)
class RunResult:
    """Where the records are, and what went wrong.

    Args:
        folder: of the run.
        already_finished: nothing was left to do.
        failures: the rows that hold an error.
    """

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
    """Run what is missing of an experiment: open its folder, prepare, decode.

    Args:
        config: the experiment.
        searching: for configs with `search`.
        folder: of its records; by default `config.output`, which must lie in `runs/`, or `runs/<name>`.
        source: the config's file; like all that the config reads it may not be in the folder.
        fresh: delete the records of an earlier run there, once the new one can start.
        retry: run those units again that hold an error.
        console: where progress is shown; nowhere by default.
        load: gives the models.

    Raises:
        ConfigError, PromptError, RunFolderError, ContextOverflow, LoadError: what a user can mend; raised
            before anything is decoded. A start that has not measured anything leaves nothing then.
    """
    reporter = Reporter(console)
    place, start = place_for(config, folder, source, reporter.note)
    with RunFolder(folder_of_rank(config, place)) as records:
        session = open_session(searching, start, records, reporter, fresh=fresh, retry=retry)
        if not session.complete:
            decode(session, prepare(session, load))
        return RunResult(records.path, session.complete, tuple(records.failures()))


def place_for(
    config: Config, folder: Path | None, source: Path | None, say: Callable[[str], None]
) -> tuple[Path, Ready]:
    """The folder of a run, and what can be checked before it is looked into.

    Args:
        config: see `run`.
        folder: see `run`.
        source: see `run`.
        say: told once if the tracker fails while the run goes on.

    Raises:
        ConfigError, PromptError: see `run`.
    """
    place = folder or place_of(config.output, config.name, "runs")
    read = [] if source is None else [("the config", source)]
    require_apart(place, [*read, *inputs_of(config)])
    return place, ready(config, say)


def decode(session: Session, prepared: Prepared) -> None:
    """Decode what is missing, and finish the records.

    Args:
        session: the open run.
        prepared: its models, units and manifest.
    """
    records, tracker, reporter = session.records, session.ready.tracker, session.reporter
    manifest, bench = prepared.manifest, prepared.bench
    tracker.begin(manifest)
    watch = LoadWatch()
    try:
        looks = None if session.config.until is None else Looks.of(session, manifest)
        decode_units(
            bench,
            prepared.units,
            prepared.units if looks is None else looks.through(prepared.units),
            session.wanted,
            records,
            tracker,
            reporter,
        )
        busy = watch.busy_percent()
        records.finish(with_load(manifest, busy) | {"meters": bench.meters.about()})
    except BaseException:
        with suppress(OSError):  # the load is that of the units so far, too
            records.write_manifest(with_load(manifest, watch.busy_percent()))
        tracker.end(None)
        raise
    means = IN_TURNS if manifest["together"] > 1 else NOT_RELIABLE
    if (caution := busy_sentence(busy, means=means)) is not None:
        reporter.note(caution)
    tracker.end(lambda: load_run(records.path))
