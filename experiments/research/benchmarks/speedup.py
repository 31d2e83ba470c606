"""Measure the speedup over a user's alternatives, and what the passes alone would allow.

    python -m treespec.experiments.research.benchmarks.speedup [KEY=VALUE ...]

Run `experiments/configs/speed.yaml` (temperatures 0 and 1, target enlarged to 100M parameters, compiled
passes of both models): `generate`, our own plain decoding, assisted generation tuned over lengths and
thresholds, and our chains and trees take turns on the same prompts. Then measure how long a pass over N
nodes of each model takes, and compare the measured speed of our best shape with that of a loop whose only
cost is its passes:

    allowed = tokens per step / (target pass over its nodes + draft passes of its levels)

Both are given over the measured speed of each other method. A step is split into the time of verifying more
than one node, the draft passes, and everything outside the passes. The largest part is named, with the
ratio that would be reached without it.
"""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from treespec import TreeShape
from treespec.experiments.config.file import load_config
from treespec.experiments.measure.profile.timed_steps import pass_seconds
from treespec.experiments.measure.searched_run import brief_run
from treespec.experiments.measure.timing import in_turns
from treespec.experiments.records.machine_load import LoadWatch, busy_sentence
from treespec.experiments.report.page import print_results
from treespec.experiments.report.summary import MethodSummary, SamplingSummary
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.experiments.run.models import load_models, passes_data
from treespec.models.transformers_model import TransformersModel

COMPILED = ("models.passes=compiled", "models.draft_passes=compiled")
"""Default overrides."""

PREFIX, REPEATS = 160, 9
OTHERS = {"generate": "generate", "assisted": "tuned assisted", "plain": "our plain decoding"}
GOALS = {"T=0": {"generate": 2.6, "assisted": 1.6, "plain": 2.0}}

COLUMNS = (
    keyed("tree", "tree", left=True),
    keyed("nodes", "nodes"),
    keyed("tokens/step", "tokens", ".2f"),
    keyed("step, ms", "step_ms", ".1f"),
    keyed("one node", "one_ms", ".1f"),
    keyed("further\nnodes", "further_ms", ".1f"),
    keyed("draft\npasses", "draft_ms", ".1f"),
    keyed("outside\npasses", "outside_ms", ".1f"),
    keyed("measured/\nallowed", "share", ".2f"),
)


def pass_ms(model: TransformersModel, sizes: Sequence[int]) -> dict[str, float]:
    """Milliseconds of a pass over a root and its children, by number of nodes; medians over rounds."""
    model.prefill(torch.arange(PREFIX) + 100)

    def measured(size: int) -> float:
        return pass_seconds(model, size, (-1, *[0] * (size - 1)), first_token=500)

    seconds = in_turns({size: partial(measured, size) for size in sizes}, REPEATS)
    return {str(size): 1e3 * statistics.median(spent) for size, spent in seconds.items()}


def drafted_nodes(shape: TreeShape) -> list[int]:
    """Number of nodes of each draft pass: the nodes of each level that get children."""
    inner = [shape.depths[node] for node in shape.internal]
    return [inner.count(depth) for depth in range(shape.depth)]


def explained(
    rows: Sequence[MethodSummary], costs: Mapping[str, Mapping[str, float]]
) -> list[dict[str, Any]]:
    """Split the time of a step into its parts, for each tree."""
    explanations = []
    target, draft = costs["target_pass_ms"], costs["draft_pass_ms"]
    trees = [
        (row, TreeShape(row.method.parents))
        for row in rows
        if row.method.parents is not None and row.method.kind == "tree"
    ]
    for row, shape in trees:
        verify, one_node = target[str(shape.size)], target["1"]
        drafting = sum(draft[str(nodes)] for nodes in drafted_nodes(shape))
        explanations.append(
            {
                "tree": row.method.name,
                "nodes": shape.size,
                "tokens": row.tokens_per_step.estimate,
                "step_ms": row.step_ms,
                "one_ms": one_node,
                "further_ms": verify - one_node,
                "draft_ms": drafting,
                "outside_ms": row.step_ms - verify - drafting,
                "share": (verify + drafting) / row.step_ms,
            }
        )
    return explanations


