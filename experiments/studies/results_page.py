"""RESULTS.md, and the README's measured parts, made of the result files that are kept.

    python -m treespec.experiments.studies.results_page

No figure on these pages is typed by hand: a test holds them against the files in `benchmarks/results`. A
part of the README that is measured stands between two comments, and is a section of RESULTS.md:

    <!-- measured: tree_vs_chain -->
    <!-- end -->
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from treespec.experiments.benchmarks.results_file import RESULTS
from treespec.experiments.errors import ConfigError
from treespec.experiments.report.markdown import markdown
from treespec.experiments.report.statistics import Interval
from treespec.experiments.report.table import NONE, Cell, Column, Table, interval
from treespec.search.whole_file import write_whole

__all__ = ["PAGE", "README", "SECTIONS", "Section", "filled", "results_page"]

ROOT = RESULTS.parents[2]
PAGE, README = ROOT / "experiments" / "RESULTS.md", ROOT / "README.md"

HEAD = """# Results

What has been measured, with the commands that measure it again. Made from the files in
[benchmarks/results](benchmarks/results) by `python -m treespec.experiments.studies.results_page`; a test
holds this page against them. Intervals are 95 %. Times are of the machine that each section names: all of
them are CPUs, **nothing has been timed on a GPU yet** (`make gpu` does that).

