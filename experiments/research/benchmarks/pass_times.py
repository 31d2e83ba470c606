"""Time a pass over a tree: operation by operation, compiled, and compared with reading the weights.

    python -m treespec.experiments.research.benchmarks.pass_times [--size 50M --size 100M] [--rounds 30]

Every verification pass reads every weight once, so no pass is faster than reading as many bytes (the
floor). This reading, eager passes and compiled passes take turns, after a prefix of 192 tokens, in
bfloat16. Goals: a compiled pass of the target takes at most 2.2 times the floor at 1 to 8 nodes; a pass of
the embedded draft, which is one level of drafting, takes at most 0.4 ms up to 22 nodes.

The time of a pass depends on what it finds in the caches of the machine. Over one node, on one core, a pass
of the embedded draft took 0.33 ms right after another one, 0.61 ms after an eager pass of the same model,
and 0.80 ms after a pass of a small target or a pause of 3 ms; in each case the next pass took a quarter to
a half less. Passes that take turns find what the first level of drafting finds, so compiled passes are also
measured right after another pass, as further levels run (*again*).

The second table is the loop of the embedded pair with compiled passes of both models: the time of a whole
level of drafting (growth, tokens, children, tree), at most 0.5 ms, and the time that a step of decoding
spends outside the passes of both models, at most 0.2 ms plus 0.1 ms per level.
"""

import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from treespec import Sampling, TorchCoins, TreeShape, load_pair, verify
from treespec.draft import ModelDrafter
from treespec.experiments.measure.profile.timed_steps import pass_seconds
from treespec.experiments.measure.timing import (
    Spans,
    in_turns,
    seconds_of,
    timed_passes,
    timed_text,
    usual_steps,
)
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save, print_parts
from treespec.experiments.run.models import passes_data
from treespec.experiments.run.prompts import embedded_prompts
from treespec.kernels.packed_linear import BLOCK, kernel_call
from treespec.models.load import Pair
from treespec.models.passes.choosing_passes import choose_passes
from treespec.models.passes.packed_layers import large_pages
from treespec.models.transformers_model import TransformersModel
from treespec.target import ModelTarget

NODES = (1, 2, 4, 8, 16, 22, 32, 64)
PREFIX = 192
DTYPE = "bfloat16"
SIZES, ROUNDS = ("50M", "100M"), 30
READ_WIDTH = 1024
FEW_NODES, TARGET_GOAL = 8, 2.2
DRAFT_NODES, DRAFT_GOAL, LEVEL_GOAL = 22, 0.4, 0.5
STEP_GOAL, OUTSIDE_LEVEL_GOAL = 0.2, 0.1
SHAPES = {
    "chain 4": TreeShape.chain(4),
    "expansion 2x1x1x1": TreeShape.expansion([2, 1, 1, 1]),
    "expansion 3x2x1x1": TreeShape.expansion([3, 2, 1, 1]),
}