def compared(summary: SamplingSummary) -> dict[str, Any]:
    """Compare our best shape with each other method, at one sampling setting."""
    rows = {row.method.name: row for row in summary.rows}
    ours = max((row for row in rows.values() if row.method.kind == "tree"), key=_rate)
    of_kind = {row.method.kind: row for row in rows.values()}
    return {
        "tokens_per_second": {name: _rate(row) for name, row in rows.items()},
        "tokens_per_step": {name: row.tokens_per_step.estimate for name, row in rows.items()},
        "best_of_ours": ours.method.name,
        **{
            f"over_{kind}": _rate(ours) / _rate(of_kind[kind]) for kind in OTHERS if kind in of_kind
        },
    }


def sentences(sampling: str, figures: Mapping[str, Any]) -> list[str]:
    """Sentences on the speedups reached, those that passes alone would allow, and the largest part."""
    best = next(row for row in figures["steps"] if row["tree"] == figures["best_of_ours"])
    over = {kind: figures[f"over_{kind}"] for kind in OTHERS if f"over_{kind}" in figures}
    verdicts = {
        kind: f"; goal {goal:g}: {'met' if over[kind] >= goal else 'MISSED'}"
        for kind, goal in GOALS.get(sampling, {}).items()
        if kind in over
    }
    lines = [
        f"{sampling}: {best['tree']} is {ratio:.2f} x {OTHERS[kind]} (its passes alone would allow "
        f"{ratio / best['share']:.2f}){verdicts.get(kind, '')}"
        for kind, ratio in over.items()
    ]
    parts = {
        "verifying further nodes": best["further_ms"],
        "drafting (all its passes)": best["draft_ms"],
        "everything outside the passes": best["outside_ms"],
    }
    most = max(parts, key=lambda part: parts[part])
    faster = best["step_ms"] / (best["step_ms"] - parts[most])
    reached = ", ".join(f"{ratio * faster:.2f} x {OTHERS[kind]}" for kind, ratio in over.items())
    return [
        *lines,
        f"{sampling}: of a step of {best['step_ms']:.1f} ms, {most} takes {parts[most]:.1f} ms, the "
        f"largest part besides a pass over one node; without it: {reached}",
    ]


def _rate(row: MethodSummary) -> float:
    return row.tokens_per_second.estimate


def main(
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE")] = None,
) -> None:
    """Run the config `speed`, measure the cost of passes, compare the two and save both."""
    console = Console(width=120)
    config = load_config("speed", [*COMPILED, *(overrides or [])])
    with brief_run(config, console=Console(stderr=True)) as loaded:
        print_results(loaded, console)
        summaries, manifest = loaded.summaries, loaded.manifest
    shapes = [
        TreeShape(row.method.parents)
        for summary in summaries
        for row in summary.rows
        if row.method.parents is not None
    ]
    with console.status("measuring the cost of a pass ..."):
        pair, load = load_models(config.models), LoadWatch()
        costs = {
            "target_pass_ms": pass_ms(pair.target, sorted({1, *(shape.size for shape in shapes)})),
            "draft_pass_ms": pass_ms(
                pair.draft, sorted({n for shape in shapes for n in drafted_nodes(shape)})
            ),
        }
        busy = load.busy_percent()
    figures = {
        summary.sampling: compared(summary) | {"steps": explained(summary.rows, costs)}
        for summary in summaries
    }
    title = "where the time of a step goes, in milliseconds"
    shown = [
        (Table(f"{name}: {title}", COLUMNS, figure["steps"]), *sentences(name, figure))
        for name, figure in figures.items()
    ]
    # The report of the run's results already warns about load during the run.
    warning = busy_sentence(busy, "the measurement of passes")
    setting = {
        "prefix": PREFIX,
        "prompts": config.prompts.count,
        "passes": {"target": passes_data(pair.target), "draft": passes_data(pair.draft)},
        "tuning": manifest["tuning"],
        "busy_percent": manifest["sessions"][-1].get("busy_percent"),
        "busy_percent_of_passes": busy,
    }
    print_and_save(
        "speedup",
        {"samplings": figures, "costs": costs, "setting": setting},
        *chain.from_iterable(shown),
        "our best shape was chosen and measured on the same prompts",
        *([] if warning is None else [warning]),
        width=120,
    )


if __name__ == "__main__":
    typer.run(main)
