"""Log the rows of a run to a tracker as well: trackio, or wandb, which has the same calls. Off by default.

The run's folder stays the record: a tracker that fails is not used for the rest of the run.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treespec.errors import in_words
from treespec.experiments.errors import ConfigError
from treespec.experiments.records.rows import PromptRow
from treespec.experiments.report.run import Run
from treespec.experiments.report.table import interval_columns

PROJECT = "treespec"
"""The tracker's project that runs are logged to."""


class Tracker:
    """Logs through a module with the functions `init`, `log` and `finish`.

    Args:
        name: the module's name.
        module: the module; None logs nothing.
        say: receives one message if the module fails.
    """

    def __init__(self, name: str | None, module: Any, say: Callable[[str], None]) -> None:
        self._name, self._module, self._say = name, module, say

    def begin(self, manifest: Mapping[str, Any]) -> None:
        """Open a run in the tracker, with the whole config, versions and hardware."""
        keys = ("config", "config_hash", "treespec_version", "git_hash", "versions", "hardware")
        config = {key: manifest.get(key) for key in keys}
        self._call("init", project=PROJECT, name=manifest.get("name"), config=config)

    def unit(self, rows: Sequence[PromptRow]) -> None:
        self._call("log", row_figures(rows))

    def end(self, run: Callable[[], Run] | None) -> None:
        """Log the summary of a finished run, and close the tracker's run.

        Args:
            run: loads the run; None if it is not finished.
        """
        if run is not None and self._module is not None:
            try:
                figures = summary_figures(run())
            except Exception as error:
                self._fail(error)
            else:
                self._call("log", figures)
        self._call("finish")

    def _call(self, function: str, *arguments: Any, **keywords: Any) -> None:
        if self._module is None:
            return
        try:
            getattr(self._module, function)(*arguments, **keywords)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._module = None
        self._say(
            f"{self._name}: {in_words(error, 'its logging')}; the run continues without this tracker"
        )


def open_tracker(name: str | None, say: Callable[[str], None]) -> Tracker:
    """Import the tracker of this name.

    Args:
        name: the package's name; None for no tracker.
        say: receives one message if the tracker fails during the run, which continues.

    Raises:
        ConfigError: if the package cannot be imported.
    """
    try:
        return Tracker(name, name and importlib.import_module(name), say)
    except ImportError as error:
        raise ConfigError(
            f"tracker: {name} cannot be imported ({error}): pip install {name}, or remove `tracker`"
        ) from None


def row_figures(rows: Sequence[PromptRow]) -> dict[str, Any]:
    """The figures logged for a unit: speed and tokens per step, keyed by sampling setting and method."""
    figures: dict[str, Any] = {}
    for row in rows:
        figures |= {"prompt": row.prompt, "repeat": row.repeat}
        prefix = f"{row.sampling}/{row.method}"
        if row.error is not None or not row.decode_s or not row.steps:
            figures[f"{prefix}/failed"] = 1
            continue
        figures[f"{prefix}/tokens_per_second"] = row.new_tokens / row.decode_s
        figures[f"{prefix}/tokens_per_step"] = row.new_tokens / row.steps
    return figures


def summary_figures(run: Run) -> dict[str, float]:
    """The figures logged at the end: speedups, tokens per step and per second, with their intervals."""
    figures: dict[str, float] = {}
    for summary in run.summaries:
        for row in summary.rows:
            prefix = f"summary/{summary.sampling}/{row.method.name}"
            columns = {
                **interval_columns("speedup", row.speedup),
                **interval_columns("tokens_per_step", row.tokens_per_step),
                **interval_columns("tokens_per_second", row.tokens_per_second),
            }
            figures |= {f"{prefix}/{k}": value for k, value in columns.items() if value is not None}
    return figures
