"""Run an experiment, with or without a search: this is the `run` that commands and notebooks call."""

from functools import partial

from treespec.experiments.run import dry_run as dry
from treespec.experiments.run import runner
from treespec.experiments.run.session import Searching
from treespec.experiments.search_then_run.measured import measure
from treespec.experiments.search_then_run.resolve import resolve

__all__ = ["dry_run", "run"]

_SEARCHING = Searching(measure, resolve)

run = partial(runner.run, searching=_SEARCHING)
"""`run.runner.run`, which knows nothing of searches, with all that a search takes."""

dry_run = partial(dry.dry_run, searching=_SEARCHING)
"""`run.dry_run.dry_run`, likewise."""
