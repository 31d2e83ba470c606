"""The parts of RESULTS.md on how far results can be trusted: estimators, intervals, stopping, faults."""

from collections import Counter
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import polars as pl

from treespec.experiments.studies.result_tables import Parts, Row, named, one_table, percent, table

__all__ = [
    "coverage",
    "estimator",
    "faults",
    "honest",
    "interleaving",
    "power",
    "same_verdicts",
    "sweep_faults",
    "until",
]


def interleaving(data: Row) -> Parts:
    """Two identical chains and a dearer one beside a neighbour, by way of measuring."""
    rows = [
        {**figures, "beside": beside, "way": way}
        for beside, ways in data["figures"].items()
        for way, figures in ways.items()
        if isinstance(figures, Mapping)
    ]
    notes = [
        "The dearer method takes 5 % longer by construction: its true speed over that of the identical "
        "chains is 1 / 1.05 = 0.952."
    ]
    for beside, ways in data["figures"].items():
        if policy := ways.get("waiting"):
            notes.append(f"Measured with `OMP_WAIT_POLICY={policy}` (beside: {beside}).")
        if slowed := ways.get("slowed"):
            notes.append(
                f"Steps in the last quarter of a run took {slowed:.2f} times as long as steps in its first "
                f"quarter (beside: {beside}; median)."
            )
    alone = [run["alone"] for run in data["figures"].get("quiet", {}).get("runs", ())]
    if alone:
        ratios = {name: median(one[name] for one in alone) for name in alone[0]}
        notes.append(
            f"Time of a step of one text decoded alone over that in turns, on the quiet machine, median of "
            f"{len(alone)} runs: {', '.join(f'{name} {ratio:.3f}' for name, ratio in ratios.items())}."
        )
    return one_table(
        {
            "beside": lambda row: row["beside"],
            "measured": lambda row: row["way"],
            "runs": lambda row: row["runs"],
            "interval of two equal methods holds 1": lambda row: row["holds_one"],
            "its half-width": lambda row: f"{100 * row['half_width']:.1f} %",
            "5 % dearer found slower": lambda row: row["found_slower"],
            "its mean speed": lambda row: f"{row['mean_dearer']:.3f}",
        },
        rows,
        words=2,
        notes=notes,
    )


def same_verdicts(data: Row) -> Parts:
    """Winners and ratios of pairs of method families over runs, on a quiet machine and beside bursts."""
    rows = []
    for comparison in data["figures"]["comparisons"]:
        for beside in dict.fromkeys(run["beside"] for run in comparison["runs"]):
            runs = [run for run in comparison["runs"] if run["beside"] == beside]
            ratios = [run["ratio"]["estimate"] for run in runs]
            winners = Counter(run["winner"] or "nobody" for run in runs)
            rows.append({
                "sides": " against ".join(comparison["sides"]),
                "beside": beside,
                "runs": len(runs),
                "winner": ", ".join(f"{name} ({count})" for name, count in winners.items()),
                "least": f"{min(ratios):.2f}",
                "most": f"{max(ratios):.2f}",
            })  # fmt: skip
    return one_table(
        {
            "compared": lambda row: row["sides"],
            "beside": lambda row: row["beside"],
            "runs": lambda row: row["runs"],
            "winner, in so many runs": lambda row: row["winner"],
            "times as fast, least": lambda row: row["least"],
            "most": lambda row: row["most"],
        },
        rows,
        words=2,
    )


def honest(data: Row) -> Parts:
    """Speed by adjusted times over speed by totals, by method."""
    return one_table(
        {
            "method": lambda row: row["method"],
            "runs": lambda row: row["runs"],
            "speed by adjusted times over that by totals": lambda row: f"{row['median']:.4f}",
            "least": lambda row: f"{row['low']:.4f}",
            "most": lambda row: f"{row['high']:.4f}",
        },
        data["figures"]["methods"],
        intro=[
            f"The target was enlarged to {data['figures']['enlarge']} parameters (`--enlarge`)."
        ],
    )


