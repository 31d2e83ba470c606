"""What commands print with `--json`: one object each, with stable keys.

Every object has a `version`, which changes if a key is removed or changes its meaning; new keys may be
added without a new version. NaN and infinities are null. Intervals are `{"estimate", "low", "high"}`.

    report, run   folder, name, finished, report, samplings: [{sampling, baseline, prompts, attempted,
                  failed, verdict, comparisons: [{left, right, ratio, prompts, winner}],
                  methods: [{method, kind, group, law, rule, parents, lossless, tokens_per_step,
                  tokens_per_second, speedup, ...}]}]; run also: already_finished, failures
    run --dry-run  folder, name, prompts, samplings, units, until, finished_units, already_finished,
                  seconds, basis, methods: [{method, sampling, nodes, depth, law, rule, waits_for_search,
                  seconds_per_text}]
    check-lossless  passed, verdict, laws, greedy, config, ...: as in the check.json of --out
    search        shape, expected_tokens, chain, format; with --latency: verdict, rows, ...
    replay        rows: one for each trace and tree
    estimate      see `treespec.experiments.measure.estimate`
    diff          the fields of `treespec.experiments.report.diff.RunDiff`
    sweep         folder, jobs: [{job, state, errors, error, attempts}], rows: of summary.parquet, notes
    configs       configs: [{name, path, about}]; of one config: path, config
    generate      text, ids, tokens, accepted, steps, tokens_per_step, tokens_per_second, prefill_s,
                  method, law, rule, sampling
    datastore     file, bytes, texts, tokens, vocab_size, tokenizer, sorted_by
    doctor        ok, facts, tests, speeds, said
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treespec.experiments.records.plain_data import plain_data

if TYPE_CHECKING:
    from treespec.experiments.records.rows import PromptRow


VERSION = 1


def json_text(data: Mapping[str, Any]) -> str:
    return json.dumps({"version": VERSION} | plain_data(data), indent=1, ensure_ascii=False)


def run_data(
    report: Mapping[str, Any], already_finished: bool, failures: Sequence["PromptRow"]
) -> dict[str, Any]:
    columns = ("prompt", "sampling", "method", "error")
    return {
        **report,
        "already_finished": already_finished,
        "failures": [{name: getattr(row, name) for name in columns} for row in failures],
    }
