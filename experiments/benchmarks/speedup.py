"""How much faster than plain decoding, and how much tokens per step and the verify cost would allow.

    python -m treespec.experiments.benchmarks.speedup [KEY=VALUE ...]

Runs `experiments/configs/speed.yaml` (temperature 0, target grown to 100M parameters): plain `generate`,
assisted generation tuned over lengths and thresholds, our chains and trees, on the same prompts. Then
measures the cost of a pass over N nodes, v(N), and of a draft level, and sets the measured speed beside

    allowed = tokens per step / (v(N) + draft passes / target pass)

that is, beside a loop that costs nothing but the models. Prints ratios, explains the distance.
"""

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from treespec import TreeShape
from treespec.experiments.benchmarks.results_file import save
from treespec.experiments.benchmarks.timing import in_turns, seconds_of
from treespec.experiments.config.file import load_config
from treespec.experiments.records.machine_load import LoadWatch, busy_sentence
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.report.summary import MethodSummary
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.report.terminal import print_table, say
from treespec.experiments.report.text import print_results
from treespec.experiments.run.models import load_models
from treespec.experiments.search_then_run.run import run
from treespec.models.transformers_model import TransformersModel

SIZES = (1, 2, 4, 8, 12, 16, 24, 32)
PREFIX, REPEATS = 160, 9
DRAFT_SIZES = SIZES[:4]

COLUMNS = (
    keyed("tree", "tree", left=True),
    keyed("nodes", "nodes"),
    keyed("tokens/step", "tokens", ".2f"),
    keyed("v(N)", "verify", ".2f"),
    keyed("draft", "draft", ".2f"),
    keyed("allowed", "allowed", ".2f"),
    keyed("measured", "measured", ".2f"),
    keyed("measured/allowed", "share", ".2f"),
)


def pass_ms(model: TransformersModel, sizes: Sequence[int]) -> dict[str, float]:
    """Milliseconds of a pass over a root and its children, by nodes; medians over rounds."""
    model.prefill(torch.arange(PREFIX) + 100)

    def measured(size: int) -> float:
        tokens, parents = torch.arange(size) + 500, (-1, *[0] * (size - 1))
        seconds = seconds_of(lambda: model.run(tokens, parents))
        model.keep([])
        return seconds

    seconds = in_turns({size: partial(measured, size) for size in sizes}, REPEATS)
    return {str(size): 1e3 * statistics.median(spent) for size, spent in seconds.items()}


def explained(
    rows: Sequence[MethodSummary], baseline_ms: float, costs: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Measured against allowed, for each tree.

    Args:
        rows: of all methods.
        baseline_ms: of a step of plain decoding.
        costs: milliseconds of passes, as `pass_ms` gives them.
    """
    passes, explanations = costs["target_pass_ms"], []
    one = passes["1"]
    for row in rows:
        if row.method.parents is None or row.speedup is None:
            continue
        shape, tokens = TreeShape(row.method.parents), row.tokens_per_step.estimate
        verify = passes[str(shape.size)] / one
        draft = shape.depth * costs["draft_pass_ms"]["4"] / one
        allowed = tokens / (verify + draft) * baseline_ms / one
        measured = row.speedup.estimate
        explanations.append(
            {
                "tree": row.method.name, "nodes": shape.size, "tokens": tokens, "verify": verify,
                "draft": draft, "allowed": allowed, "measured": measured, "share": measured / allowed,
            }
        )  # fmt: skip
    return explanations


def report(loaded: Run, console: Console) -> dict[str, Any]:
    """The ratios that are claimed."""
    (summary,) = loaded.summaries
    rows = {row.method.name: row for row in summary.rows}
    ours = max((r for r in rows.values() if r.method.kind == "tree"), key=_rate)
    assisted = next(r for r in rows.values() if r.method.kind == "assisted")
    generate = next(r for r in rows.values() if r.method.kind == "generate")
    figures: dict[str, Any] = {
        "tokens_per_second": {name: _rate(row) for name, row in rows.items()},
        "tokens_per_step": {name: row.tokens_per_step.estimate for name, row in rows.items()},
        "best_of_ours": ours.method.name,
        "over_generate": _rate(ours) / _rate(generate),
        "over_assisted": _rate(ours) / _rate(assisted),
        "assisted_over_generate": _rate(assisted) / _rate(generate),
        "tuning": loaded.manifest["tuning"],
        "busy_percent": loaded.manifest["sessions"][-1].get("busy_percent"),
    }
    say(
        console,
        f"best of ours ({ours.method.name}): {figures['over_generate']:.2f} x generate, "
        f"{figures['over_assisted']:.2f} x tuned assisted generation "
        f"(which is {figures['assisted_over_generate']:.2f} x generate); "
        "chosen and measured on the same prompts",
    )
    return figures


def _rate(row: MethodSummary) -> float:
    return row.tokens_per_second.estimate


def main(
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE")] = None,
) -> None:
    """Run the config `speed`, measure the cost of passes, print how the two fit and save both."""
    console = Console(width=120)
    config = load_config("speed", overrides or [])
    with tempfile.TemporaryDirectory() as folder:
        result = run(config, folder=Path(folder) / "run", console=Console(stderr=True))
        loaded = load_run(result.folder)
        print_results(loaded, console)
        figures = report(loaded, console)
        (summary,) = loaded.summaries
    with console.status("measuring the cost of a pass ..."):
        pair, load = load_models(config.models), LoadWatch()
        drafted = {len(row.method.parents) for row in summary.rows if row.method.parents}
        costs = {
            "target_pass_ms": pass_ms(pair.target, sorted({*SIZES, *drafted})),
            "draft_pass_ms": pass_ms(pair.draft, DRAFT_SIZES),
            "prefix": PREFIX,
        }
        busy = load.busy_percent()
    plain = next(row for row in summary.rows if row.method.name == summary.baseline)
    rows = explained(summary.rows, plain.step_ms, costs)
    title = "speed-up over plain decoding: what the models alone would allow, and what was measured"
    print_table(Table(title, COLUMNS, rows), console)
    say(
        console,
        "v(N): time of a target pass over N nodes / over one; draft: passes of the draft in the same unit; "
        "allowed: tokens/step / (v(N) + draft), times what one pass of ours saves over a plain step",
    )
    # Of the load during the run, the report of its results tells.
    if (warning := busy_sentence(busy, "the measurement of v(N)")) is not None:
        say(console, warning)
    path = save("speedup", figures | {"costs": costs | {"busy_percent": busy}})
    say(console, f"written: {path}")


if __name__ == "__main__":
    typer.run(main)