Runs whose verdict says what the run could tell apart were measured in turns, step by step. The others are
older and were measured prompt by prompt: a neighbour's burst may have hit one of their methods more than
another, which their intervals do not show: [interleaving](#interleaving) says by how much.
"""

_MEASURED = re.compile(r"(<!-- measured: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

Row = Mapping[str, Any]
Parts = Mapping[str, Sequence[str]]
"""Paragraphs and tables, by sampling setting or whatever they are about."""


@dataclass(frozen=True)
class Section:
    """A part of RESULTS.md.

    Args:
        file: of its figures, without the machine's name.
        question: that it answers.
        command: that measures it again.
        parts: writes paragraphs and tables of a file's content.
        machine: that was measured, as file names have it.
    """

    file: str
    question: str
    command: str
    parts: Callable[[Row], Parts]
    machine: str = "amd-epyc-2-cores"

    @property
    def path(self) -> Path:
        """The file of its figures."""
        return RESULTS / f"{self.file}-{self.machine}.json"

    def read(self) -> Row:
        """The content of its file."""
        return json.loads(self.path.read_text(encoding="utf-8"))

    @property
    def body(self) -> str:
        """What it says, without a heading."""
        data = self.read()
        parts = "\n\n".join(text for texts in self.parts(data).values() for text in texts)
        return f"{parts}\n\n`{self.command}`, measured {_measured(data)}: `{self.path.name}`.\n"


def results_page() -> str:
    """RESULTS.md."""
    sections = [
        f"## {name}\n\n{section.question}\n\n{section.body}" for name, section in SECTIONS.items()
    ]
    return "\n".join([HEAD, *sections])


def filled(page: str) -> str:
    """A page with its measured parts as the files have them.

    Raises:
        ConfigError: if it asks for a part that there is not.
    """

    def part(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        if name not in SECTIONS:
            raise ConfigError(f"no section {name!r} (there are: {', '.join(SECTIONS)})")
        return f"{begin}\n{SECTIONS[name].body}\n{end}"

    return _MEASURED.sub(part, page)


def _measured(data: Row) -> str:
    """When, on what, and with which code."""
    hardware, models = data["hardware"], data.get("models")
    said = [data["measured"][:10], f"on {hardware['cores']} cores of an {hardware['cpu']}"]
    if hardware.get("simd"):
        said[-1] += f" with {hardware['simd']}"
    if models:
        target, draft = models["target"], models["draft"]
        sizes = " and ".join(f"{m['parameters'] / 1e6:.3g} M" for m in (target, draft))
        said.append(f"target and draft of {sizes} parameters in {target['dtype']}")
    if data.get("git_hash"):
        said.append(f"commit {data['git_hash'][:7]}")
    return ", ".join([*said, f"torch {data['versions']['torch']}"])


def _table(columns: Mapping[str, Callable[[Row], Any]], rows: Iterable[Row], words: int = 1) -> str:
    """Rows under columns, the first `words` of which hold words."""
    heads = [
        Column[Row](name, partial(_cell, write), left=i < words)
        for i, (name, write) in enumerate(columns.items())
    ]
    return markdown(Table("", heads, list(rows)))


def _cell(write: Callable[[Row], Any], row: Row) -> Cell:
    """A value as it is written: intervals with their bounds, numbers with two digits, words as they are."""
    value = write(row)
    if isinstance(value, Mapping):
        return interval(
            Interval(value["estimate"], *(value[k] or float("nan") for k in ("low", "high")))
        )
    if value is None:
        return Cell(NONE)
    return Cell(f"{value:.2f}" if isinstance(value, float) else str(value))


def _percent(share: float | None, digits: int = 0) -> str:
    return NONE if share is None else f"{100 * share:.{digits}f} %"


def _bounds(row: Row, name: str) -> Row:
    """An estimate of a sweep's row, whose bounds are columns of their own."""
    return {"estimate": row[name], "low": row[f"{name}_low"], "high": row[f"{name}_high"]}


# -- what the files hold ------------------------------------------------------------------------------


def _methods(data: Row) -> Parts:
    """A run: its verdicts, and its methods."""
    columns: dict[str, Callable[[Row], Any]] = {
        "method": lambda row: row["method"],
        "tokens per step": lambda row: row["tokens_per_step"],
        "tokens per second": lambda row: f"{row['tokens_per_second']['estimate']:.1f}",
        "speedup over plain decoding": lambda row: row["speedup"],
        "draft, ms/step": lambda row: _stage(row, "draft"),
        "verify, ms/step": lambda row: _stage(row, "verify"),
        "wasted draft tokens": lambda row: _percent(row["wasted"]),
    }
    return {
        setting["sampling"]: [
            f"**{setting['sampling']}**, {setting['prompts']} prompts.",
            _table(columns, setting["methods"]),
            " ".join(setting["verdict"]),
        ]
        for setting in data["figures"]["samplings"]
    }


def _stage(row: Row, stage: str) -> str | None:
    return f"{row['stage_ms'][stage]:.1f}" if row.get("stage_ms") else None


def _equal_budgets(data: Row) -> Parts:
    duels = [row | row["duel"] for row in data["figures"]["budgets"]]
    columns: dict[str, Callable[[Row], Any]] = {
        "equal": lambda row: row["name"],
        "compared by": lambda row: row["measure"],
        "best tree": lambda row: _chosen(row["left"]),
        "best chain": lambda row: _chosen(row["right"]),
        "tree over chain": lambda row: row["ratio"],
        "": lambda row: _decided(row["ratio"]),
    }
    return _by("sampling", columns, duels, words=4)


def _by(
    name: str, columns: Mapping[str, Callable[[Row], Any]], rows: Sequence[Row], words: int = 1
) -> Parts:
    """A table for each value in a column."""
    return {
        value: [f"**{value}**", _table(columns, (row for row in rows if row[name] == value), words)]
        for value in dict.fromkeys(row[name] for row in rows)
    }


def _chosen(side: Row) -> str:
    return " or ".join(dict.fromkeys(side["chosen"]))


def _decided(ratio: Row) -> str:
    if ratio["low"] <= 1 <= ratio["high"]:
        return "not decided"
    return "tree better" if ratio["low"] > 1 else "chain better"


def _grid(data: Row) -> Parts:
    """A sweep: a row for each job and method."""
    rows = data["figures"]["rows"]
    key = next(name for name in rows[0] if name.startswith("sweep."))
    columns: dict[str, Callable[[Row], Any]] = {
        key.removeprefix("sweep."): lambda row: row[key],
        "method": lambda row: row["method"],
        "tokens per step": lambda row: _bounds(row, "tokens_per_step"),
        "tokens per second": lambda row: f"{row['tokens_per_second']:.1f}",
        "speedup over plain decoding": lambda row: _bounds(row, "speedup"),
    }
    return _by("sampling", columns, rows, words=2)


def _categories(data: Row) -> Parts:
    return _by(
        "sampling",
        {"texts": lambda row: row["name"], "prompts": lambda row: row["prompts"]}
        | {
            name: lambda row, name=name: row["speedups"].get(name)
            for name in data["figures"]["categories"][0]["speedups"]
        },
        data["figures"]["categories"],
    )  # fmt: skip


def _scaling(data: Row) -> Parts:
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
        sampling: [*_by("sampling", columns, rows)[sampling], " ".join(setting["verdict"])]
        for setting in data["figures"]["samplings"]
        for sampling in [setting["sampling"]]
    }


