"""One start of a run: check the experiment, open its folder, and see what earlier starts left there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treespec.experiments.config.build import Experiment, build
from treespec.experiments.config.plugged import require_same_plugins
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError, PromptError, RunFolderError, TooFewPrompts
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.measured import Measured
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompt_rows import RawPrompt
from treespec.experiments.run.prompts import read_prompts, search_prompts, unread_turns
from treespec.experiments.run.proof_of_parts import require_proved
from treespec.experiments.run.ranks import rank
from treespec.experiments.run.tracking import Tracker, open_tracker
from treespec.experiments.run.tuning import prompts_needed
from treespec.experiments.run.until import at_most, planned_prompts, require_decidable

MOST_UNITS = 10**6
"""Most units of a run: prompts times settings times repeats."""


@dataclass(frozen=True)
class Ready:
    """An experiment that is ready to start.

    Methods that depend on a measurement have placeholders; `spare` prompts are used for tuning.
    """

    experiment: Experiment
    tracker: Tracker
    measured: Sequence[RawPrompt]
    spare: Sequence[RawPrompt]


def ready(config: Config, say: Callable[[str], None]) -> Ready:
    """Read and check everything that needs no model.

    Raises:
        ConfigError: if a method cannot be built, a part of a plug-in is not lossless,
            the search has nothing to measure on, `until` has nothing to decide, or the run is too large.
        PromptError: if the prompts cannot be read, or are too few.
    """
    experiment = build(config)
    require_proved(experiment, say)
    units = config.repeats * len(config.samplings)
    tracker = open_tracker(None if rank() else config.tracker, say)  # only the first process logs
    if config.search is not None:
        search_prompts(config)
    require_decidable(experiment)
    measured, spare = _split(experiment, _read(config, prompts_needed(experiment.methods)))
    _require_batches(config, len(measured))
    if note := unread_turns(measured):
        say(note)
    if units * len(measured) > MOST_UNITS:
        raise ConfigError(
            f"repeats = {config.repeats}: {len(measured)} prompts under {len(config.samplings)} settings "
            f"are {units * len(measured):,} texts of each method, but at most {MOST_UNITS:,} are allowed: "
            "lower repeats or prompts.count"
        )
    return Ready(experiment, tracker, measured, spare)


def _require_batches(config: Config, prompts: int) -> None:
    """Refuse a number of prompts that leaves a batch incomplete: a smaller one has other costs.

    Raises:
        ConfigError: names the key and the nearest numbers of prompts.
    """
    batch, over = config.batch, prompts % config.batch
    if not over:
        return
    key = "prompts.count" if at_most(config) is None else "until.at_most"
    fewer, more = prompts - over, prompts - over + batch
    nearest = f"{key} to {fewer} or {more}" if fewer else f"{key} to {more}"
    raise ConfigError(
        f"batch = {batch}: {prompts} prompts are no whole number of batches of {batch}: set {nearest}, "
        "or choose another batch"
    )


def _read(config: Config, more: int) -> Sequence[RawPrompt]:
    """Read the prompts of the config, as many as `until` allows, and `more` for tuning."""
    limit = at_most(config)
    try:
        return read_prompts(planned_prompts(config), more=more)
    except TooFewPrompts as error:
        if limit is None:
            raise
        excerpts = len(getattr(config.prompts, "excerpts", None) or {"": 0})
        samples = (
            f"{error.present} prompts"
            if excerpts == 1
            else f"{error.present // excerpts} files, and several excerpts of one file are one sample"
        )
        raise PromptError(
            f"until.at_most = {limit}, but {error.source} has {samples}: lower it, or supply more prompts"
        ) from None


def _split(
    experiment: Experiment, raw: Sequence[RawPrompt]
) -> tuple[Sequence[RawPrompt], Sequence[RawPrompt]]:
    """Split the prompts into those that are measured and those used for tuning.

    Raises:
        PromptError: if tuning needs more prompts than the measured ones leave.
    """
    count = planned_prompts(experiment.config).count or len(raw)
    needed = prompts_needed(experiment.methods)
    key = "prompts.count" if at_most(experiment.config) is None else "until.at_most"
    if count + needed > len(raw):
        raise PromptError(
            f"tuning assisted generation needs {needed} prompts that are not measured, but {count} of "
            f"{len(raw)} prompts are measured: lower {key} or tune_prompts, or set one length and one "
            "threshold"
        )
    return raw[:count], raw[count : count + needed]


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
            names = _method_names(self.manifest, self.known)
            self.records.recover(names, drop_errors=self.again, batch=self.config.batch)
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
        _method_names(manifest, ready.experiment),
        drop_errors=again,
        batch=ready.experiment.config.batch,
        write=False,
    )
    return Session(searching, ready, records, reporter, False, manifest, finished, again)


def _method_names(manifest: Mapping[str, Any] | None, known: Experiment) -> list[str]:
    """Names of all methods and twins that every unit has a row of; from the manifest if there is one."""
    if manifest is None:
        return [method.name for method in known.methods]
    return [*(method["name"] for method in manifest["methods"]), *manifest.get("twins", ())]
