"""What RESULTS.md says of costs and speed: paragraphs and tables of a file of `benchmarks`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treespec.experiments.studies.result_tables import Parts, Row, percent, table

__all__ = [
    "attention",
    "costs",
    "heads",
    "overhead",
    "passes",
    "speed_of_search",
    "speedup",
]


def attention(data: Row) -> Parts:
    """Microseconds of a layer's attention in three ways, by dtype."""
    columns: dict[str, Callable[[Row], Any]] = {
        "prefix": lambda row: row["prefix"],
        "nodes": lambda row: row["nodes"],
        "reading keys and values": lambda row: row["floor_us"],
        "`sdpa`": lambda row: row["one_pass_us"],
        "two passes": lambda row: row["two_passes_us"],
        "the kernel": lambda row: row["kernel_us"],
        "two passes over `sdpa`": lambda row: row["two_over_one"],
        "kernel over `sdpa`": lambda row: row["kernel_over_one"],
    }
    setting, rows = data["figures"]["setting"], data["figures"]["rows"]
    heads = f"{setting['heads']} heads of {setting['head_dim']}, {setting['kv_heads']} of keys"
    return {
        dtype: [
            f"**{dtype}**, {heads}, microseconds.",
            table(columns, [row for row in rows if row["dtype"] == dtype]),
        ]
        for dtype in dict.fromkeys(row["dtype"] for row in rows)
    }


def heads(data: Row) -> Parts:
    """Microseconds of a level's draws in both ways."""
    columns: dict[str, Callable[[Row], Any]] = {
        "level": lambda row: row["level"],
        "operation by operation, µs": lambda row: row["tensor_us"],
        "the kernel, µs": lambda row: row["kernel_us"],
        "kernel over operations": lambda row: row["kernel_over_tensor"],
        "different of 100,000 draws": lambda row: row["different"],
    }
    return {"": [table(columns, data["figures"]["rows"])]}


def costs(data: Row) -> Parts:
    """Milliseconds of a verdict by rule, one table for each temperature."""
    figures = data["figures"]
    columns: dict[str, Callable[[Row], Any]] = {
        "rule": lambda row: row["rule"],
        "ms": lambda row: row["ms"],
        "over one softmax of all rows": lambda row: row["of_softmax"],
        "rows read": lambda row: row["rows_visited"],
    }
    return {
        setting: [
            f"**{setting}**: one verdict on a tree of 64 nodes at a vocabulary of {figures['vocab']:,}, "
            f"beside {figures[setting]['softmax_ms']:.1f} ms for the softmax.",
            table(
                columns, [row | {"rule": rule} for rule, row in figures[setting]["rules"].items()]
            ),
        ]
        for setting in figures
        if setting.startswith("T=")
    }


def overhead(data: Row) -> Parts:
    """Milliseconds outside the models, by tree."""
    columns: dict[str, Callable[[Row], Any]] = {
        "tree": lambda row: row["tree"],
        "nodes": lambda row: row["nodes"],
        "step, ms": lambda row: f"{row['ms_per_step']['step']:.1f}",
        "outside the models": lambda row: percent(row["outside_share"], 1),
    }
    shapes = data["figures"]["shapes"]
    return {"": [table(columns, [row | {"tree": tree} for tree, row in shapes.items()])]}


def passes(data: Row) -> Parts:
    """Milliseconds of a pass, eager and compiled, by model; of the loop around it; which goals are met."""
    figures = data["figures"]
    columns: dict[str, Callable[[Row], Any]] = {
        "nodes": lambda row: row["nodes"],
        "eager, ms": lambda row: row["eager_ms"],
        "compiled, ms": lambda row: row["compiled_ms"],
        "eager over compiled": lambda row: row["eager_over_compiled"],
        "compiled over reading the weights": lambda row: row["compiled_over_floor"],
    }
    models = [
        name for name, part in figures.items() if isinstance(part, Mapping) and "rows" in part
    ]
    if all("again_ms" in row for name in models for row in figures[name]["rows"]):
        columns["right behind another, ms"] = lambda row: row["again_ms"]
    prefix = figures["setting"]["prefix"]
    parts = {
        name: [
            f"**{'The draft' if name == 'draft' else f'A target of {name}'}**, behind {prefix} tokens.",
            table(columns, figures[name]["rows"]),
        ]
        for name in models
    }
    return parts | {"loop": _loop(figures), "goals": [_listed(figures["verdicts"])]}


def _loop(figures: Row) -> list[str]:
    """Milliseconds of a level of drafting, and of what a step does outside the passes."""
    columns: dict[str, Callable[[Row], Any]] = {
        "tree": lambda row: row["tree"],
        "temperature": lambda row: f"{row['temperature']:g}",
        "levels": lambda row: row["levels"],
        "a level of an eager draft, ms": lambda row: row["eager_level_ms"],
        "of a compiled draft, ms": lambda row: row["level_ms"],
        "a step outside the passes, ms": lambda row: row["outside_ms"],
        "goal, ms": lambda row: row["outside_goal_ms"],
    }
    kind = figures["setting"].get("loop_target", "eager")
    said = (
        f"**The loop** of the embedded pair, whose target has {kind} passes: a level of drafting with "
        "everything, and what a step spends outside the passes of both models."
    )
    return [said, table(columns, figures["loop"])]


def _listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def speed_of_search(data: Row) -> Parts:
    """Seconds of a search, by size."""
    columns: dict[str, Callable[[Row], Any]] = {
        "search": lambda row: row["search"],
        "nodes": lambda row: row["nodes"],
        "seconds": lambda row: f"{row['s']:.3g}",
        "peak memory, MiB": lambda row: f"{row['peak_mib']:.0f}",
    }
    rows = [
        row | {"search": name, "nodes": nodes}
        for name, sizes in data["figures"].items()
        if name != "beside loops"
        for nodes, row in sizes.items()
    ]
    return {"": [table(columns, rows)]}


def speedup(data: Row) -> Parts:
    """Methods beside what a user would pick instead, and the best of ours in a sentence, by temperature."""
    columns: dict[str, Callable[[Row], Any]] = {
        "method": lambda row: row["method"],
        "tokens per step": lambda row: row["tokens"],
        "tokens per second": lambda row: f"{row['speed']:.1f}",
    }
    others = {
        "generate": "`generate`",
        "assisted": "tuned assisted generation",
        "plain": "our own plain decoding",
    }
    parts: dict[str, Sequence[str]] = {}
    for sampling, figures in data["figures"]["samplings"].items():
        rows = [
            {"method": name, "speed": speed, "tokens": figures["tokens_per_step"][name]}
            for name, speed in figures["tokens_per_second"].items()
        ]
        over = [
            f"{figures[f'over_{kind}']:.2f} times as fast as {name}"
            for kind, name in others.items()
            if f"over_{kind}" in figures
        ]
        said = [f"The best of ours ({figures['best_of_ours']}) runs {', '.join(over)}."]
        best = next((r for r in figures["steps"] if r["tree"] == figures["best_of_ours"]), None)
        if best is not None:
            said.append(
                f"Of its step, {percent(best['share'], 0)} are its passes: {best['one_ms']:.1f} ms for one "
                f"node, {best['further_ms']:.1f} for further ones, {best['draft_ms']:.1f} for drafting; "
                f"{best['outside_ms']:.1f} ms are outside of them."
            )
        parts[sampling] = [f"**{sampling}**", table(columns, rows), " ".join(said)]
    return parts