def estimator(data: Row) -> Parts:
    """Errors and coverage of the ways to measure, by set of methods and machine."""
    columns: dict[str, Callable[[Row], Any]] = {
        "methods": lambda row: row["world"],
        "machine": lambda row: row["machine"],
        "sd by prompts": lambda row: percent(row["by prompts, sd"], 2),
        "by totals": lambda row: percent(row["totals, sd"], 2),
    }
    figures = data["figures"]
    if "nearest, sd" in figures["kinds"][0]:  # older files lack this scheme
        columns |= {
            "by nearest steps": lambda row: percent(row["nearest, sd"], 2),
            "their bias": lambda row: f"{100 * row['nearest, bias']:+.2f} %",
            "by these, or totals": lambda row: percent(row["nearest, or totals, sd"], 2),
        }
    columns |= {
        "adjusted": lambda row: percent(row["adjusted, sd"], 2),
        "bias": lambda row: f"{100 * row['adjusted, bias']:+.2f} %",
        "half-width": lambda row: percent(row["adjusted, half-width"], 2),
        "coverage": lambda row: percent(row["adjusted, coverage"], 1),
    }
    traces = [
        f"{name} {trace['usual']:.2f} and {trace['slow']:.2f}"
        for name, trace in figures.get("traces", {}).items()  # older files lack them
    ]
    slowed = (
        "Equal pieces of work took so many times as long as on the recorded machine at its best, in "
        f"the median and at the 95th percentile: {', '.join(traces)}."
    )
    return one_table(
        columns,
        figures["kinds"],
        words=2,
        intro=[
            f"{figures['experiments']:,} simulated runs of {figures['prompts']} prompts per row: the "
            "standard deviation of the ratio of two methods' costs; for adjusted times also its bias, and "
            "the half-width and coverage of its 95 % interval."
        ],
        notes=[slowed] if traces else [],
    )


def until(data: Row) -> Parts:
    """False verdicts among equals, and the number of prompts until a run is decided."""
    figures = data["figures"]
    common: dict[str, Callable[[Row], Any]] = {
        "prompts": lambda row: row["world"],
        "at most": lambda row: row["at_most"],
    }
    equal = common | {
        "until decided": lambda row: percent(row["decided"], 1),
        "by Student's t alone": lambda row: percent(row["symmetric"], 1),
        "fixed intervals": lambda row: percent(row["naive"], 1),
        "one look at the end": lambda row: percent(row["once"], 1),
    }
    by_cell = {(row["world"], row["at_most"], row["ratio"]): row for row in figures["rows"]}
    needed = common | {
        f"at {ratio:g}": lambda row, ratio=ratio: _needed(
            by_cell[row["world"], row["at_most"], ratio]
        )
        for ratio in sorted({row["ratio"] for row in figures["rows"]} - {1.0})
    }
    rows = [row for row in figures["rows"] if row["ratio"] == 1.0]
    return {
        "equals": [
            f"Share of runs that name a winner among equals; {figures['runs']:,} simulated runs per row:",
            table(equal, rows),
        ],
        "needed": [
            "Mean number of prompts until decided where the tree is faster, and the share of runs that "
            "are decided:",
            table(needed, rows),
        ],
    }


def _needed(row: Row) -> str:
    return f"{row['prompts']:.0f} ({percent(row['decided'])})"


def coverage(data: Row) -> Parts:
    """Coverage of the intervals by number of prompts."""
    worlds = pl.DataFrame(data["figures"]["cells"]).pivot(
        "prompts", index="world", values="coverage"
    )
    return one_table(
        {"speedups over prompts": lambda row: row["world"]}
        | {f"{n} prompts": lambda row, n=n: percent(row[n], 1) for n in worlds.columns[1:]},
        worlds.to_dicts(),
        intro=[
            f"{data['figures']['experiments']:,} simulated experiments per cell; 95 % intervals."
        ],
    )


def power(data: Row) -> Parts:
    """How often a check of the law notices a planted bias, and how often it raises a false alarm."""
    figures = data["figures"]
    setting = figures["setting"]
    return {
        "": [
            f"With {setting['samples']:,} samples, a bias of total variation {setting['total_variation']} "
            f"at the first token was noticed for {percent(figures['power'])} of {setting['seeds']} seeds; "
            f"without a bias, {percent(figures['false_alarms'])} of the seeds raised an alarm."
        ]
    }


def faults(data: Row) -> Parts:
    """Injected faults and how many of them runs survived, by kind."""
    return one_table(
        {
            "kind": lambda row: row["kind"],
            "faults": lambda row: row["faults"],
            "nothing lost, doubled or changed": lambda row: row["survived"],
        },
        named(data["figures"]["kinds"], "kind"),
    )


def sweep_faults(data: Row) -> Parts:
    """Kills that sweeps survived."""
    figures = data["figures"]
    kills, rows = figures["kills"], figures["prompts"]
    return {
        "": [
            f"After {kills['sweep']} kills of the sweep and {kills['worker']} kills of workers: "
            f"{rows['rows']} rows, {rows['lost']} lost, {rows['doubled']} doubled, "
            f"{'equal to' if rows['equal'] else 'different from'} those of an uninterrupted sweep."
        ]
    }
