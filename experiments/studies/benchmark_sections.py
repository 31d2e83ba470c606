"""What RESULTS.md says of benchmarks and simulations: paragraphs and tables of a file."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treespec.experiments.studies.result_tables import Parts, Row, by, percent, table

__all__ = [
    "advice",
    "costs",
    "coverage",
    "dynamic",
    "estimator",
    "faults",
    "growth_replay",
    "honest",
    "interleaving",
    "overhead",
    "passes",
    "power",
    "replay",
    "rules",
    "speed_of_search",
    "speedup",
    "sweep_faults",
    "until",
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


def interleaving(data: Row) -> Parts:
    """Identical and dearer chains beside a neighbour, by way of measuring."""
    columns: dict[str, Callable[[Row], Any]] = {
        "beside": lambda row: row["beside"],
        "measured": lambda row: row["way"],
        "runs": lambda row: row["runs"],
        "interval of two equal methods holds 1": lambda row: row["holds_one"],
        "its half-width": lambda row: f"{100 * row['half_width']:.1f} %",
        "5 % dearer found slower": lambda row: row["found_slower"],
        "its mean speed": lambda row: f"{row['mean_dearer']:.3f}",
    }
    rows = [
        {**figures, "beside": beside, "way": way}
        for beside, ways in data["figures"].items()
        for way, figures in ways.items()
        if isinstance(figures, Mapping)
    ]
    truth = "The speed of the dearer method is 1 / 1.05 = 0.952 by construction."
    return {"": [table(columns, rows, words=2), truth]}


def honest(data: Row) -> Parts:
    """Speed by adjusted times over that by totals, by method."""
    columns: dict[str, Callable[[Row], Any]] = {
        "method": lambda row: row["method"],
        "runs": lambda row: row["runs"],
        "speed by adjusted times over that by totals": lambda row: f"{row['median']:.4f}",
        "least": lambda row: f"{row['low']:.4f}",
        "most": lambda row: f"{row['high']:.4f}",
    }
    return {"": [table(columns, data["figures"]["methods"])]}


def estimator(data: Row) -> Parts:
    """Errors and coverage of ways to measure, by methods and machine."""
    columns: dict[str, Callable[[Row], Any]] = {
        "methods": lambda row: row["world"],
        "machine": lambda row: row["machine"],
        "sd by prompts": lambda row: percent(row["by prompts, sd"], 2),
        "by totals": lambda row: percent(row["totals, sd"], 2),
        "adjusted": lambda row: percent(row["adjusted, sd"], 2),
        "bias": lambda row: f"{100 * row['adjusted, bias']:+.2f} %",
        "half-width": lambda row: percent(row["adjusted, half-width"], 2),
        "coverage": lambda row: percent(row["adjusted, coverage"], 1),
    }
    figures = data["figures"]
    said = (
        f"{figures['experiments']:,} simulated runs of {figures['prompts']} prompts a row: standard "
        "deviation of the ratio of two methods' costs, and of adjusted times also its bias, and what 95 % "
        "intervals hold."
    )
    return {"": [said, table(columns, figures["kinds"], words=2)]}


def until(data: Row) -> Parts:
    """False verdicts, and prompts that decisions take."""
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
    found = {(row["world"], row["at_most"], row["ratio"]): row for row in figures["rows"]}
    needed = common | {
        f"at {ratio:g}": lambda row, ratio=ratio: _needed(
            found[row["world"], row["at_most"], ratio]
        )
        for ratio in sorted({row["ratio"] for row in figures["rows"]} - {1.0})
    }
    rows = [row for row in figures["rows"] if row["ratio"] == 1.0]
    return {
        "equals": [
            f"Winners named among equals, {figures['runs']:,} simulated runs a row:",
            table(equal, rows),
        ],
        "needed": [
            "Mean prompts until decided where the tree is faster, and the share of runs that are decided:",
            table(needed, rows),
        ],
    }


def _needed(row: Row) -> str:
    return f"{row['prompts']:.0f} ({percent(row['decided'])})"


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
        "which": lambda row: row["worst"][1],
        "agree within intervals": lambda row: percent(row["agreed"]),
        "speed over the best there": lambda row: row["choice"]["of best there"],
        "over the choice by rates": lambda row: row["choice"]["over rates"],
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
            "Where easy and hard stretches of text take turns, predictions from a trace are off by at most "
            f"{percent(off['trace'], 1)}, those from rates by {percent(off['rates'])}. Over the best of "
            f"all trees of eight nodes on {every['cases']} made-up traces and machines: median "
            f"{every['of the best']['median']:.3f}, at worst {every['of the best']['worst']:.3f}; over the "
            f"choice by rates, valued by replay: {nodes}. Of {equals['searches']:,} searches among equally "
            f"fast shapes {percent(equals['share'], 1)} advised one. A search took {seconds}, and "
            f"{figures['time']['gigabytes']:.1f} GB at most.",
            *_advice_live(figures),
        ]
    }


def _advice_live(figures: Row) -> list[str]:
    """What was found of noisy times and of live runs, as far as it was measured."""
    said = []
    if many := figures.get("noisy"):
        said.append(
            f"With times from {many['rounds']} rounds, each sample {percent(many['noise'])} off, and the "
            f"best of every size as fast as plain decoding, {percent(many['share'], 1)} of "
            f"{many['searches']:,} searches advised anything."
        )
    for name, one in figures.get("live", {}).items():
        error, which = one["worst"]
        said.append(
            f"Live, {name}: tokens per step of {len(one['shapes'])} shapes on {one['texts']} other texts "
            f"were off by {percent(one['median error'], 1)} in the median, at worst by "
            f"{percent(error, 1)} ({which})."
        )
    for pair, settings in figures.get("runs", {}).items():
        for setting, one in settings.items():
            said.append(
                f"Target of {pair}, {setting}: `search_then_run` chose {one['chosen']}, which reached "
                f"{one['over'][0]:.3f} of the speed of the fastest ({one['fastest']})."
            )
    return said


def coverage(data: Row) -> Parts:
    """Coverage of intervals by number of prompts."""
    cells = data["figures"]["cells"]
    prompts = sorted({cell["prompts"] for cell in cells})
    worlds = {cell["world"]: {} for cell in cells}
    for cell in cells:
        worlds[cell["world"]][cell["prompts"]] = cell["coverage"]
    columns: dict[str, Callable[[Row], Any]] = {"speedups over prompts": lambda row: row["world"]}
    columns |= {f"{n} prompts": lambda row, n=n: percent(row[n], 1) for n in prompts}
    said = f"{data['figures']['experiments']:,} simulated experiments a cell; intervals of 95 %."
    return {"": [said, table(columns, [row | {"world": world} for world, row in worlds.items()])]}


def power(data: Row) -> Parts:
    """What a check of the law would notice."""
    figures = data["figures"]
    setting = figures["setting"]
    return {
        "": [
            f"A total variation of {setting['total_variation']} at the first token was noticed for "
            f"{percent(figures['power'])} of {setting['seeds']} seeds at {setting['samples']:,} samples; "
            f"without a bias {percent(figures['false_alarms'])} raised an alarm."
        ]
    }


def faults(data: Row) -> Parts:
    """Faults that runs survived, by kind."""
    columns: dict[str, Callable[[Row], Any]] = {
        "kind": lambda row: row["kind"],
        "faults": lambda row: row["faults"],
        "nothing lost, doubled or changed": lambda row: row["survived"],
    }
    kinds = data["figures"]["kinds"]
    return {"": [table(columns, [row | {"kind": kind} for kind, row in kinds.items()])]}


def sweep_faults(data: Row) -> Parts:
    """Faults that sweeps survived."""
    figures = data["figures"]
    kills, rows = figures["kills"], figures["prompts"]
    return {
        "": [
            f"{kills['sweep']} kills of the sweep and {kills['worker']} of workers: {rows['rows']} rows, "
            f"{rows['lost']} lost, {rows['doubled']} doubled, "
            f"{'equal to' if rows['equal'] else 'different from'} those of an unbroken sweep."
        ]
    }


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


def passes(data: Row) -> Parts:
    """Milliseconds of a pass, eager and compiled, by model."""
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
    return {
        name: [
            f"**{'The draft' if name == 'draft' else f'A target of {name}'}**, behind {prefix} tokens.",
            table(columns, figures[name]["rows"]),
        ]
        for name in models
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
