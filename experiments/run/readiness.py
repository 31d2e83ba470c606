"""What can be told of an experiment before a model is loaded: its methods, prompts and tracker."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treespec.experiments.config.build import Experiment, build
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError, PromptError
from treespec.experiments.run.prompts import RawPrompt, read_prompts, search_prompts
from treespec.experiments.run.ranks import rank
from treespec.experiments.run.tracking import NoTracker, open_tracker
from treespec.experiments.run.tuning import prompts_needed

__all__ = ["Ready", "ready"]

MOST_UNITS = 10**6
"""Prompts times settings times repeats of a run."""


@dataclass(frozen=True)
class Ready:
    """An experiment that can start.

    Args:
        experiment: its methods; those that wait for a measurement have stand-ins.
        tracker: where its rows are logged besides.
        measured: prompts that it measures.
        spare: prompts that tuning takes.
    """

    experiment: Experiment
    tracker: NoTracker
    measured: Sequence[RawPrompt]
    spare: Sequence[RawPrompt]


def ready(config: Config, say: Callable[[str], None]) -> Ready:
    """Read and check all that needs no model.

    Args:
        config: the experiment.
        say: told once if the tracker fails while the run goes on.

    Raises:
        ConfigError: if a method cannot be built, its measurements mean nothing, or the tracker is missing.
        PromptError: if the prompts cannot be read, or are too few.
    """
    experiment = build(config)
    units = config.repeats * len(config.samplings)
    tracker = open_tracker(None if rank() else config.tracker, say)  # one process of several logs
    if config.search is not None:
        search_prompts(config)
    raw = read_prompts(config.prompts, more=prompts_needed(experiment.methods))
    found = Ready(experiment, tracker, *_split(experiment, raw))
    if units * len(found.measured) > MOST_UNITS:
        raise ConfigError(
            f"repeats = {config.repeats}: {len(found.measured)} prompts under {len(config.samplings)} "
            f"settings are {units * len(found.measured):,} texts of each method, but at most "
            f"{MOST_UNITS:,} are run"
        )
    return found


def _split(
    experiment: Experiment, raw: Sequence[RawPrompt]
) -> tuple[Sequence[RawPrompt], Sequence[RawPrompt]]:
    """The measured prompts, and those that tuning takes.

    Raises:
        PromptError: if tuning needs more prompts than there are besides the measured ones.
    """
    count = experiment.config.prompts.count
    count = len(raw) if count is None else count
    needed = prompts_needed(experiment.methods)
    if count + needed > len(raw):
        raise PromptError(
            f"tuning assisted generation takes {needed} prompts that are not measured, but of "
            f"{len(raw)} prompts {count} are measured; lower prompts.count or tune_prompts, or give one "
            "length and one threshold"
        )
    return raw[:count], raw[count : count + needed]