def _prediction(data: Row) -> Parts:
    figures = data["figures"]
    rows = [row | {"sampling": name} for name, row in figures["settings"].items()]
    columns: dict[str, Callable[[Row], Any]] = {
        "setting": lambda row: row["sampling"],
        "tokens per step, median error": lambda row: _percent(row["tokens_error"], 1),
        "speedup over plain decoding": lambda row: _percent(row["speedup_error"], 1),
        "chosen": lambda row: row["chosen"],
        "its speed over that of the fastest": lambda row: dict(
            zip(("estimate", "low", "high"), row["chosen_over_fastest"], strict=True)
        ),
    }
    trees = f"{figures['trees']} predictions of trees, all made before the run from other texts."
    return {"": [trees, _table(columns, rows)]}


def _rules(data: Row) -> Parts:
    columns: dict[str, Callable[[Row], Any]] = {
        "rule": lambda row: row["rule"],
        "children drawn": lambda row: row["law"],
        "kept per step, measured": lambda row: f"{row['measured']:.2f}±{row['measured_95']:.2f}",
        "predicted": lambda row: f"{row['predicted']:.2f}±{row['predicted_95']:.2f}",
        "at the first level": lambda row: row["first_level"],
        "ceiling there": lambda row: row["ceiling"],
    }
    return _by("shape", columns, data["figures"]["rules"], words=2)


def _costs(data: Row) -> Parts:
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
            _table(
                columns, [row | {"rule": rule} for rule, row in figures[setting]["rules"].items()]
            ),
        ]
        for setting in figures
        if setting.startswith("T=")
    }


def _interleaving(data: Row) -> Parts:
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
    return {"": [_table(columns, rows, words=2), truth]}


def _honest(data: Row) -> Parts:
    columns: dict[str, Callable[[Row], Any]] = {
        "method": lambda row: row["method"],
        "runs": lambda row: row["runs"],
        "speed by adjusted times over that by totals": lambda row: f"{row['median']:.4f}",
        "least": lambda row: f"{row['low']:.4f}",
        "most": lambda row: f"{row['high']:.4f}",
    }
    return {"": [_table(columns, data["figures"]["methods"])]}


def _estimator(data: Row) -> Parts:
    columns: dict[str, Callable[[Row], Any]] = {
        "methods": lambda row: row["world"],
        "machine": lambda row: row["machine"],
        "sd by prompts": lambda row: _percent(row["by prompts, sd"], 2),
        "by totals": lambda row: _percent(row["totals, sd"], 2),
        "adjusted": lambda row: _percent(row["adjusted, sd"], 2),
        "bias": lambda row: f"{100 * row['adjusted, bias']:+.2f} %",
        "half-width": lambda row: _percent(row["adjusted, half-width"], 2),
        "coverage": lambda row: _percent(row["adjusted, coverage"], 1),
    }
    figures = data["figures"]
    said = (
        f"{figures['experiments']:,} simulated runs of {figures['prompts']} prompts a row: standard "
        "deviation of the ratio of two methods' costs, and of adjusted times also its bias, and what 95 % "
        "intervals hold."
    )
    return {"": [said, _table(columns, figures["kinds"], words=2)]}


def _until(data: Row) -> Parts:
    figures = data["figures"]
    common: dict[str, Callable[[Row], Any]] = {
        "prompts": lambda row: row["world"],
        "at most": lambda row: row["at_most"],
    }
    equal = common | {
        "until decided": lambda row: _percent(row["decided"], 1),
        "by Student's t alone": lambda row: _percent(row["symmetric"], 1),
        "fixed intervals": lambda row: _percent(row["naive"], 1),
        "one look at the end": lambda row: _percent(row["once"], 1),
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
            _table(equal, rows),
        ],
        "needed": [
            "Mean prompts until decided where the tree is faster, and the share of runs that are decided:",
            _table(needed, rows),
        ],
    }


def _needed(row: Row) -> str:
    return f"{row['prompts']:.0f} ({_percent(row['decided'])})"


def _dynamic(data: Row) -> Parts:
    columns: dict[str, Callable[[Row], Any]] = {
        "tree": lambda row: row["method"],
        "tokens per step": lambda row: row["tokens"],
        "over the static tree of the same rule": lambda row: row["over_alike"],
        "over the best static tree": lambda row: row["over_static"],
    }
    return {
        setting: [f"**{setting}**", _table(columns, found["rows"]), found["said"]]
        for setting, found in data["figures"].items()
    }


def _replay(data: Row) -> Parts:
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
            _table(columns, [row | {"tree": tree} for tree, row in trees.items()]),
        ]
        for name, columns, trees in (("T=0", steps, greedy), ("T=1", means, drawn))
    }


