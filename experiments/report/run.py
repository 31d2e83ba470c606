"""A run and the results computed from its records; each is computed at first use and cached."""

from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report import details
from treespec.experiments.report.acceptance import (
    NodeAcceptance,
    SourceLevel,
    acceptance_finding,
    count_all,
    source_data,
    source_finding,
    sources_of,
)
from treespec.experiments.report.budgets import Budget, Point, budget_finding, budgets, scaling
from treespec.experiments.report.categories import Category, categories, category_finding
from treespec.experiments.report.comparisons import (
    Comparison,
    comparison_finding,
    comparisons,
    to_data,
)
from treespec.experiments.report.explanation import (
    Explanation,
    explanation_finding,
    explanation_table,
    explanations,
)
from treespec.experiments.report.html import render
from treespec.experiments.report.measurements import Measurements, measure
from treespec.experiments.report.meters import meter_finding
from treespec.experiments.report.next_right import next_right_finding, next_rights
from treespec.experiments.report.prediction import (
    Choice,
    Prediction,
    Unpredicted,
    chosen,
    prediction_finding,
    predictions,
)
from treespec.experiments.report.ranking import ranking_finding
from treespec.experiments.report.results import conditions
from treespec.experiments.report.right_shares import NextRight
from treespec.experiments.report.summary import (
    COMPACT_COLUMNS,
    MethodSummary,
    SamplingSummary,
    accepted_shares,
    result_table,
    speedup_finding,
    summarise,
)
from treespec.experiments.report.table import Finding, Table
from treespec.experiments.report.times import resolution, times_finding
from treespec.experiments.report.verdict import sentences

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
        found = sentences(self, self.measurements)
        return {sampling: [self.short(line) for line in lines] for sampling, lines in found.items()}

    @cached_property
    def comparisons(self) -> dict[str, list[Comparison]]:
        return {sampling: comparisons(self, data) for sampling, data in self.measurements.items()}

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
            sampling: explanation_table(rows, self.measurements[sampling]).reworded(self.short)
            for sampling, rows in self.explanations.items()
            if rows
        }

    @cached_property
    def acceptance(self) -> dict[tuple[str, str], NodeAcceptance]:
        return count_all(self)

    @cached_property
    def accepted_shares(self) -> dict[str, dict[str, NDArray[np.float64]]]:
        return {s: accepted_shares(self, data) for s, data in self.measurements.items()}

    @cached_property
    def scaling(self) -> dict[str, dict[str, list[Point]]]:
        return {sampling: scaling(data) for sampling, data in self.measurements.items()}

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
    def sources(self) -> list[SourceLevel]:
        return sources_of(self)

    @cached_property
    def next_right(self) -> dict[tuple[str, str], NextRight]:
        """How often the next token is right, by sampling setting and method."""
        return next_rights(self)

    @cached_property
    def findings(self) -> dict[str, Finding | None]:
        """The tabular sections of the report, by name; None where the run has no data for one.

        Raises:
            RunFolderError, InvalidTrace, InvalidLatency: if a file is damaged.
        """
        found = {
            "comparisons": comparison_finding(self.comparisons),
            "ranking": ranking_finding(self.measurements),
            "budgets": budget_finding(self.budgets),
            "categories": category_finding(self.categories),
            "explanations": explanation_finding(self.explanation_tables),
            "acceptance": acceptance_finding(self.methods, self.acceptance),
            "sources": source_finding(self.sources),
            "next_right": next_right_finding(self, self.next_right),
            "predictions": prediction_finding(self.predictions, self.choices, self.unpredicted),
            "speedups": speedup_finding(self.summaries),
            "times": times_finding(self, self.measurements),
            "meters": meter_finding(self, self.measurements),
            "equality": details.equality(self.summaries, self.target_dtype),
            "tuning": details.tuning(self),
            "errors": details.errors(self),
        }
        return {name: finding and finding.reworded(self.short) for name, finding in found.items()}

    def _repr_html_(self) -> str:
        tables = [result_table(summary, COMPACT_COLUMNS) for summary in self.summaries]
        return render("notebook.html", run=self, subtitle=conditions(self), tables=tables)


def load_run(folder: Path) -> Run:
    """Load a run for reporting.

    Raises:
        NoFinishedPrompt: if no prompt has finished yet.
        RunFolderError: if the folder is not a run, is damaged, or has a newer schema.
    """
    return Run.load(folder)


def report_data(run: Run, report: Path | None) -> dict[str, Any]:
    return {
        "folder": run.folder,
        "name": run.manifest["name"],
        "finished": run.manifest.get("finished"),
        "conditions": conditions(run),
        "report": report,
        "samplings": [_sampling(run, summary) for summary in run.summaries],
    }


def _sampling(run: Run, summary: SamplingSummary) -> dict[str, Any]:
    return {
        "sampling": summary.sampling,
        "baseline": summary.baseline,
        "prompts": summary.prompts,
        "attempted": summary.attempted,
        "failed": summary.failed,
        "verdict": run.verdicts[summary.sampling],
        "resolution": resolution(run.measurements[summary.sampling]),
        "times": run.measurements[summary.sampling].totals_because or "adjusted",
        "comparisons": [to_data(duel) for duel in run.comparisons[summary.sampling]],
        "methods": [_method(row, summary.sampling) for row in summary.rows],
        "sources": source_data(run.sources, summary.sampling),
        "next_right": [
            {"method": method, **found.to_data()}
            for (sampling, method), found in run.next_right.items()
            if sampling == summary.sampling
        ],
    }


def _method(row: MethodSummary, sampling: str) -> dict[str, Any]:
    method = row.method
    described = {
        "method": method.name,
        "kind": method.kind,
        "group": method.group,
        "law": method.law.get(sampling),
        "rule": method.rule.get(sampling),
        "parents": method.parents,
        "lossless": method.lossless,
    }
    names = [field.name for field in fields(row) if field.name != "method"]
    return described | {name: getattr(row, name) for name in names}
