"""Open a run: the experiment, its folder, and what earlier starts have left there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from treespec.experiments.config.build import Experiment
from treespec.experiments.config.plugged import require_same_plugins
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.measured import Measured
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.readiness import Ready


@dataclass(frozen=True)
class Searching:
    """The two functions that a config with `search` needs; `measure.searched_run` supplies them."""

    measure: Callable[..., Measured]
    resolve: Callable[..., Config]


@dataclass(frozen=True)
class Session:
    """One start of a run, which holds the run's folder."""

    searching: Searching
    ready: Ready
    records: RunFolder
    reporter: Reporter
    fresh: bool
    manifest: dict[str, Any] | None  # of the run that is resumed
    finished: set[tuple[int, str, int]]  # (prompt, sampling, repeat) of units that are decoded
    again: bool  # whether units that hold an error are decoded again

    @property
    def known(self) -> Experiment:
        """The experiment as far as it is known before anything is measured."""
        return self.ready.experiment

    @property
    def config(self) -> Config:
        return self.known.config

    @property
    def wanted(self) -> int:
        """Number of units of the whole run; with `until` it may end earlier."""
        return len(self.ready.measured) * len(self.known.samplings) * self.config.repeats

    @property
    def complete(self) -> bool:
        """Whether all units are decoded, or all units up to the look that ended the run."""
        if self.manifest is None or self.manifest["finished"] is None or self.again:
            return False
        looks = self.manifest.get("looks")
        prompts = looks[-1]["prompts"] if looks else len(self.ready.measured)
        units_per_prompt = len(self.known.samplings) * self.config.repeats
        decoded = sum(prompt < prompts for prompt, *_ in self.finished)
        return decoded == prompts * units_per_prompt

    def take_over(self, search: Mapping[str, bytes]) -> None:
        """Take over the folder: delete or repair what earlier starts left, and add this start's files.

        A start that is refused before this call leaves the earlier records as they are.
        """
        if self.fresh:
            self.records.clear()
        else:
            self.records.recover(_method_names(self.manifest, self.known), drop_errors=self.again)
        self.records.keep_plugins()
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
    """Find out which units of a run's folder are finished, without changing the folder.

    Raises:
        RunFolderError: if the folder belongs to another config, or is damaged.
    """
    if fresh:
        return Session(searching, ready, records, reporter, True, None, set(), False)
    records.require_same(ready.experiment.config)
    manifest = records.manifest()
    if manifest is not None:
        require_same_plugins(records.path, manifest, RunFolderError)
    again = retry and bool(records.failures())
    finished = records.recover(
        _method_names(manifest, ready.experiment), drop_errors=again, write=False
    )
    return Session(searching, ready, records, reporter, False, manifest, finished, again)


def _method_names(manifest: Mapping[str, Any] | None, known: Experiment) -> list[str]:
    """Names of all methods and twins that every unit has a row of; from the manifest if there is one."""
    if manifest is None:
        return [method.name for method in known.methods]
    return [*(method["name"] for method in manifest["methods"]), *manifest.get("twins", ())]
