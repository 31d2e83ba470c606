"""Imported once by the process that all others are forked from: libraries and models are there already.

polars is not: its threads do not survive a fork. Figures are left out of the reports; they take longer than
everything else and are made by matplotlib, after the last row.
"""

from typing import Any

import torch

from treespec import load_pair
from treespec.experiments.measure import searched_run as runs
from treespec.experiments.records import machine_load
from treespec.experiments.report import page as report
from treespec.experiments.run.models import calm_transformers
from treespec.experiments.run.runner import RunResult

torch.set_num_threads(1)  # threads of OpenMP do not survive one either
calm_transformers()
PAIR = load_pair("embedded")
RUNS: Any = runs
REPORT: Any = report
_run = RUNS.run


def _run_on_pair(*arguments: Any, **more: Any) -> RunResult:
    return _run(*arguments, load=lambda models: PAIR, **more)


def _no_figures(*arguments: Any) -> dict[str, Any]:
    return {}


RUNS.run = _run_on_pair
machine_load.WATCH_S = 0.0
REPORT.draw_figures = _no_figures
