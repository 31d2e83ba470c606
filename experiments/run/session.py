"""Open a run: what it is of, and what earlier starts have left in its folder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from treespec.experiments.config.build import Experiment
from treespec.experiments.config.plugged import FOLDER, require_same_plugins
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.measured import Measured
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.readiness import Ready
from treespec.plugin_files import in_use

__all__ = ["Searching", "Session", "open_session"]


@dataclass(frozen=True)
class Searching:
    """What a config's `search` takes; `search_then_run.run` has it.

    Args:
        measure: measures before the run, into its folder.
        resolve: gives the methods that wait for what was measured their trees.
    """

    measure: Callable[..., Measured]
    resolve: Callable[..., Config]


@dataclass(frozen=True)
class Session:
    """One start of a run, which holds the run's folder.

    Args:
        searching: for configs with `search`.
        ready: methods (with stand-ins for those that wait for a measurement), prompts and tracker.
        records: the folder.
        reporter: shows the progress.
        fresh: what an earlier run left is deleted once this one can start.
        manifest: of the run that goes on; None if one begins.
        finished: units that need not be decoded: (prompt, sampling, repeat).
        again: units that hold an error are decoded again.
    """

    searching: Searching
    ready: Ready
    records: RunFolder
    reporter: Reporter
    fresh: bool
    manifest: dict[str, Any] | None
    finished: set[tuple[int, str, int]]
    again: bool

    @property
    def known(self) -> Experiment:
        """The methods as far as they are known without a measurement."""
        return self.ready.experiment

    @property
    def config(self) -> Config:
        """As the user wrote it."""
        return self.known.config

    @property
    def wanted(self) -> int:
        """Units of the whole run; with `until` it may end before them."""
        return len(self.ready.measured) * len(self.known.samplings) * self.config.repeats

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do: all is decoded, or all up to the look that ended the run."""
        if self.manifest is None or self.manifest["finished"] is None or self.again:
            return False
        looks = self.manifest.get("looks")
        prompts = looks[-1]["prompts"] if looks else len(self.ready.measured)
        each = len(self.known.samplings) * self.config.repeats
        return sum(prompt < prompts for prompt, *_ in self.finished) == prompts * each

    def take_over(self, search: Mapping[str, bytes]) -> None:
        """Make the folder that of this start. Until here a refusal costs nothing of an earlier one.

        Args:
            search: files to put into the folder of what was measured, by name.
        """
        if self.fresh:
            self.records.clear()
        else:
            names = _method_names(self.manifest, self.known)
            self.records.recover(names, drop_errors=self.again)
        for file in in_use():
            self.records.keep(self.records.path / FOLDER / file.path.name, file.content)
        for name, content in search.items():
            self.records.keep(self.records.search / name, content)


def open_session(
    searching: Searching,
    ready: Ready,
    records: RunFolder,
    reporter: Reporter,
    *,
    fresh: bool,
    retry: bool,
) -> Session:
    """Look what is finished in a run's folder; nothing is changed there.

    Args:
        searching: for configs with `search`.
        ready: the experiment.
        records: the folder, held.
        reporter: shows the progress.
        fresh: begin anew, whatever is there.
        retry: decode units again that hold an error.

    Raises:
        RunFolderError: if the folder is of another config, or damaged.
    """
    if fresh:
        return Session(searching, ready, records, reporter, True, None, set(), False)
    records.require_same(ready.experiment.config)
    manifest = records.manifest()
    if manifest is not None:
        require_same_plugins(records.path, manifest, RunFolderError)
    again = retry and bool(records.failures())
    names = _method_names(manifest, ready.experiment)
    finished = records.recover(names, drop_errors=again, write=False)
    return Session(searching, ready, records, reporter, False, manifest, finished, again)


def _method_names(manifest: Mapping[str, Any] | None, known: Experiment) -> list[str]:
    """Of all methods that a unit has a row of: those that the run was started with."""
    if manifest is None:
        return [method.name for method in known.methods]
    return [*(method["name"] for method in manifest["methods"]), *manifest.get("twins", ())]