def reading(size: int) -> Callable[[], float]:
    """A function that reads about `size` bytes as compiled passes read weights, and returns the seconds.

    It multiplies the bytes, as a matrix of weights, by one row. PyTorch's `sum` reached 0.55 (pages of 4
    KiB) and 0.9 of its speed.
    """
    outputs = max(size // (2 * READ_WIDTH), BLOCK) // BLOCK * BLOCK
    matrix = large_pages(2 * READ_WIDTH * outputs).view(torch.bfloat16).zero_()
    packed, row = matrix.view(-1, READ_WIDTH // 2, BLOCK, 2), torch.zeros(1, READ_WIDTH).bfloat16()
    call = kernel_call(row.new_empty(1, outputs), row, packed, None)  # without Python inside
    return lambda: seconds_of(call)


def ternary(nodes: int) -> tuple[int, ...]:
    """Parents of a tree in which every node has three children, as far as the nodes last."""
    return tuple((node - 1) // 3 if node else -1 for node in range(nodes))


def measure(
    ordinary: TransformersModel, compiled: TransformersModel, rounds: int, size: int
) -> list[dict[str, Any]]:
    """Median milliseconds of eager and compiled passes, for each number of nodes."""
    models = {"eager": ordinary, "compiled": compiled}
    for model in models.values():
        model.prefill(torch.arange(PREFIX) + 5)

    def timed(model: TransformersModel, nodes: int, before: int = 0) -> float:
        again = (
            pass_seconds(model, nodes, ternary(nodes), first_token=5) for _ in range(before + 1)
        )
        return list(again)[-1]

    ways = {(way, n): partial(timed, model, n) for way, model in models.items() for n in NODES}
    ways |= {("again", n): partial(timed, compiled, n, before=1) for n in NODES}
    ways["floor", 0] = reading(size)
    ms = {
        key: 1e3 * statistics.median(spent)
        for key, spent in in_turns(ways, rounds, warm_up=3, title="passes").items()
    }
    floor_ms = ms["floor", 0]
    return [
        {
            "nodes": n,
            "eager_ms": round(ms["eager", n], 3),
            "compiled_ms": round(ms["compiled", n], 3),
            "again_ms": round(ms["again", n], 3),
            "eager_over_compiled": round(ms["eager", n] / ms["compiled", n], 2),
            "floor_ms": round(floor_ms, 3),
            "eager_over_floor": round(ms["eager", n] / floor_ms, 2),
            "compiled_over_floor": round(ms["compiled", n] / floor_ms, 2),
        }
        for n in NODES
    ]


def drafting(pair: Pair, shape: TreeShape, temperature: float, rounds: int) -> float:
    """Median milliseconds of a whole level of drafting."""
    sampling = Sampling(temperature)
    law = verify.usual_law(sampling)
    drafter, coins = ModelDrafter(pair.draft, shape, law, sampling), TorchCoins(0)
    with torch.inference_mode():
        drafter.prefill(torch.arange(PREFIX) + 5)
        spent = []
        for _ in range(10 + 4 * rounds):
            spent.append(seconds_of(lambda: drafter.propose(coins)))
            drafter.model.keep(())
    return 1e3 * statistics.median(spent[10:]) / shape.depth


def outside(pair: Pair, shape: TreeShape, temperature: float, tokens: int) -> float:
    """Milliseconds of a step spent outside the passes of both models; the median over prompts."""
    spans = Spans()
    timed = replace(
        pair, target=timed_passes(pair.target, spans), draft=timed_passes(pair.draft, spans)
    )
    times = []
    for prompt in embedded_prompts(pair.tokenizer, 4, 64):
        ids = torch.tensor(prompt.ids)
        steps = usual_steps(timed, shape, Sampling(temperature), ids, tokens, target=ModelTarget)
        text = timed_text(steps, ids.device)
        in_passes = sum(end - start for start, end in spans if start >= text.start)
        times.append((text.seconds - in_passes) / max(len(text.later), 1))
    return 1e3 * statistics.median(times)


def loop(pair: Pair, eager: Pair, rounds: int, tokens: int) -> list[dict[str, Any]]:
    """Time a level of drafting and the loop outside the passes, for a few trees and two temperatures."""
    return [
        {
            "tree": name,
            "temperature": temperature,
            "levels": shape.depth,
            "eager_level_ms": round(drafting(eager, shape, temperature, rounds), 3),
            "level_ms": round(drafting(pair, shape, temperature, rounds), 3),
            "outside_ms": round(outside(pair, shape, temperature, tokens), 3),
            "outside_goal_ms": round(STEP_GOAL + OUTSIDE_LEVEL_GOAL * shape.depth, 3),
        }
        for temperature, (name, shape) in product((0.0, 1.0), SHAPES.items())
    ]


PASS_COLUMNS = (
    keyed("nodes", "nodes"),
    keyed("eager", "eager_ms", ".2f"),
    keyed("compiled", "compiled_ms", ".2f"),
    keyed("again", "again_ms", ".2f"),
    keyed("ratio", "eager_over_compiled", ".2f"),
    keyed("floor", "floor_ms", ".2f"),
    keyed("eager\nover floor", "eager_over_floor", ".2f"),
    keyed("compiled\nover floor", "compiled_over_floor", ".2f"),
)
LOOP_COLUMNS = (
    keyed("tree", "tree", left=True),
    keyed("T", "temperature", "g"),
    keyed("levels", "levels"),
    keyed("a level,\neager", "eager_level_ms", ".2f"),
    keyed("a level", "level_ms", ".2f"),
    keyed("outside\npasses", "outside_ms", ".2f"),
    keyed("goal", "outside_goal_ms", ".2f"),
)


def verdict(what: str, worst: float, goal: float, unit: str) -> str:
    """A sentence that says whether a goal is met."""
    return (
        f"{what}: at most {worst:.2f}{unit}, goal {goal:g}{unit}: "
        f"{'met' if worst <= goal else 'MISSED'}"
    )


def main(
    size: Annotated[list[str], typer.Option(help="Size of an enlarged target.")] = list(SIZES),  # noqa: B006
    rounds: Annotated[int, typer.Option(min=3, help="Rounds that count.")] = ROUNDS,
    tokens: Annotated[int, typer.Option(min=8, help="New tokens of each text of the loop.")] = 48,
) -> None:
    """Measure passes and the loop around them; print and save the times."""
    console, figures, verdicts = Console(width=110), {}, []
    with console.status("compiling the embedded pair ..."):
        eager = load_pair("embedded", dtype=DTYPE)
        pair = load_pair("embedded", dtype=DTYPE, passes="compiled", draft_passes="compiled")
    for name in ("draft", *size):
        with console.status(f"loading and compiling {name} ..."):
            if name == "draft":
                ordinary, model = eager.draft, pair.draft
                judged, most, goal, unit = "compiled_ms", DRAFT_NODES, DRAFT_GOAL, " ms"
            else:
                judged, most, goal, unit = (
                    "compiled_over_floor", FEW_NODES, TARGET_GOAL, " of the floor"
                )  # fmt: skip
                enlarged = load_pair("embedded", "none", dtype=DTYPE, enlarge=name)
                ordinary, model = enlarged.target.fresh(), enlarged.target
                choose_passes(model, "compiled")
        weights = list(model.model.parameters())
        size_bytes = sum(p.nbytes for p in weights)
        rows = measure(ordinary.fresh(), model.fresh(), rounds, size_bytes)
        read = 1e3 * size_bytes / rows[0]["floor_ms"]
        figures[name] = {
            "parameters": sum(p.numel() for p in weights),
            "read_gb_s": round(read / 1e9, 1),
            "passes": passes_data(model),
            "rows": rows,
        }
        title = (
            f"{name}: milliseconds of a pass after {PREFIX} tokens, {DTYPE}; {read / 1e9:.0f} GB/s"
        )
        print_parts(
            Table(title, PASS_COLUMNS, rows),
            f"compiled in {model.passes.seconds:.0f} s; copies of weights: "
            f"{model.passes.packed_bytes / 2**20:.0f} MiB",
            width=110,
        )
        worst = max(row[judged] for row in rows if row["nodes"] <= most)
        verdicts.append(verdict(f"{name}, up to {most} nodes", worst, goal, unit))
    with console.status("measuring the loop ..."):
        figures["loop"] = rows = loop(pair, eager, rounds, tokens)
    title = f"the embedded pair, {DTYPE}: milliseconds of a level of drafting, and outside passes in a step"
    level_ms = max(row["level_ms"] for row in rows)
    of_goal = max(row["outside_ms"] / row["outside_goal_ms"] for row in rows)
    verdicts += [
        verdict("a level of drafting in the loop", level_ms, LEVEL_GOAL, " ms"),
        verdict("outside the passes", of_goal, 1.0, " of the goal"),
    ]
    setting = {
        "dtype": DTYPE,
        "prefix": PREFIX,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "loop_target": pair.target.passes.kind,
    }
    print_and_save(
        "passes",
        {"setting": setting, **figures, "verdicts": verdicts},
        Table(title, LOOP_COLUMNS, rows),
        *verdicts,
        width=110,
    )


if __name__ == "__main__":
    typer.run(main)
