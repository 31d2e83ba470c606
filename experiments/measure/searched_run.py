"""The `run` that commands and notebooks call: run an experiment, with or without a search."""

from functools import partial

from treespec.experiments.measure.before_run import measure
from treespec.experiments.measure.resolve import resolve
from treespec.experiments.run import dry_run as dry
from treespec.experiments.run import runner
from treespec.experiments.run.session import Searching

__all__ = ["dry_run", "run"]

_SEARCHING = Searching(measure, resolve)

run = partial(runner.run, searching=_SEARCHING)
"""`run.runner.run`, which knows nothing about searches, with the functions that a search needs."""

dry_run = partial(dry.dry_run, searching=_SEARCHING)
"""`run.dry_run.dry_run` with the same functions."""
