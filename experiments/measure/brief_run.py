"""Runs that are needed for their figures only, in temporary folders."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from treespec.experiments.config.schema import Config
from treespec.experiments.measure.searched_run import run
from treespec.experiments.report.run import Run, load_run


@contextmanager
def brief_run(config: Config, **options: Any) -> Iterator[Run]:
    """Run a config in a folder that exists until the context is left."""
    with TemporaryDirectory() as folder:
        yield load_run(run(config, folder=Path(folder) / "run", **options).folder)
