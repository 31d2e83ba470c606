"""Runs whose figures are wanted and whose records are not."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from treespec.experiments.config.schema import Config
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.search_then_run.run import run

__all__ = ["brief_run"]


@contextmanager
def brief_run(config: Config, **options: Any) -> Iterator[Run]:
    """The run of a config, whose folder is there until the context is left.

    Args:
        config: of the run.
        options: more arguments of `run`.
    """
    with TemporaryDirectory() as folder:
        yield load_run(run(config, folder=Path(folder) / "run", **options).folder)
