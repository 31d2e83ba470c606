"""What the loop costs beside the two models: time per step outside their forward passes.

    python -m treespec.experiments.benchmarks.loop_overhead [GROW] [DTYPE]

The embedded pair is grown (100M parameters by default, bfloat16), every shape decodes the same prompts at
temperature 0 and 1, and hooks on both modules separate their forward passes from everything around them:
building inputs and masks, moving cache rows, sampling, drawing, accepting, committing. Goal: at most 10 %
of a step on a CPU.
"""

import statistics
import sys
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, load_pair, verify
from treespec.draft import ModelDrafter
from treespec.experiments.benchmarks.forward_timer import ForwardTimer
from treespec.experiments.benchmarks.results_file import save
from treespec.experiments.config.schema import EmbeddedPrompts
from treespec.experiments.run.observers import StageTimer
from treespec.experiments.run.prompts import encode, read_prompts
from treespec.models.load import Pair
from treespec.target import ModelTarget

SHAPES = {
    "chain 4": TreeShape.chain(4),
    "4 chains x 3": TreeShape.independent_chains(4, 3),
    "2-ary 3": TreeShape.kary(2, 3),
    "expansion 3x2x1x1": TreeShape.expansion([3, 2, 1, 1]),
    "expansion 4x3x2x1": TreeShape.expansion([4, 3, 2, 1]),
}
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 4, 128, 48
STAGES = ("draft", "verify", "accept", "commit")


def measure(
    pair: Pair, shape: TreeShape, temperature: float, prompts: list[list[int]]
) -> dict[str, Any]:
    """Milliseconds per step, in all and by part; medians over prompts."""
    sampling = Sampling(temperature)
    law, rule = (
        (Law.DETERMINISTIC, verify.greedy)
        if sampling.greedy
        else (Law.WITHOUT_REPLACEMENT, verify.rrsw)
    )
    rows = []
    for i, ids in enumerate(prompts):
        timer, steps = StageTimer(), 0
        decoding = decode(
            ModelTarget(pair.target), ModelDrafter(pair.draft, shape, law, sampling), rule,
            torch.tensor(ids), sampling=sampling, coins=TorchCoins(i), max_new_tokens=NEW_TOKENS,
            observer=timer,
        )  # fmt: skip
        next(decoding)  # the prefill and a first step, which grows the cache
        start = time.perf_counter()
        before = {name: len(seconds) for name, seconds in timer.seconds.items()}
        with ForwardTimer(pair.target.model) as target, ForwardTimer(pair.draft.model) as draft:
            for _ in decoding:
                steps += 1
        whole = time.perf_counter() - start
        if steps:
            row = {"step": whole, "target forward": target.seconds, "draft forward": draft.seconds}
            row |= {name: sum(timer.seconds[name][before[name] :]) for name in STAGES}
            rows.append({name: 1e3 * seconds / steps for name, seconds in row.items()})
    ms = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    outside = [row["step"] - row["target forward"] - row["draft forward"] for row in rows]
    ms["outside"] = statistics.median(outside)
    share = statistics.median(o / row["step"] for o, row in zip(outside, rows, strict=True))
    return {
        "nodes": shape.size,
        "outside_share": share,
        "ms_per_step": {name: round(value, 4) for name, value in ms.items()},
        "outside_draft_ms": round(ms["draft"] - ms["draft forward"], 4),
        "outside_verify_ms": round(ms["verify"] - ms["target forward"], 4),
    }


def main() -> None:
    """Measure, print, save."""
    grow, dtype = (*sys.argv[1:], *("100M", "bfloat16")[len(sys.argv) - 1 :])
    console = Console(width=120)
    with console.status(f"growing the embedded target to {grow} ..."):
        pair = load_pair("embedded", dtype=dtype, grow=grow)
    source = EmbeddedPrompts(kind="embedded", count=PROMPTS, tokens=PROMPT_TOKENS)
    encoded = encode(read_prompts(source)[:PROMPTS], source, pair.tokenizer)
    prompts = [list(prompt.ids) for prompt in encoded]
    table = Table("tree", "T", "nodes", "step", "target fwd", "draft fwd", "draft", "verify", "accept",
                  "commit", "outside", "share")  # fmt: skip
    table.title = (
        f"milliseconds per step; draft and verify: outside their forward pass ({grow}, {dtype})"
    )
    figures = {}
    with console.status("measuring ..."):
        for temperature in (0.0, 1.0):
            for name, shape in SHAPES.items():
                measure(pair, shape, temperature, prompts[:1])
                found = figures[f"{name}, T={temperature:g}"] = measure(
                    pair, shape, temperature, prompts
                )
                ms = found["ms_per_step"]
                cells = [ms["step"], ms["target forward"], ms["draft forward"], found["outside_draft_ms"],
                         found["outside_verify_ms"], ms["accept"], ms["commit"], ms["outside"]]  # fmt: skip
                table.add_row(
                    name, f"{temperature:g}", str(shape.size), *(f"{cell:.2f}" for cell in cells),
                    f"{found['outside_share']:.1%}",
                )  # fmt: skip
    console.print(table)
    worst = max(found["outside_share"] for found in figures.values())
    parameters = sum(p.numel() for p in pair.target.model.parameters())
    console.print(
        f"target of {parameters:,} parameters; largest share outside the models: {worst:.1%}"
    )
    setting = {"parameters": parameters, "dtype": dtype, "new_tokens": NEW_TOKENS}
    console.print(f"written: {save('loop_overhead', {'setting': setting, 'shapes': figures})}")


if __name__ == "__main__":
    main()
