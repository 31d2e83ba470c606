"""A run and the results computed from its records; each is computed at first use and cached."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report import details
from treespec.experiments.report.acceptance import (
    NodeAcceptance,
    SourceLevel,
    acceptance_finding,
    count_all,
    source_finding,
    sources_of,
)
from treespec.experiments.report.budgets import Budget, budget_finding, budgets
from treespec.experiments.report.categories import Category, categories, category_finding
from treespec.experiments.report.explanation import (
    Explanation,
    explanation_finding,
    explanation_table,
    explanations,
)
from treespec.experiments.report.html import render
from treespec.experiments.report.measurements import Measurements, measure
from treespec.experiments.report.meters import Metered, meter_finding, metered
from treespec.experiments.report.prediction import (
    Choice,
    Prediction,
    Unpredicted,
    chosen,
    prediction_finding,
    predictions,
)
from treespec.experiments.report.prompt_speedups import PromptSpeedups, prompt_speedups
from treespec.experiments.report.results import (
    COMPACT_COLUMNS,
    hardware_line,
    result_table,
    speedup_finding,
)
from treespec.experiments.report.scaling import Point, scaling
from treespec.experiments.report.summary import (
    SamplingSummary,
    accepted_shares,
    idle_shares,
    summarise,
)
from treespec.experiments.report.table import Finding, Table
from treespec.experiments.report.times import Times, times, times_finding
from treespec.experiments.report.verdict import (
    Comparison,
    comparison_finding,
    comparisons,
    sentences,
)
from treespec.search.intervals import Interval

__all__ = ["Run", "load_run"]


@dataclass(frozen=True, eq=False)
class Run(RunRecords):
    """The records of a run and the results computed from them, by sampling setting."""

    @cached_property
    def measurements(self) -> dict[str, Measurements]:
        return {sampling: measure(self, sampling) for sampling in self.samplings}

    @cached_property
    def summaries(self) -> tuple[SamplingSummary, ...]:
        """The rows of the result table, one summary per sampling setting."""
        return tuple(summarise(self, data) for data in self.measurements.values())

    @cached_property
    def verdicts(self) -> dict[str, list[str]]:
        return sentences(self, self.measurements)

    @cached_property
    def comparisons(self) -> dict[str, list[Comparison]]:
        return {sampling: comparisons(data) for sampling, data in self.measurements.items()}

    @cached_property
    def budgets(self) -> list[Budget]:
        return [row for data in self.measurements.values() for row in budgets(self, data)]

    @cached_property
    def categories(self) -> list[Category]:
        return [row for data in self.measurements.values() for row in categories(self, data)]

    @cached_property
    def explanations(self) -> dict[str, list[Explanation]]:
        return {sampling: explanations(data) for sampling, data in self.measurements.items()}

    @cached_property
    def explanation_tables(self) -> dict[str, Table]:
        return {
            sampling: explanation_table(rows, self.measurements[sampling])
            for sampling, rows in self.explanations.items()
            if rows
        }

    @cached_property
    def acceptance(self) -> dict[tuple[str, str], NodeAcceptance]:
        return count_all(self)

    @cached_property
    def by_source(self) -> list[SourceLevel]:
        return sources_of(self)

    @cached_property
    def accepted_shares(self) -> dict[str, dict[str, NDArray[np.float64]]]:
        return {s: accepted_shares(self, data) for s, data in self.measurements.items()}

    @cached_property
    def idle_shares(self) -> dict[str, dict[str, Interval]]:
        return {sampling: idle_shares(self, data) for sampling, data in self.measurements.items()}

    @cached_property
    def scaling(self) -> dict[str, dict[str, list[Point]]]:
        return {sampling: scaling(data) for sampling, data in self.measurements.items()}

    @cached_property
    def prompt_speedups(self) -> dict[str, PromptSpeedups]:
        return {
            sampling: speedups
            for sampling, data in self.measurements.items()
            if (speedups := prompt_speedups(data)) is not None
        }

    @cached_property
    def metered(self) -> dict[str, list[Metered]]:
        return {sampling: metered(self, data) for sampling, data in self.measurements.items()}

    @cached_property
    def times(self) -> dict[str, list[Times]]:
        return {sampling: times(self, data) for sampling, data in self.measurements.items()}

    @cached_property
    def _predicted(self) -> tuple[list[Prediction], list[Unpredicted]]:
        return predictions(self, self.measurements)

    @property
    def predictions(self) -> list[Prediction]:
        return self._predicted[0]

    @property
    def unpredicted(self) -> list[Unpredicted]:
        return self._predicted[1]

    @cached_property
    def choices(self) -> dict[str, Choice | None]:
        return {sampling: chosen(self, data) for sampling, data in self.measurements.items()}

    @cached_property
    def findings(self) -> dict[str, Finding | None]:
        """The tabular sections of the report, by name; None where the run has no data for one.

        Raises:
            RunFolderError, InvalidTrace, InvalidLatency: if a file is damaged.
        """
        return {
            "comparisons": comparison_finding(self.comparisons),
            "budgets": budget_finding(self.budgets),
            "categories": category_finding(self.categories),
            "explanations": explanation_finding(self.explanation_tables),
            "acceptance": acceptance_finding(self.methods, self.acceptance),
            "sources": source_finding(self.by_source),
            "predictions": prediction_finding(self.predictions, self.choices, self.unpredicted),
            "speedups": speedup_finding(self.summaries),
            "times": times_finding(self.times, self.measurements),
            "meters": meter_finding(self, self.metered),
            "equality": details.equality(self.summaries, self.target_dtype),
            "tuning": details.tuning(self),
            "errors": details.errors(self),
        }

    def _repr_html_(self) -> str:
        tables = [result_table(summary, COMPACT_COLUMNS) for summary in self.summaries]
        return render("notebook.html", run=self, subtitle=hardware_line(self), tables=tables)


def load_run(folder: Path) -> Run:
    """Load a run for reporting.

    Raises:
        NoFinishedPrompt: if no prompt has finished yet.
        RunFolderError: if the folder is not a run, is damaged, or has a newer schema.
    """
    return Run.load(folder)