def _growth_replay(data: Row) -> Parts:
    columns: dict[str, Callable[[Row], Any]] = {
        "growth": lambda row: row["growth"],
        "steps": lambda row: row["steps"],
        "proved to be the live run's": lambda row: _percent(row["sure"] / row["steps"], 1),
        "of these, others than live": lambda row: row["sure and differ"],
        "not proved, and others than live": lambda row: row["unsure and differ"],
        "tokens per step": lambda row: row["tokens_per_step"],
    }
    rows = [row | {"growth": name} for name, row in data["figures"]["growths"].items()]
    return {"": [_table(columns, rows)]}


def _advice(data: Row) -> Parts:
    figures = data["figures"]
    columns: dict[str, Callable[[Row], Any]] = {
        "trace": lambda row: row["trace"],
        "texts": lambda row: row["texts"],
        "advised: predicted over unseen": lambda row: row["quotients"]["advised"],
        "farthest off of 21": lambda row: _percent(row["worst"][0], 1),
        "which": lambda row: row["worst"][1],
        "agree within intervals": lambda row: _percent(row["agreed"]),
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
            _table(columns, rows),
            "Where easy and hard stretches of text take turns, predictions from a trace are off by at most "
            f"{_percent(off['trace'], 1)}, those from rates by {_percent(off['rates'])}. Over the best of "
            f"all trees of eight nodes on {every['cases']} made-up traces and machines: median "
            f"{every['of the best']['median']:.3f}, at worst {every['of the best']['worst']:.3f}; over the "
            f"choice by rates, valued by replay: {nodes}. Of {equals['searches']:,} searches among equally "
            f"fast shapes {_percent(equals['share'], 1)} advised one. A search took {seconds}, and "
            f"{figures['time']['gigabytes']:.1f} GB at most.",
            *_advice_live(figures),
        ]
    }


def _advice_live(figures: Row) -> list[str]:
    """What was found of noisy times and of live runs, as far as it was measured."""
    said = []
    if many := figures.get("noisy"):
        said.append(
            f"With times from {many['rounds']} rounds, each sample {_percent(many['noise'])} off, and the "
            f"best of every size as fast as plain decoding, {_percent(many['share'], 1)} of "
            f"{many['searches']:,} searches advised anything."
        )
    for name, one in figures.get("live", {}).items():
        error, which = one["worst"]
        said.append(
            f"Live, {name}: tokens per step of {len(one['shapes'])} shapes on {one['texts']} other texts "
            f"were off by {_percent(one['median error'], 1)} in the median, at worst by "
            f"{_percent(error, 1)} ({which})."
        )
    for pair, settings in figures.get("runs", {}).items():
        for setting, one in settings.items():
            said.append(
                f"Target of {pair}, {setting}: `search_then_run` chose {one['chosen']}, which reached "
                f"{one['over'][0]:.3f} of the speed of the fastest ({one['fastest']})."
            )
    return said


def _coverage(data: Row) -> Parts:
    cells = data["figures"]["cells"]
    prompts = sorted({cell["prompts"] for cell in cells})
    worlds = {cell["world"]: {} for cell in cells}
    for cell in cells:
        worlds[cell["world"]][cell["prompts"]] = cell["coverage"]
    columns: dict[str, Callable[[Row], Any]] = {"speedups over prompts": lambda row: row["world"]}
    columns |= {f"{n} prompts": lambda row, n=n: _percent(row[n], 1) for n in prompts}
    said = f"{data['figures']['experiments']:,} simulated experiments a cell; intervals of 95 %."
    return {"": [said, _table(columns, [row | {"world": world} for world, row in worlds.items()])]}


def _power(data: Row) -> Parts:
    figures = data["figures"]
    setting = figures["setting"]
    return {
        "": [
            f"A total variation of {setting['total_variation']} at the first token was noticed for "
            f"{_percent(figures['power'])} of {setting['seeds']} seeds at {setting['samples']:,} samples; "
            f"without a bias {_percent(figures['false_alarms'])} raised an alarm."
        ]
    }


def _faults(data: Row) -> Parts:
    columns: dict[str, Callable[[Row], Any]] = {
        "kind": lambda row: row["kind"],
        "faults": lambda row: row["faults"],
        "nothing lost, doubled or changed": lambda row: row["survived"],
    }
    kinds = data["figures"]["kinds"]
    return {"": [_table(columns, [row | {"kind": kind} for kind, row in kinds.items()])]}


