"""Measure the overhead of the decoding loop: time per step outside the forward passes of both models.

    python -m treespec.experiments.research.benchmarks.loop_overhead [SIZE] [DTYPE]

The embedded pair is enlarged (100M parameters by default, bfloat16), and every shape decodes the same
prompts at temperature 0 and 1. Hooks on both modules separate the forward passes from everything around
them: building inputs and masks, moving cache rows, sampling, drawing, accepting, committing. Goal: at most
10 % of a step on a CPU.
"""

import statistics
from collections.abc import Sequence
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from treespec import Sampling, TreeShape, load_pair
from treespec.experiments.measure.timing import Spans, timed_forward, timed_text
from treespec.experiments.records.outcome import STAGES
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.experiments.run.observers import StageTimer
from treespec.experiments.run.prompts import embedded_prompts
from treespec.models.load import Pair

SHAPES = {
    "chain 4": TreeShape.chain(4),
    "4 chains x 3": TreeShape.independent_chains(4, 3),
    "2-ary 3": TreeShape.kary(2, 3),
    "expansion 3x2x1x1": TreeShape.expansion([3, 2, 1, 1]),
    "expansion 4x3x2x1": TreeShape.expansion([4, 3, 2, 1]),
}
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 4, 128, 48

COLUMNS = (
    keyed("tree", "tree", left=True),
    keyed("T", "temperature", "g"),
    keyed("nodes", "nodes"),
    keyed("step", "step", ".2f"),
    keyed("target\npass", "target forward", ".2f"),
    keyed("draft\npass", "draft forward", ".2f"),
    keyed("draft", "outside_draft_ms", ".2f"),
    keyed("verify", "outside_verify_ms", ".2f"),
    keyed("accept", "accept", ".2f"),
    keyed("commit", "commit", ".2f"),
    keyed("outside", "outside", ".2f"),
    keyed("share", "outside_share", ".1%"),
)


def measure(
    pair: Pair, shape: TreeShape, temperature: float, prompts: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Milliseconds per step, in total and by part; medians over prompts."""
    rows = []
    for i, ids in enumerate(prompts):
        stages = StageTimer()
        target, draft = Spans(), Spans()
        text = timed_text(
            pair, shape, Sampling(temperature), torch.tensor(ids), NEW_TOKENS, seed=i, stages=stages,
            passes=(timed_forward(pair.target.model, target), timed_forward(pair.draft.model, draft)),
        )  # fmt: skip
        target_s, draft_s = (sum(end - start for start, end in spans) for spans in (target, draft))
        if text.later:
            row = {
                "step": text.seconds,
                "target forward": target_s,
                "draft forward": draft_s,
                **{name: sum(stages.seconds[name][1:]) for name in STAGES},
                "outside": text.seconds - target_s - draft_s,
            }
            rows.append({name: 1e3 * seconds / len(text.later) for name, seconds in row.items()})
    ms = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    return {
        "nodes": shape.size,
        "outside_share": statistics.median(row["outside"] / row["step"] for row in rows),
        "ms_per_step": {name: round(value, 4) for name, value in ms.items()},
        "outside_draft_ms": round(ms["draft"] - ms["draft forward"], 4),
        "outside_verify_ms": round(ms["verify"] - ms["target forward"], 4),
    }


def main(
    enlarge: Annotated[str, typer.Argument(help="Parameters of the enlarged target.")] = "100M",
    dtype: Annotated[str, typer.Argument(help="Dtype of both models.")] = "bfloat16",
) -> None:
    """Measure the time of a step outside the models; print and save it."""
    console = Console(width=120)
    with console.status(f"enlarging the embedded target to {enlarge} ..."):
        pair = load_pair("embedded", dtype=dtype, enlarge=enlarge)
    prompts = [p.ids for p in embedded_prompts(pair.tokenizer, PROMPTS, PROMPT_TOKENS)]
    figures, rows = {}, []
    with console.status("measuring ..."):
        for temperature in (0.0, 1.0):
            for name, shape in SHAPES.items():
                measure(pair, shape, temperature, prompts[:1])
                cell = measure(pair, shape, temperature, prompts)
                figures[f"{name}, T={temperature:g}"] = cell
                rows.append(
                    {"tree": name, "temperature": temperature, **cell["ms_per_step"], **cell}
                )
    title = f"milliseconds per step; draft and verify: outside their forward passes ({enlarge}, {dtype})"
    worst = max(row["outside_share"] for row in rows)
    parameters = sum(p.numel() for p in pair.target.model.parameters())
    setting = {"parameters": parameters, "dtype": dtype, "new_tokens": NEW_TOKENS}
    print_and_save(
        "loop_overhead",
        {"setting": setting, "shapes": figures},
        Table(title, COLUMNS, rows),
        f"target of {parameters:,} parameters; largest share outside the models: {worst:.1%}",
        width=120,
    )


if __name__ == "__main__":
    typer.run(main)
