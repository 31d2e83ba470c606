"""The parts of RESULTS.md on runs and sweeps: paragraphs and tables made from a file of `studies`."""

from collections.abc import Callable
from typing import Any

from treespec.experiments.studies.result_tables import (
    Parts,
    Row,
    bounds,
    by,
    named,
    one_table,
    percent,
    table,
)
from treespec.search.intervals import Interval

__all__ = [
    "categories",
    "equal_budgets",
    "grid",
    "methods",
    "prediction",
    "scaling",
]


def methods(data: Row) -> Parts:
    """A run: a table of its methods and its verdicts, by sampling setting."""
    columns: dict[str, Callable[[Row], Any]] = {
        "method": lambda row: row["method"],
        "tokens per step": lambda row: row["tokens_per_step"],
        "tokens per second": lambda row: f"{row['tokens_per_second']['estimate']:.1f}",
        "speedup over plain decoding": lambda row: row["speedup"],
        "draft, ms/step": lambda row: _stage(row, "draft"),
        "verify, ms/step": lambda row: _stage(row, "verify"),
        "wasted draft tokens": lambda row: percent(row["wasted"]),
    }
    return {
        setting["sampling"]: [
            f"**{setting['sampling']}**, {setting['prompts']} prompts.",
            table(columns, setting["methods"]),
            " ".join(setting["verdict"]),
        ]
        for setting in data["figures"]["samplings"]
    }


def _stage(row: Row, stage: str) -> str | None:
    return f"{row['stage_ms'][stage]:.1f}" if row.get("stage_ms") else None


def equal_budgets(data: Row) -> Parts:
    """Trees against chains at equal budgets, by sampling setting."""
    return by(
        "sampling",
        {
            "equal": lambda row: row["name"],
            "compared by": lambda row: row["measure"],
            "best tree": lambda row: _chosen(row["left"]),
            "best chain": lambda row: _chosen(row["right"]),
            "tree over chain": lambda row: row["ratio"],
            "": lambda row: _decided(row["ratio"]),
        },
        [row | row["duel"] for row in data["figures"]["budgets"]],
        words=4,
    )


def _chosen(side: Row) -> str:
    return " or ".join(dict.fromkeys(side["chosen"]))


def _decided(ratio: Row) -> str:
    if ratio["low"] <= 1 <= ratio["high"]:
        return "not decided"
    return "tree better" if ratio["low"] > 1 else "chain better"


def grid(data: Row) -> Parts:
    """A sweep: a row for each job and method, by sampling setting."""
    rows = data["figures"]["rows"]
    key = next(name for name in rows[0] if name.startswith("sweep."))
    return by(
        "sampling",
        {
            key.removeprefix("sweep."): lambda row: row[key],
            "method": lambda row: row["method"],
            "tokens per step": lambda row: bounds(row, "tokens_per_step"),
            "tokens per second": lambda row: f"{row['tokens_per_second']:.1f}",
            "speedup over plain decoding": lambda row: bounds(row, "speedup"),
        },
        rows,
        words=2,
    )


def categories(data: Row) -> Parts:
    """Speedups over plain decoding by kind of text."""
    return by(
        "sampling",
        {"texts": lambda row: row["name"], "prompts": lambda row: row["prompts"]}
        | {
            name: lambda row, name=name: row["speedups"].get(name)
            for name in data["figures"]["categories"][0]["speedups"]
        },
        data["figures"]["categories"],
    )  # fmt: skip


def scaling(data: Row) -> Parts:
    """Tokens per step by family of shapes and number of nodes, and the verdicts."""
    columns: dict[str, Callable[[Row], Any]] = {
        "family": lambda row: row["family"],
        "verified nodes": lambda row: row["nodes"],
        "tokens per step": lambda row: row["tokens"],
    }
    rows = [
        point | {"family": family, "sampling": sampling}
        for sampling, families in data["figures"]["scaling"].items()
        for family, points in families.items()
        for point in points
    ]
    return {
        sampling: [*by("sampling", columns, rows)[sampling], " ".join(setting["verdict"])]
        for setting in data["figures"]["samplings"]
        for sampling in [setting["sampling"]]
    }


def prediction(data: Row) -> Parts:
    """Errors of the predictions, and how fast the chosen shape was."""
    figures = data["figures"]
    return one_table(
        {
            "setting": lambda row: row["sampling"],
            "tokens per step, median error": lambda row: percent(row["tokens_error"], 1),
            "speedup over plain decoding": lambda row: percent(row["speedup_error"], 1),
            "chosen": lambda row: row["chosen"],
            "speed, chosen over fastest": lambda row: Interval.of(*row["chosen_over_fastest"]),
        },
        named(figures["settings"], "sampling"),
        intro=[
            f"{figures['trees']} predictions of trees, all made from other texts before the run."
        ],
    )