def _sweep_faults(data: Row) -> Parts:
    figures = data["figures"]
    kills, rows = figures["kills"], figures["prompts"]
    return {
        "": [
            f"{kills['sweep']} kills of the sweep and {kills['worker']} of workers: {rows['rows']} rows, "
            f"{rows['lost']} lost, {rows['doubled']} doubled, "
            f"{'equal to' if rows['equal'] else 'different from'} those of an unbroken sweep."
        ]
    }


def _speed_of_search(data: Row) -> Parts:
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
    return {"": [_table(columns, rows)]}


def _speedup(data: Row) -> Parts:
    figures = data["figures"]
    columns: dict[str, Callable[[Row], Any]] = {
        "method": lambda row: row["method"],
        "tokens per step": lambda row: row["tokens"],
        "tokens per second": lambda row: f"{row['speed']:.1f}",
    }
    rows = [
        {"method": name, "speed": speed, "tokens": figures["tokens_per_step"][name]}
        for name, speed in figures["tokens_per_second"].items()
    ]
    said = (
        f"The best of ours ({figures['best_of_ours']}) runs {figures['over_generate']:.2f} times as fast "
        f"as `generate` and {figures['over_assisted']:.2f} times as fast as tuned assisted generation."
    )
    return {"": [_table(columns, rows), said]}


def _passes(data: Row) -> Parts:
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
    prefix = figures["setting"]["prefix"]
    return {
        name: [
            f"**{'The draft' if name == 'draft' else f'A target of {name}'}**, behind {prefix} tokens.",
            _table(columns, figures[name]["rows"]),
        ]
        for name in models
    }


def _overhead(data: Row) -> Parts:
    columns: dict[str, Callable[[Row], Any]] = {
        "tree": lambda row: row["tree"],
        "nodes": lambda row: row["nodes"],
        "step, ms": lambda row: f"{row['ms_per_step']['step']:.1f}",
        "outside the models": lambda row: _percent(row["outside_share"], 1),
    }
    shapes = data["figures"]["shapes"]
    return {"": [_table(columns, [row | {"tree": tree} for tree, row in shapes.items()])]}


def _run(file: str, question: str, parts: Callable[[Row], Parts] = _methods) -> Section:
    """A study of a shipped config."""
    return Section(f"study-{file}", question, f"treespec run {file}", parts)


def _benchmark(file: str, room: str, question: str, parts: Callable[[Row], Parts]) -> Section:
    return Section(file, question, f"python -m treespec.experiments.{room}.{file}", parts)


def _beside(neighbour: str, question: str) -> Section:
    """Runs beside one neighbour."""
    name = "interleaving"
    command = (
        f"python -m treespec.experiments.benchmarks.{name} --by-prompts 6 --neighbour {neighbour}"
    )
    return Section(f"{name}_{neighbour}", question, command, _interleaving)


def _tests(file: str, question: str, parts: Callable[[Row], Parts]) -> Section:
    return Section(file, question, f"PYTHONPATH=tests/helpers python -m {file}", parts)


