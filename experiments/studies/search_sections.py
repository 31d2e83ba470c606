"""The parts of RESULTS.md on what a tree is worth: acceptance rules, growing trees and replay."""

from collections.abc import Callable
from typing import Any

from treespec.experiments.studies.result_tables import (
    Parts,
    Row,
    around,
    by,
    named,
    one_table,
    percent,
    table,
)

__all__ = ["dynamic", "growth_replay", "replay", "rules"]


def rules(data: Row) -> Parts:
    """Draft tokens that each rule keeps, measured and predicted, by tree."""
    return by(
        "shape",
        {
            "rule": lambda row: row["rule"],
            "children drawn": lambda row: row["law"],
            "kept per step, measured": lambda row: around(row, "measured"),
            "predicted": lambda row: around(row, "predicted"),
            "at the first level": lambda row: row["first_level"],
            "ceiling there": lambda row: row["ceiling"],
        },
        data["figures"]["rules"],
        words=2,
    )


def dynamic(data: Row) -> Parts:
    """Static trees compared with trees that grow."""
    columns: dict[str, Callable[[Row], Any]] = {
        "tree": lambda row: row["method"],
        "tokens per step": lambda row: row["tokens"],
        "over the static tree of the same rule": lambda row: row["over_alike"],
        "over the best static tree": lambda row: row["over_static"],
    }
    return {
        setting: [f"**{setting}**", table(columns, figures["rows"]), figures["said"]]
        for setting, figures in data["figures"].items()
    }


def replay(data: Row) -> Parts:
    """Replayed steps compared with live ones, at temperature 0 and 1."""
    greedy, drawn = (data["figures"][f"temperature {t}"] for t in (0, 1))
    steps: dict[str, Callable[[Row], Any]] = {
        "tree": lambda row: row["tree"],
        "steps": lambda row: row["steps"],
        "equal to the live run's": lambda row: row["equal"],
        "tokens per step": lambda row: row["tokens_per_step"],
    }
    means: dict[str, Callable[[Row], Any]] = {
        "tree": lambda row: row["tree"],
        "tokens per step, live": lambda row: row["live"],
        "replayed": lambda row: row["replayed"],
    }
    return {
        name: [
            f"**{name}**",
            table(columns, named(trees, "tree")),
        ]
        for name, columns, trees in (("T=0", steps, greedy), ("T=1", means, drawn))
    }


def growth_replay(data: Row) -> Parts:
    """Replayed steps of trees that grow, compared with live ones."""
    return one_table(
        {
            "growth": lambda row: row["growth"],
            "steps": lambda row: row["steps"],
            "proved to be the live run's": lambda row: percent(row["sure"] / row["steps"], 1),
            "of these, others than live": lambda row: row["sure and differ"],
            "not proved, and others than live": lambda row: row["unsure and differ"],
            "tokens per step": lambda row: row["tokens_per_step"],
        },
        named(data["figures"]["growths"], "growth"),
    )
