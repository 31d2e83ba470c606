"""What RESULTS.md says of rules, growing trees, replay and the advice of searches: what a tree is worth."""

from collections.abc import Callable
from typing import Any

from treespec.experiments.studies.result_tables import Parts, Row, by, percent, table

__all__ = [
    "advice",
    "advice_live",
    "advice_runs",
    "dynamic",
    "growth_replay",
    "replay",
    "rules",
]


def rules(data: Row) -> Parts:
    """What each rule keeps, measured and expected, by tree."""
    columns: dict[str, Callable[[Row], Any]] = {
        "rule": lambda row: row["rule"],
        "children drawn": lambda row: row["law"],
        "kept per step, measured": lambda row: f"{row['measured']:.2f}±{row['measured_95']:.2f}",
        "predicted": lambda row: f"{row['predicted']:.2f}±{row['predicted_95']:.2f}",
        "at the first level": lambda row: row["first_level"],
        "ceiling there": lambda row: row["ceiling"],
    }
    return by("shape", columns, data["figures"]["rules"], words=2)


def dynamic(data: Row) -> Parts:
    """Static trees beside those that grow."""
    columns: dict[str, Callable[[Row], Any]] = {
        "tree": lambda row: row["method"],
        "tokens per step": lambda row: row["tokens"],
        "over the static tree of the same rule": lambda row: row["over_alike"],
        "over the best static tree": lambda row: row["over_static"],
    }
    return {
        setting: [f"**{setting}**", table(columns, found["rows"]), found["said"]]
        for setting, found in data["figures"].items()
    }


def replay(data: Row) -> Parts:
    """Replayed against live steps, greedy and drawn."""
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
            table(columns, [row | {"tree": tree} for tree, row in trees.items()]),
        ]
        for name, columns, trees in (("T=0", steps, greedy), ("T=1", means, drawn))
    }


def growth_replay(data: Row) -> Parts:
    """Replayed against live steps of trees that grow."""
    columns: dict[str, Callable[[Row], Any]] = {
        "growth": lambda row: row["growth"],
        "steps": lambda row: row["steps"],
        "proved to be the live run's": lambda row: percent(row["sure"] / row["steps"], 1),
        "of these, others than live": lambda row: row["sure and differ"],
        "not proved, and others than live": lambda row: row["unsure and differ"],
        "tokens per step": lambda row: row["tokens_per_step"],
    }
    rows = [row | {"growth": name} for name, row in data["figures"]["growths"].items()]
    return {"": [table(columns, rows)]}


def advice(data: Row) -> Parts:
    """Advice on unseen texts, live, and among equals."""
    figures = data["figures"]
    columns: dict[str, Callable[[Row], Any]] = {
        "trace": lambda row: row["trace"],
        "texts": lambda row: row["texts"],
        "advised: predicted over unseen": lambda row: row["quotients"]["advised"],
        "farthest off of 21": lambda row: percent(row["worst"][0], 1),
        "one way": lambda row: percent(row["one way"]["worst"][0], 1),
        "its standard error": lambda row: percent(
            row["one way"]["chance"][row["one way"]["worst"][1]], 1
        ),
        "agree within intervals": lambda row: percent(row["agreed"]),
        "speed over the best there": lambda row: row["choice"]["of best there"],
        "over the choice by rates": lambda row: row["choice"]["over rates"],
        "of all texts together": lambda row: (
            f"{100 * row['choice']['pooled']['log']:+.1f} ± {percent(row['choice']['pooled']['error'], 1)}"
        ),
    }
    rows = [one | {"trace": name} for name, one in figures["traces"].items()]
    turns, every, equals = (figures[part] for part in ("stretches", "exhaustive", "equals"))
    off = {
        name: max(turns[part].values(), key=lambda one: abs(one - 1)) - 1
        for name, part in (("trace", "from the trace"), ("rates", "from rates"))
    }
    nodes = ", ".join(
        f"{one['median']:.2f} at {size} nodes (at worst {one['worst']:.2f})"
        for size, one in every["over rates"].items()
    )
    seconds = ", ".join(
        f"{one:.1f} s on {int(count):,} positions"
        for count, one in figures["time"]["seconds"].items()
    )
    return {
        "": [
            table(columns, rows),
            "Every split is taken both ways: as much as one half is above the mean of all texts, the other "
            "is below it, so that what is left is the error of predicting. One way of the splits alone has "
            "the chance of the halves, too. The last column is the logarithm of the speed of all choices "
            "over that of those by rates, with its standard error over texts.",
            "Where easy and hard stretches of text take turns, predictions from a trace are off by at most "
            f"{percent(off['trace'], 1)}, those from rates by {percent(off['rates'])}. Over the best of "
            f"all trees of eight nodes on {every['cases']} made-up traces and machines: median "
            f"{every['of the best']['median']:.3f}, at worst {every['of the best']['worst']:.3f}; over the "
            f"choice by rates, valued by replay: {nodes}. Of {equals['searches']:,} searches among equally "
            f"fast shapes {percent(equals['share'], 1)} advised one. A search took {seconds}, and "
            f"{figures['time']['gigabytes']:.1f} GB at most.",
            *_noisy(figures),
            "Measured at: "
            + ", ".join(f"{name} {one['git_hash'][:7]}" for name, one in figures["parts"].items())
            + ".",
        ]
    }


def _noisy(figures: Row) -> list[str]:
    """What was found of noisy times, if it was measured."""
    many = figures.get("noisy")
    if many is None:
        return []
    return [
        f"With times from {many['rounds']} rounds, each sample {percent(many['noise'])} off, and the "
        f"best of every size as fast as plain decoding, {percent(many['share'], 1)} of "
        f"{many['searches']:,} searches advised anything."
    ]


def advice_live(data: Row) -> Parts:
    """Predicted tokens per step against live runs."""
    columns: dict[str, Callable[[Row], Any]] = {
        "trace": lambda row: row["trace"],
        "decoded": lambda row: row["where"],
        "texts": lambda row: row["texts"],
        "shapes": lambda row: len(row["shapes"]),
        "median error": lambda row: percent(row["median error"], 1),
        "the worst": lambda row: f"{100 * row['worst'][0]:+.1f} % ({row['worst'][1]})",
    }
    rows = [
        one | {"trace": name, "where": where}
        for name, places in data["figures"]["live"].items()
        for where, one in places.items()
    ]
    return {"": [table(columns, rows)]}


def advice_runs(data: Row) -> Parts:
    """What was chosen before a run over the fastest of the run."""
    columns: dict[str, Callable[[Row], Any]] = {
        "target": lambda row: row["pair"],
        "sampling": lambda row: row["setting"],
        "chosen": lambda row: row["chosen"],
        "fastest here": lambda row: row["fastest"],
        "its speed over that": lambda row: _share(row["over"]),
        "over the fastest by the other half": lambda row: _share(row["over_by_other_half"]),
    }
    rows = [
        one | {"pair": pair, "setting": setting}
        for pair, settings in data["figures"]["runs"].items()
        for setting, one in settings.items()
    ]
    said = (
        "The fastest of a run is the fastest by chance, too: so it is looked for in one half of the texts "
        "and compared in the other, and the other way round, in the last column."
    )
    return {"": [table(columns, rows), said]}


def _share(ratio: list[float]) -> str:
    estimate, low, high = ratio
    return f"{estimate:.2f} ({low:.2f} to {high:.2f})"
