"""The `run` that commands and notebooks call: run an experiment, with or without a search."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from treespec.experiments.config.schema import Config
from treespec.experiments.measure.before_run import measure
from treespec.experiments.measure.resolve import resolve
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.run import dry_run as dry
from treespec.experiments.run import runner
from treespec.experiments.run.session import Searching

__all__ = ["brief_run", "dry_run", "run"]

SEARCHING = Searching(measure, resolve)

run = partial(runner.run, searching=SEARCHING)
"""`run.runner.run`, which knows nothing about searches, with the functions that a search needs."""

dry_run = partial(dry.dry_run, searching=SEARCHING)
"""`run.dry_run.dry_run` with the same functions."""


@contextmanager
def brief_run(config: Config, **options: Any) -> Iterator[Run]:
    """Run a config for its figures only, in a folder that exists until the context is left."""
    with TemporaryDirectory() as folder:
        yield load_run(run(config, folder=Path(folder) / "run", **options).folder)
