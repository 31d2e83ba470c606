"""What commands print with `--json`: one object each, with keys that stay.

Every object has a `version`, which changes when a key is removed or changes its meaning; new keys may
come. NaN and infinities are null. Intervals are `{"estimate", "low", "high"}`.

    report, run   folder, name, finished, report, samplings: [{sampling, baseline, prompts, attempted,
                  failed, verdict, comparisons: [{left, right, ratio, prompts, winner}],
                  methods: [{method, kind, group, law, rule, parents, lossless, tokens_per_step,
                  tokens_per_second, speedup, ...}]}]; run also: already_finished, failures
    run --dry-run  folder, name, prompts, samplings, units, finished_units, already_finished, seconds,
                  basis, methods: [{method, sampling, nodes, depth, law, rule, waits_for_search,
                  seconds_per_text}]
    check-lossless  passed, verdict, laws, greedy, config, ...: as in the check.json of --out
    search        shape, expected_tokens, chain, format; with --latency: verdict, rows, ...
    replay        rows: one for each trace and tree
    estimate      see `treespec.experiments.search_then_run.estimate`
    diff          the fields of `treespec.experiments.report.diff.RunDiff`
    sweep         folder, jobs: [{job, state, errors, error, attempts}], rows: of summary.parquet, notes
    configs       configs: [{name, path, about}]; of one config: path, config
    generate      text, ids, tokens, accepted, steps, tokens_per_step, tokens_per_second, prefill_s,
                  method, law, rule, sampling
    doctor        ok, facts, tests, speeds
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treespec.experiments.records.plain_data import plain_data

if TYPE_CHECKING:
    from treespec.experiments.records.rows import PromptRow

__all__ = ["VERSION", "json_text", "run_data", "search_data"]

VERSION = 1


def json_text(data: Mapping[str, Any]) -> str:
    """The object as text, its version first."""
    return json.dumps({"version": VERSION} | plain_data(data), indent=1, ensure_ascii=False)


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
