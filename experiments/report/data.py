"""The results of a run as plain data, for `treespec report --json`."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from treespec.experiments.report.acceptance import source_data
from treespec.experiments.report.run import Run
from treespec.experiments.report.summary import MethodSummary, SamplingSummary
from treespec.experiments.report.times import resolution
from treespec.search.intervals import Interval


def report_data(run: Run, report: Path | None) -> dict[str, Any]:
    return {
        "folder": run.folder,
        "name": run.manifest["name"],
        "finished": run.manifest.get("finished"),
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
        "comparisons": [
            {
                "left": duel.left,
                "right": duel.right,
                "ratio": duel.ratio,
                "prompts": duel.prompts,
                "winner": None if duel.winner is None else duel.winner.family,
            }
            for duel in run.comparisons[summary.sampling]
        ],
        "methods": [_method(row, summary.sampling) for row in summary.rows],
        "sources": source_data(run.by_source, summary.sampling),
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


def interval_columns(name: str, value: Interval | None) -> dict[str, float | None]:
    if value is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    bounds = (value.low, value.high) if value.bounded else (None, None)
    return {name: value.estimate, f"{name}_low": bounds[0], f"{name}_high": bounds[1]}
