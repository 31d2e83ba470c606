"""What commands print with `--json`: one object each, with keys that stay.

Every object has a `version`, which changes when a key is removed or changes its meaning; new keys may
come. NaN and infinities are null. Intervals are `{"estimate", "low", "high"}`.

    report, run   folder, name, finished, report, samplings: [{sampling, baseline, prompts, attempted,
                  failed, verdict, comparisons: [{left, right, ratio, prompts, winner}],
                  methods: [{method, kind, group, law, rule, parents, lossless, tokens_per_step,
                  tokens_per_second, speedup, ...}]}]; run also: already_finished, failures
    check-lossless  passed, verdict, laws, greedy, config, ...: as in the check.json of --out
    search        shape, expected_tokens, chain, format; with --latency: verdict, rows, ...
    replay        rows: one for each trace and tree
    estimate      see `treespec.experiments.search_then_run.estimate`
    diff          the fields of `treespec.experiments.report.diff.RunDiff`
    sweep         folder, jobs: [{job, state, errors, error, attempts}], rows: of summary.parquet, notes
    configs       configs: [{name, path, about}]
    doctor        ok, facts, tests, speeds
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treespec.experiments.records.rows import PromptRow
    from treespec.experiments.report.summary import MethodSummary, SamplingSummary
    from treespec.experiments.report.verdict import Comparison

__all__ = ["VERSION", "json_text", "plain_data", "report_data", "run_data", "search_data"]

VERSION = 1


def json_text(data: Mapping[str, Any]) -> str:
    """The object as text, its version first."""
    return json.dumps({"version": VERSION} | plain_data(data), indent=1, ensure_ascii=False)


def plain_data(value: Any) -> Any:
    """Mappings, lists, numbers and text: what JSON knows, NaN and infinities as null.

    Example:
        >>> plain_data({"a": (1.5, float("nan")), "b": Path("x")})
        {'a': [1.5, None], 'b': 'x'}
    """
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        return float(value) if isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_data(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "_asdict"):
        return plain_data(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): plain_data(own) for key, own in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_data(own) for own in value]
    if hasattr(value, "tolist"):  # of numpy
        return plain_data(value.tolist())
    return str(value)


def report_data(folder: Path, report: Path | None) -> dict[str, Any]:
    """The table of a run, with its verdicts and the comparisons behind them.

    Args:
        folder: of the run.
        report: the HTML that was written; None if it was not.

    Raises:
        RunFolderError: see `treespec.experiments.report.run.load_run`.
    """
    from treespec.experiments.report.measurements import measure
    from treespec.experiments.report.run import load_run
    from treespec.experiments.report.summary import summarise
    from treespec.experiments.report.verdict import comparisons, sentences

    run = load_run(folder)
    verdicts = sentences(run)
    return {
        "folder": folder,
        "name": run.manifest["name"],
        "finished": run.manifest.get("finished"),
        "report": report,
        "samplings": [
            _sampling(own, verdicts[own.sampling], comparisons(measure(run, own.sampling)))
            for own in summarise(run)
        ],
    }


def run_data(
    report: Mapping[str, Any], already_finished: bool, failures: Sequence["PromptRow"]
) -> dict[str, Any]:
    """What `treespec run --json` prints: the report, and what the run adds to it."""
    columns = ("prompt", "sampling", "method", "error")
    return {
        **report,
        "already_finished": already_finished,
        "failures": [{name: getattr(row, name) for name in columns} for row in failures],
    }


def search_data(
    rates: str,
    size: int,
    depth: int | None,
    branching: int | None,
    form: str,
) -> dict[str, Any]:
    """The best tree of a size for acceptance rates, its worth beside a chain's, and a format's words.

    Args:
        rates: see `treespec.experiments.search_then_run.commands.acceptance_of`.
        size: nodes, the root included.
        depth: the most edges.
        branching: the most children of a node.
        form: the format.
    """
    import numpy as np

    from treespec.experiments.search_then_run.commands import acceptance_of
    from treespec.search import AcceptanceEstimate, expected_tokens, formats, optimal_tree
    from treespec.shape import TreeShape

    given = acceptance_of(rates)
    acceptance = given.rates if isinstance(given, AcceptanceEstimate) else given
    shape = optimal_tree(acceptance, size, depth=depth, branching=branching)
    chain, table = TreeShape.chain(min(size - 1, depth or size - 1)), np.asarray(acceptance)
    covered = table.ndim == 1 or len(table) >= chain.depth
    made = formats.dump(shape, form)
    text = made.content if isinstance(made.content, str) else None
    return {
        "shape": {"parents": shape.parents, "size": shape.size, "depth": shape.depth},
        "expected_tokens": expected_tokens(shape, acceptance),
        "chain": {
            "size": chain.size,
            "expected_tokens": expected_tokens(chain, acceptance) if covered else None,
        },
        "format": {
            "name": form,
            "content": text,
            "counts_root": made.counts_root,
            "lost": made.lost,
            "notes": made.notes,
        },
    }


def _sampling(
    summary: "SamplingSummary", verdict: Sequence[str], duels: Sequence["Comparison"]
) -> dict[str, Any]:
    return {
        "sampling": summary.sampling,
        "baseline": summary.baseline,
        "prompts": summary.prompts,
        "attempted": summary.attempted,
        "failed": summary.failed,
        "verdict": list(verdict),
        "comparisons": [
            {
                "left": duel.left,
                "right": duel.right,
                "ratio": duel.ratio,
                "prompts": duel.prompts,
                "winner": None if duel.winner is None else duel.winner.family,
            }
            for duel in duels
        ],
        "methods": [_method(row, summary.sampling) for row in summary.rows],
    }


def _method(row: "MethodSummary", sampling: str) -> dict[str, Any]:
    """One row of the table: its method under this setting, then everything measured."""
    own = row.method
    described = {
        "method": own.name,
        "kind": own.kind,
        "group": own.group,
        "law": own.law.get(sampling),
        "rule": own.rule.get(sampling),
        "parents": own.parents,
        "lossless": own.lossless,
    }
    return described | {name: value for name, value in _fields(row).items() if name != "method"}


def _fields(row: "MethodSummary") -> dict[str, Any]:
    return {field.name: getattr(row, field.name) for field in fields(row)}