SECTIONS = {
    "tree_vs_chain": _run(
        "tree_vs_chain", "Does a tree beat a chain here, and plain decoding? `make demo` runs it."
    ),
    "equal_budget": _run(
        "equal_budget",
        "Trees against chains at equal verified nodes, draft passes, and time.",
        _equal_budgets,
    ),
    "search_then_run": Section(
        "study-search_then_run_bfloat16",
        "Which tree does search choose, and is it the fastest? The methods of that run, from before "
        "searches replayed traces: chosen by rates alone.",
        "treespec run search_then_run repeats=2",
        _methods,
    ),
    "search_then_run in float32": Section(
        "study-search_then_run",
        "The same in float32, chosen by rates alone too.",
        "treespec run search_then_run models.dtype=float32",
        _methods,
    ),
    "prediction": Section(
        "prediction",
        "How far off are predictions by rates alone, as searches made them before they replayed "
        "traces?",
        "python -m treespec.experiments.studies.prediction repeats=2",
        _prediction,
    ),
    "budget_scaling": Section(
        "study-budget_scaling_avx512",
        "Do optimal trees grow with the budget where chains stop?",
        "treespec run budget_scaling",
        _scaling,
    ),
    "temperature": _run("temperature", "At other temperatures, with trees searched for each."),
    "context_length": Section(
        "study-context_length", "Behind longer texts.", "treespec sweep context_length", _grid
    ),
    "draft_quality": Section(
        "study-draft_quality",
        "With drafts of other sizes and training.",
        "treespec sweep draft_quality",
        _grid,
    ),
    "categories": _run(
        "categories", "Documentation or code: speedups over plain decoding.", _categories
    ),
    "verifiers": _run("verifiers", "What does each acceptance rule keep on the same trees?"),
    "rules_on_pair": _benchmark(
        "rules_on_pair",
        "studies",
        "What do rules accept on the embedded pair at temperature 1? Draft tokens kept, measured with real "
        "coins and predicted by exact expectation.",
        _rules,
    ),
    "verify_cost": _benchmark("verify_cost", "benchmarks", "What does a verdict cost?", _costs),
    "dynamic_trees": _benchmark(
        "dynamic_trees",
        "studies",
        "Do trees that grow by the draft's confidence keep more than static ones?",
        _dynamic,
    ),
    "replay": _benchmark(
        "replay", "studies", "Does replaying a trace give what a live run gives?", _replay
    ),
    "growth_replay": _benchmark(
        "growth_replay",
        "studies",
        "Does replaying trees that grow give what a live run gives, at temperature 0?",
        _growth_replay,
    ),
    "search_advice": _benchmark(
        "search_advice",
        "studies",
        "Does the advice of a search hold on texts that it has not seen? Halves of traces, one for the "
        "search and one for its replay, again and again.",
        _advice,
    ),
    "speedup": _benchmark(
        "speedup",
        "benchmarks",
        "Beside what a user would pick instead, at temperature 0.",
        _speedup,
    ),
    "passes": Section(
        "passes",
        "What does a pass over a tree cost, operation by operation and compiled?",
        "python -m treespec.experiments.benchmarks.passes --size 50M",
        _passes,
    ),
    "interleaving": _benchmark(
        "interleaving",
        "benchmarks",
        "Does a verdict depend on the neighbours? Two identical chains and a third that is 5 % dearer, in "
        "runs of 12 prompts, on the quiet machine and beside a process that uses a core for 0.7 s of "
        "every 2 s.",
        _interleaving,
    ),
    "interleaving, quiet": _beside("quiet", "The same on the quiet machine alone, in more runs."),
    "interleaving, bursts": _beside(
        "bursts",
        "The same beside the bursts, in more runs, at an hour when the machine itself changed from step "
        "to step: pieces of equal work took 0.8 to 1.7 times their median without any neighbour.",
    ),
    "honest_cost": _benchmark(
        "honest_cost",
        "benchmarks",
        "Do adjusted times charge methods for steps that honestly differ? On the quiet machine, where "
        "totals are right.",
        _honest,
    ),
    "interleaved_estimator": _benchmark(
        "interleaved_estimator",
        "studies",
        "How far off are adjusted times on simulated machines?",
        _estimator,
    ),
    "interleaved_estimator, recorded": Section(
        "interleaved_estimator_recorded",
        "The same on slowdowns that were recorded on this machine (`benchmarks.slowdown_traces`).",
        "python -m treespec.experiments.studies.interleaved_estimator --traces FOLDER",
        _estimator,
    ),
    "until_simulation": _benchmark(
        "until_simulation",
        "studies",
        "How often do runs that stop when they are decided find a winner among equals, and how many "
        "prompts do they need?",
        _until,
    ),
    "loop_overhead": _benchmark(
        "loop_overhead", "benchmarks", "What does the loop cost outside the models?", _overhead
    ),
    "search_speed": _benchmark(
        "search_speed", "benchmarks", "How long does searching a tree take?", _speed_of_search
    ),
    "bootstrap_coverage": _benchmark(
        "bootstrap_coverage",
        "studies",
        "Do the intervals contain the truth as often as they say?",
        _coverage,
    ),
    "lossless_power": _benchmark(
        "lossless_power", "studies", "What would `treespec check-lossless` notice?", _power
    ),
    "fault_injection": _tests(
        "fault_injection", "Do runs survive kills, interrupts, damaged files, full disks?", _faults
    ),
    "sweep_faults": _tests("sweep_faults", "Do sweeps?", _sweep_faults),
}


def main() -> None:
    """Write both pages."""
    if not README.is_file():
        raise SystemExit(f"there is no {README}: these pages belong to a clone of treespec")
    write_whole(PAGE, results_page())
    write_whole(README, filled(README.read_text(encoding="utf-8")))
    print(f"written: {PAGE}, {README}")


if __name__ == "__main__":
    main()
