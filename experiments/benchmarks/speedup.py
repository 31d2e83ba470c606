"""How much faster than plain decoding, and how much tokens per step and the verify cost would allow.

    python -m treespec.experiments.benchmarks.speedup [KEY=VALUE ...]

Runs `experiments/configs/speed.yaml` (temperature 0, target grown to 100M parameters): plain `generate`,
assisted generation tuned over lengths and thresholds, our chains and trees, on the same prompts. Then
measures the cost of a pass over N nodes, v(N), and of a draft level, and sets the measured speed beside

    allowed = tokens per step / (v(N) + draft passes / target pass)

that is, beside a loop that costs nothing but the models. Prints ratios, explains the distance.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from treespec import TreeShape
from treespec.experiments.benchmarks.results_file import save
from treespec.experiments.config.file import load_config
from treespec.experiments.records.machine_load import LoadWatch, busy_sentence
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.report.summary import MethodSummary
from treespec.experiments.report.text import print_results
from treespec.experiments.run.models import load_models
from treespec.experiments.search_then_run.run import run
from treespec.models.transformers_model import TransformersModel

SIZES = (1, 2, 4, 8, 12, 16, 24, 32)
PREFIX, REPEATS = 160, 9


def median_ms(model: TransformersModel, shapes: list[TreeShape]) -> list[float]:
    """Milliseconds of a pass over each shape, medians over rounds in which they take turns."""
    model.prefill(torch.arange(PREFIX) + 100)
    times: list[list[float]] = [[] for _ in shapes]
    for _ in range(REPEATS + 1):
        for shape, own in zip(shapes, times, strict=True):
            tokens = torch.arange(shape.size) + 500
            start = time.perf_counter()
            model.run(tokens, shape.parents)
            own.append(1e3 * (time.perf_counter() - start))
            model.keep([])
    return [statistics.median(own[1:]) for own in times]


def costs(
    target: TransformersModel, draft: TransformersModel
) -> tuple[Callable[[int], float], Any]:
    """v(N) in milliseconds, interpolated, and the figures behind it with those of a draft level."""
    shapes = [TreeShape.expansion([size - 1]) if size > 1 else TreeShape.chain(0) for size in SIZES]
    passes, levels = median_ms(target, shapes), median_ms(draft, shapes[:4])
    figures = {
        "target_pass_ms": dict(zip(map(str, SIZES), passes, strict=True)),
        "draft_pass_ms": dict(zip(map(str, SIZES), levels, strict=False)),
        "prefix": PREFIX,
    }

    def verify_ms(size: int) -> float:
        right = next(i for i, s in enumerate(SIZES) if s >= size)
        if not right:
            return passes[0]
        share = (size - SIZES[right - 1]) / (SIZES[right] - SIZES[right - 1])
        return passes[right - 1] + share * (passes[right] - passes[right - 1])

    return verify_ms, figures


def explain(
    rows: list[MethodSummary], baseline_ms: float, verify_ms: Any, draft_ms: float
) -> Table:
    """Measured against allowed, for each tree."""
    table = Table(
        "tree", "nodes", "tokens/step", "v(N)", "draft", "allowed", "measured", "measured/allowed"
    )
    table.title = (
        "speed-up over plain decoding: what the models alone would allow, and what was measured"
    )
    for row in rows:
        if row.method.parents is None or row.speedup is None:
            continue
        shape = TreeShape(row.method.parents)
        verify = verify_ms(shape.size) / verify_ms(1)
        draft = shape.depth * draft_ms / verify_ms(1)
        allowed = row.tokens_per_step.estimate / (verify + draft) * baseline_ms / verify_ms(1)
        cells = [row.tokens_per_step.estimate, verify, draft, allowed, row.speedup.estimate,
                 row.speedup.estimate / allowed]  # fmt: skip
        table.add_row(row.method.name, str(shape.size), *(f"{cell:.2f}" for cell in cells))
    return table


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
    console.print(
        f"best of ours ({ours.method.name}): {figures['over_generate']:.2f} x generate, "
        f"{figures['over_assisted']:.2f} x tuned assisted generation "
        f"(which is {figures['assisted_over_generate']:.2f} x generate); "
        "chosen and measured on the same prompts"
    )
    return figures


def _rate(row: MethodSummary) -> float:
    return row.tokens_per_second.estimate


def main() -> None:
    """Measure, print, save."""
    console = Console(width=120)
    config = load_config("speed", sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        result = run(config, folder=Path(folder) / "run", console=Console(stderr=True))
        loaded = load_run(result.folder)
        print_results(loaded, console)
        figures = report(loaded, console)
        (summary,) = loaded.summaries
    with console.status("measuring the cost of a pass ..."):
        pair = load_models(config.models)
        load = LoadWatch()
        verify_ms, figures["costs"] = costs(pair.target, pair.draft)
        figures["costs"]["busy_percent"] = load.busy_percent()
    plain = next(row for row in summary.rows if row.method.name == summary.baseline)
    draft_ms = figures["costs"]["draft_pass_ms"]["4"]
    console.print(explain(list(summary.rows), plain.step_ms, verify_ms, draft_ms))
    console.print(
        "v(N): time of a target pass over N nodes / over one; draft: passes of the draft in the same unit; "
        "allowed: tokens/step / (v(N) + draft), times what one pass of ours saves over a plain step"
    )
    busy = figures["costs"]["busy_percent"]  # of the run, the table has said it
    if (said := busy_sentence(busy, "the measurement of v(N)")) is not None:
        console.print(said)
    console.print(f"written: {save('speedup', figures)}")


if __name__ == "__main__":
    main()
