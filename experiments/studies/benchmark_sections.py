"""The parts of RESULTS.md on costs and speed: paragraphs and tables made from a file of `benchmarks`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treespec.experiments.studies.result_tables import (
    Parts,
    Row,
    by,
    named,
    one_table,
    percent,
    table,
)

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
    """Microseconds of one layer's attention, computed in three ways, by dtype."""
    setting = data["figures"]["setting"]
    return by(
        "dtype",
        {
            "prefix": lambda row: row["prefix"],
            "nodes": lambda row: row["nodes"],
            "reading keys and values": lambda row: row["floor_us"],
            "`sdpa`": lambda row: row["one_pass_us"],
            "two passes": lambda row: row["two_passes_us"],
            "the kernel": lambda row: row["kernel_us"],
            "two passes over `sdpa`": lambda row: row["two_over_one"],
            "kernel over `sdpa`": lambda row: row["kernel_over_one"],
        },
        data["figures"]["rows"],
        about=f", {setting['heads']} query heads and {setting['kv_heads']} key/value heads of dimension "
        f"{setting['head_dim']}; microseconds.",
    )


def heads(data: Row) -> Parts:
    """Microseconds to draw the children of a level, in both ways."""
    return one_table(
        {
            "level": lambda row: row["level"],
            "operation by operation, µs": lambda row: row["tensor_us"],
            "the kernel, µs": lambda row: row["kernel_us"],
            "kernel over operations": lambda row: row["kernel_over_tensor"],
            "different of 100,000 draws": lambda row: row["different"],
        },
        data["figures"]["rows"],
    )


def costs(data: Row) -> Parts:
    """Milliseconds of a verdict by rule, one table per sampling setting."""
    figures = data["figures"]
    columns: dict[str, Callable[[Row], Any]] = {
        "rule": lambda row: row["rule"],
        "ms": lambda row: row["ms"],
        "over one softmax of all rows": lambda row: row["of_softmax"],
        "rows read": lambda row: row["rows_visited"],
    }
    return {
        setting: [
            f"**{setting}**: one verdict on a tree of 64 nodes with a vocabulary of {figures['vocab']:,} "
            f"tokens, compared with {figures[setting]['softmax_ms']:.1f} ms for one softmax of all rows.",
            table(columns, named(figures[setting]["rules"], "rule")),
        ]
        for setting in figures
        if setting.startswith("T=")
    }


def overhead(data: Row) -> Parts:
    """Milliseconds of a step and the share spent outside the models, by tree."""
    return one_table(
        {
            "tree": lambda row: row["tree"],
            "nodes": lambda row: row["nodes"],
            "step, ms": lambda row: f"{row['ms_per_step']['step']:.1f}",
            "outside the models": lambda row: percent(row["outside_share"], 1),
        },
        named(data["figures"]["shapes"], "tree"),
    )


def passes(data: Row) -> Parts:
    """Milliseconds of a pass, eager and compiled, by model; costs of the loop; which goals are met."""
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
        columns["right after another, ms"] = lambda row: row["again_ms"]
    return {
        **{
            name: [
                f"**{'The draft' if name == 'draft' else f'A target of {name}'}**, after a prefix of "
                f"{figures['setting']['prefix']} tokens.",
                table(columns, figures[name]["rows"]),
            ]
            for name in models
        },
        "loop": _loop(figures),
        "goals": ["\n".join(f"- {sentence}" for sentence in figures["verdicts"])],
    }


def _loop(figures: Row) -> list[str]:
    """Milliseconds of a level of drafting, and of a step outside the passes."""
    columns: dict[str, Callable[[Row], Any]] = {
        "tree": lambda row: row["tree"],
        "temperature": lambda row: f"{row['temperature']:g}",
        "levels": lambda row: row["levels"],
        "a level of an eager draft, ms": lambda row: row["eager_level_ms"],
        "of a compiled draft, ms": lambda row: row["level_ms"],
        "a step outside the passes, ms": lambda row: row["outside_ms"],
        "goal, ms": lambda row: row["outside_goal_ms"],
    }
    return [
        "**The loop** of the embedded pair, whose target has "
        f"{figures['setting'].get('loop_target', 'eager')} passes: the time of a whole level of "
        "drafting, and the time that a step spends outside the passes of both models.",
        table(columns, figures["loop"]),
    ]


def speed_of_search(data: Row) -> Parts:
    """Seconds and peak memory of a search, by size."""
    sizes = {name: rows for name, rows in data["figures"].items() if name != "beside loops"}
    return one_table(
        {
            "search": lambda row: row["search"],
            "nodes": lambda row: row["nodes"],
            "seconds": lambda row: f"{row['s']:.3g}",
            "peak memory, MiB": lambda row: f"{row['peak_mib']:.0f}",
        },
        named(sizes, "search", "nodes"),
    )


def speedup(data: Row) -> Parts:
    """Methods, what a user would choose instead, and a sentence on our best shape, by sampling setting."""
    columns: dict[str, Callable[[Row], Any]] = {
        "method": lambda row: row["method"],
        "tokens per step": lambda row: row["tokens"],
        "tokens per second": lambda row: f"{row['speed']:.1f}",
    }
    alternatives = {
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
        ratios = [
            f"{figures[f'over_{kind}']:.2f} times as fast as {name}"
            for kind, name in alternatives.items()
            if f"over_{kind}" in figures
        ]
        sentences = [f"Our best shape ({figures['best_of_ours']}) runs {', '.join(ratios)}."]
        best = next((r for r in figures["steps"] if r["tree"] == figures["best_of_ours"]), None)
        if best is not None:
            sentences.append(
                f"Its passes take {percent(best['share'], 0)} of a step: {best['one_ms']:.1f} ms to verify "
                f"one node, {best['further_ms']:.1f} ms for further nodes, and {best['draft_ms']:.1f} ms "
                f"for drafting; {best['outside_ms']:.1f} ms are spent outside the passes."
            )
        parts[sampling] = [f"**{sampling}**", table(columns, rows), " ".join(sentences)]
    return parts
