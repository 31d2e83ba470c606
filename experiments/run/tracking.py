"""Rows of a run logged to a tracker as well: trackio, or wandb, whose calls trackio shares. Off by default.

The folder stays the record: a tracker that fails is left out of the rest of the run.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treespec.errors import in_words
from treespec.experiments.errors import ConfigError
from treespec.experiments.records.rows import PromptRow
from treespec.experiments.report.run import Run

__all__ = ["PROJECT", "NoTracker", "Tracker", "open_tracker", "row_figures", "summary_figures"]

PROJECT = "treespec"
"""What runs are gathered under there."""


class NoTracker:
    """Logs nowhere."""

    def begin(self, manifest: Mapping[str, Any]) -> None:
        """A run starts, or goes on."""

    def unit(self, rows: Sequence[PromptRow]) -> None:
        """A unit is finished."""

    def end(self, run: Callable[[], Run] | None) -> None:
        """The run ends; `run` loads it if it is finished."""


class Tracker(NoTracker):
    """Logs through a module with `init`, `log` and `finish`.

    Args:
        name: of the module.
        module: the module.
        say: told once if it fails.
    """

    def __init__(self, name: str, module: Any, say: Callable[[str], None]) -> None:
        self._name, self._module, self._say = name, module, say

    def begin(self, manifest: Mapping[str, Any]) -> None:
        """Open a run there, with the whole config, versions and hardware."""
        told = ("config", "config_hash", "treespec_version", "git_hash", "versions", "hardware")
        config = {key: manifest.get(key) for key in told}
        self._call("init", project=PROJECT, name=manifest["name"], config=config)

    def unit(self, rows: Sequence[PromptRow]) -> None:
        """Log a unit in one call."""
        self._call("log", row_figures(rows))

    def end(self, run: Callable[[], Run] | None) -> None:
        """Log the summary of a finished run, and close it there."""
        if run is not None and self._module is not None:
            try:
                figures = summary_figures(run())
            except Exception as error:
                self._fail(error)
            else:
                self._call("log", figures)
        self._call("finish")

    def _call(self, function: str, *arguments: Any, **more: Any) -> None:
        if self._module is None:
            return
        try:
            getattr(self._module, function)(*arguments, **more)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._module = None
        self._say(
            f"{self._name}: {in_words(error, 'its logging')}; nothing more is logged there, the run goes on"
        )


def open_tracker(name: str | None, say: Callable[[str], None]) -> NoTracker:
    """The tracker of this name.

    Args:
        name: of the package; None for no tracker.
        say: told once if it fails while the run goes on.

    Raises:
        ConfigError: if it is not installed.
    """
    if name is None:
        return NoTracker()
    try:
        return Tracker(name, importlib.import_module(name), say)
    except ImportError as error:
        raise ConfigError(
            f"tracker: {name} cannot be imported ({error}): pip install {name}, or remove `tracker`"
        ) from None


def row_figures(rows: Sequence[PromptRow]) -> dict[str, Any]:
    """What is logged of a unit: a few figures for each method, by sampling and name."""
    figures: dict[str, Any] = {}
    for row in rows:
        figures |= {"prompt": row.prompt, "repeat": row.repeat}
        place = f"{row.sampling}/{row.method}"
        if row.error is not None or not row.decode_s or not row.steps:
            figures[f"{place}/failed"] = 1
            continue
        figures[f"{place}/tokens_per_second"] = row.new_tokens / row.decode_s
        figures[f"{place}/tokens_per_step"] = row.new_tokens / row.steps
    return figures


def summary_figures(run: Run) -> dict[str, float]:
    """What is logged at the end: the speedups and tokens per step of the table, with their bounds."""
    figures: dict[str, float] = {}
    for summary in run.summaries:
        for row in summary.rows:
            place = f"summary/{summary.sampling}/{row.method.name}"
            for name, value in (
                ("speedup", row.speedup),
                ("tokens_per_step", row.tokens_per_step),
                ("tokens_per_second", row.tokens_per_second),
            ):
                if value is not None:
                    figures[f"{place}/{name}"] = value.estimate
                if value is not None and value.bounded:
                    figures[f"{place}/{name}_low"] = value.low
                    figures[f"{place}/{name}_high"] = value.high
    return figures
