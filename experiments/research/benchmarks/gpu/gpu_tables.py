"""Print the result files of each device as tables."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from treespec.experiments.measure.roofline import Floor, Heads
from treespec.experiments.report.table import NONE, Column, Finding, Table, keyed
from treespec.experiments.report.terminal import print_finding, say
from treespec.experiments.research.benchmarks.gpu.a_a import LARGEST_HALF_WIDTH
from treespec.experiments.research.benchmarks.gpu.candidates import FLOORS, KERNEL, MASKED
from treespec.experiments.research.benchmarks.gpu.gpu_session import CLOCKS

_Cell = Mapping[str, Any]


def render(folder: Path, console: Console) -> None:
    """Print the files of all devices in a folder."""
    paths = [path for part in FINDINGS for path in sorted(folder.glob(f"gpu_{part}-*.json"))]
    for path in paths:
        data = json.loads(path.read_text(encoding="utf-8"))
        say(console, f"{path}: {_setting(data)}")
        finding = FINDINGS[data["benchmark"].removeprefix("gpu_")](data)
        print_finding(replace(finding, notes=[*finding.notes, *clocks_told(data)]), console)
    if not paths:
        say(console, f"no results in {folder}")


def _setting(data: dict[str, Any]) -> str:
    """Peaks that figures are compared with, and those that simple programs reach."""
    peak, reached = data["peak"], data["measured_peak"]
    return (
        f"{'DRY RUN, figures mean nothing; ' if data['dry'] else ''}"
        f"peaks {peak['bandwidth'] / 1e12:.3g} TB/s, {peak['flops'] / 1e12:.4g} TFLOP/s ({peak['source']})"
        f"; a copy reaches {reached['bandwidth'] / 1e12:.3g} TB/s, a matrix product "
        f"{reached['flops'] / 1e12:.4g} TFLOP/s"
    )


def clocks_told(data: Mapping[str, Any]) -> list[str]:
    """Clocks and power of the device when a part began, and of its runs, where its file holds them."""
    device = data["device"]
    if not all(name in device for name in CLOCKS):
        return []
    started = (
        f"Clocks when the part began: SM {device['clocks.sm']} of at most {device['clocks.max.sm']}, "
        f"memory {device['clocks.mem']} of at most {device['clocks.max.mem']}; power limit "
        f"{device['power.limit']}, of which {device['power.draw']} were drawn."
    )
    runs = [each for cell in data["cells"].values() if (each := cell.get("clocks"))]
    if not runs:
        return [started]
    sm, memory, limit, drawn = (
        _range([run[name] for run in runs])
        for name in ("clocks.sm", "clocks.mem", "power.limit", "power.draw")
    )
    return [
        started,
        f"After its runs: SM {sm}, memory {memory}; power limit {limit}, drawn {drawn}.",
    ]


def _range(values: Sequence[str]) -> str:
    """The smallest and the largest of some numbers with a unit; one if they are equal."""
    ordered = sorted(set(values), key=lambda value: (len(value), value))
    return " to ".join(dict.fromkeys((ordered[0], ordered[-1])))


def _accuracy(data: dict[str, Any]) -> Finding:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in data["cells"].values():
        groups.setdefault((cell["dtype"], cell["name"]), []).append(cell)
    rows = []
    for (dtype, name), cells in groups.items():
        checked = [cell for cell in cells if "error" not in cell]
        worst = max(checked, key=lambda cell: cell["of_bound"], default={})
        right = "yes" if len(checked) == len(cells) else "not all checked"
        if any(cell.get("passed") is False for cell in cells):
            right = "FAILED"
        rows.append(
            {
                "dtype": dtype, "name": name, "cases": len(cells), "right": right,
                "error_max": worst.get("error_max"), "of_bound": worst.get("of_bound"),
            }
        )  # fmt: skip
    columns = (
        keyed("dtype", "dtype", left=True),
        keyed("case", "name", left=True),
        keyed("cases", "cases"),
        keyed("largest error", "error_max", ".2e"),
        keyed("of bound", "of_bound", ".2f"),
        keyed("right", "right", left=True),
    )
    errors = [f"{key}: {cell['error']}" for key, cell in data["cells"].items() if "error" in cell]
    return _finding("The kernel against float64", columns, rows, errors, data)


@dataclass(frozen=True)
class KernelRow:
    """All candidates at one place of the grid; microseconds, on the device if a call could be captured."""

    heads: Heads
    rows: int
    prefix: int
    us: Mapping[str, float]
    launch_us: float | None
    floor: Floor
    errors: Mapping[str, str]

    def over(self, names: Sequence[str]) -> float | None:
        """The kernel's time over that of the fastest of these candidates."""
        return _ratio(
            self.us.get(KERNEL),
            min((self.us[name] for name in names if name in self.us), default=None),
        )

    @property
    def fraction(self) -> float | None:
        """The fraction of the roofline that the kernel reaches."""
        return _ratio(self.floor.us, self.us.get(KERNEL))


def kernel_rows(cells: Mapping[str, _Cell]) -> list[KernelRow]:
    """The rows of a file, sorted by heads, prefix and nodes."""
    places: dict[tuple[Heads, int, int], list[_Cell]] = {}
    for cell in cells.values():
        places.setdefault((Heads(*cell["heads"]), cell["prefix"], cell["rows"]), []).append(cell)
    found = []
    for (heads, prefix, rows), here in sorted(places.items()):
        by_name = {cell["candidate"]: cell for cell in here}
        times = {n: cell.get("device") or cell.get("with_launch") for n, cell in by_name.items()}
        launch = by_name.get(KERNEL, {}).get("with_launch")
        found.append(
            KernelRow(
                heads, rows, prefix,
                us={name: time["median_us"] for name, time in times.items() if time is not None},
                launch_us=launch["median_us"] if launch else None,
                floor=Floor(here[0]["bytes_us"], here[0]["flops_us"]),
                errors={name: cell["error"] for name, cell in by_name.items() if "error" in cell},
            )
        )  # fmt: skip
    return found


def _kernels(data: dict[str, Any]) -> Finding:
    def time(name: str, row: KernelRow) -> str:
        return "error" if name in row.errors else _number(row.us.get(name))

    columns = (
        Column[KernelRow]("heads", lambda row: str(row.heads), left=True),
        Column[KernelRow]("prefix", lambda row: _thousands(row.prefix)),
        Column[KernelRow]("T", lambda row: str(row.rows)),
        Column[KernelRow]("kernel", partial(time, KERNEL)),
        Column[KernelRow]("launch", lambda row: _number(row.launch_us)),
        Column[KernelRow]("roofline", lambda row: _number(row.floor.us)),
        Column[KernelRow]("bound", lambda row: row.floor.bound, left=True),
        Column[KernelRow]("fraction", lambda row: _number(row.fraction, 2)),
        Column[KernelRow]("/ no mask", lambda row: _number(row.over(FLOORS), 2)),
        Column[KernelRow]("/ masked", lambda row: _number(row.over(MASKED), 2)),
        *(Column[KernelRow](name, partial(time, name), moves=1) for name in (*MASKED, *FLOORS)),
    )
    rows = kernel_rows(data["cells"])
    notes = [
        "Median microseconds, without the making of masks, which layers share. Times are device times "
        "(captured graphs) where a call could be captured; launch: the kernel as Python calls it.",
        "roofline: max(bytes / bandwidth, flops / peak); fraction: roofline / kernel; / no mask: kernel "
        "over the faster of flash and cudnn; / masked: over the fastest of sdpa, flex and two_pass.",
        *sorted({f"{name}: {error}" for row in rows for name, error in row.errors.items()}),
    ]
    return _finding("Attention of one layer, Hq/Hkv/D", columns, rows, notes, data)


def _decode(data: dict[str, Any]) -> Finding:
    cells = list(data["cells"].values())
    cold = [cell for cell in cells if "text" in cell and cell["temperature"] == 0]
    texts = {cell["size"]: cell["text"] for cell in reversed(cold)}

    def same(cell: _Cell) -> str:
        if "text" not in cell or cell["temperature"] != 0:
            return NONE
        return "yes" if cell["text"] == texts[cell["size"]] else "no"

    def greedy(cell: _Cell) -> str:
        if "greedy" not in cell:
            return NONE
        if not cell["greedy"]:
            return "NO"
        return f"{len(cell['ties'])} near ties" if cell["ties"] else "yes"

    def stage(name: str, cell: _Cell) -> str:
        return _number(cell["stage_ms"][name] if "stage_ms" in cell else None, 2)

    def floor(cell: _Cell) -> str:
        measured = "verify_floor_ms" in cell
        return _number(cell["verify_floor_ms"] + cell["draft_floor_ms"] if measured else None, 2)

    def value(title: str, key: str, digits: int) -> Column[_Cell]:
        return Column[_Cell](title, lambda cell: _number(cell.get(key), digits))

    columns = (
        keyed("target", "size", left=True),
        Column[_Cell]("words", lambda cell: _number(cell.get("words"), 0)),
        keyed("temp.", "temperature", "g"),
        keyed("method", "method", left=True),
        keyed("passes", "target", left=True),
        Column[_Cell]("accepts", _accepts, left=True),
        value("tok/s", "tokens_per_second", 1),
        value("tok/step", "tokens_per_step", 2),
        value("ms/step", "ms_per_step", 2),
        Column[_Cell]("draft", partial(stage, "draft")),
        Column[_Cell]("verify", partial(stage, "verify")),
        Column[_Cell]("floor", floor),
        value("verify / floor", "verify_over_floor", 2),
        value("step / floor", "step_over_floor", 2),
        value("/ measured", "step_over_measured", 2),
        value("J/token", "joules_per_token", 3),
        Column[_Cell]("same text", same, left=True),
        Column[_Cell]("greedy", greedy, left=True),
    )
    reasons = [
        f"{cell['size']}, {cell['target']}: {cell.get('unavailable') or cell.get('error')}"
        for cell in cells
        if "ms_per_step" not in cell
    ]
    notes = [
        *dict.fromkeys(reasons),
        "accepts: what the pair agrees on, or what was accepted in real texts: "
        f"{data['settings'].get('trace', 'none')}, hence at temperature 0 only. Recorded steps are "
        "replayed by the host, to which all rows are copied: compare these cells with each other only.",
        "Milliseconds per step; draft and verify: medians of these stages, each with synchronization.",
        "floor: bytes of all passes of a step over the bandwidth; / floor: time of the verify stage over "
        "its floor, and of the whole step over its floor; / measured: the same with the bandwidth that a "
        "copy reaches.",
        "same text: whether the text equals that of the first row of this size, at temperature 0; in "
        "bfloat16 other kernels round differently, so a near tie may be decided differently.",
        "greedy: whether every token of the first text is the best one by logits in float64, but for near "
        "ties.",
        *dict.fromkeys(
            f"{cell['size']}: the logit of token {place} is {gap:.2g} below the best; up to "
            f"{2 * cell['logit_bound']:.2g} is a near tie"
            for cell in cells
            for place, gap in cell.get("ties", [])
        ),
    ]
    return _finding(
        "Decoding with the embedded pair, its target enlarged", columns, cells, notes, data
    )


def _peers(data: dict[str, Any]) -> Finding:
    rows = [
        {"size": cell["size"], "way": way, "speed": speed, "over": cell["ours_over"].get(way),
         "same": cell["same_ids"][way]}
        for cell in data["cells"].values()
        for way, speed in cell.get("tokens_per_second", {}).items()
    ]  # fmt: skip
    columns = (
        keyed("target", "size", left=True),
        keyed("way", "way", left=True),
        keyed("tok/s", "speed", ".1f"),
        keyed("ours / it", "over", ".3f"),
        keyed("tokens as ours", "same"),
    )
    reasons = [
        f"{cell['size']}, {way}: {reason}"
        for cell in data["cells"].values()
        for way, reason in (cell.get("unavailable", {}) | _error(cell)).items()
    ]
    kernels = [
        f"{cell['size']}: the fast loop's attention is {cell['fast_loop_attention']}"
        for cell in data["cells"].values()
        if "fast_loop_attention" in cell
    ]
    told = "ours / it: tokens per second, the median of the ratios of each round."
    notes = [*reasons, *kernels, told]
    return _finding("Plain decoding, side by side", columns, rows, notes, data)


def _error(cell: _Cell) -> dict[str, str]:
    return {"all": cell["error"]} if "error" in cell else {}


def _values(title: str, keys: Mapping[str, tuple[str, int | None]]) -> Any:
    """Makes the table of a part whose cells are its rows; `keys`: by column, its key and its digits."""

    def column(name: str, key: str, digits: int | None) -> Column[_Cell]:
        if digits is None:
            return Column[_Cell](name, lambda cell: str(cell.get(key, NONE)), left=True)
        return Column[_Cell](name, lambda cell: _number(cell.get(key), digits))

    def finding(data: dict[str, Any]) -> Finding:
        cells = list(data["cells"].values())
        problems = [f"{key}: {why}" for key, cell in data["cells"].items() if (why := _why(cell))]
        columns = [column(name, *given) for name, given in keys.items()]
        return _finding(title, columns, cells, problems, data)

    return finding


def _why(cell: _Cell) -> str:
    return cell.get("unavailable") or cell.get("error", "")


def _layers(data: dict[str, Any]) -> Finding:
    rows = [cell | one for cell in data["cells"].values() for one in cell.get("nodes", [])]
    columns = (
        keyed("target", "size", left=True),
        Column[_Cell]("words", lambda row: _number(row.get("words"), 0)),
        Column[_Cell](
            "layers", lambda row: "compiled" if row["compiled"] else "operations", left=True
        ),
        keyed("nodes", "nodes"),
        keyed("ms", "pass_ms", ".3f"),
        keyed("bytes, ms", "floor_ms", ".3f"),
        keyed("/ bytes", "over_floor", ".2f"),
        keyed("first, s", "first_s", ".1f"),
    )
    cells = data["cells"].items()
    found = ["Code of an earlier run was found."] if data.get("code_found") else []
    seconds = [
        f"{key}: {cell['compilations']} compilations, {cell['trial_s']:.0f} s for the trial, "
        f"{sum(one['first_s'] for one in cell['nodes']):.0f} s for first passes"
        for key, cell in cells
        if "trial_s" in cell
    ]
    errors = [
        f"{key}: the largest error of a logit is {cell['error_max']:.2g}; {cell['bound']:.2g} is allowed"
        for key, cell in cells
        if "bound" in cell
    ]
    problems = [
        f"{key}: {why}" for key, cell in cells if (why := cell.get("uncompiled") or _why(cell))
    ]
    notes = [*found, *seconds, *errors, *problems]
    return _finding("A captured pass", columns, rows, notes, data)


def _plans(data: dict[str, Any]) -> Finding:
    rows = [cell | one for cell in data["cells"].values() for one in cell.get("plans", [])]
    columns = (
        Column[_Cell]("prefix", lambda row: _thousands(row["prefix"])),
        Column[_Cell]("T", lambda row: str(row["rows"])),
        keyed("plan", "plan", left=True),
        keyed("tile", "tile", left=True),
        keyed("splits", "splits"),
        Column[_Cell]("merged", lambda row: "in place" if row["in_place"] else NONE, left=True),
        keyed("us", "us", ".1f"),
        keyed("/ two launches", "over_two_launches", ".3f"),
        keyed("estimate", "estimated_us", ".1f"),
        keyed("fraction", "fraction", ".2f"),
    )
    fastest = [
        f"{key}: fastest with {min(cell['plans'], key=lambda one: one['us'])['plan']}"
        for key, cell in data["cells"].items()
        if "plans" in cell
    ]
    problems = [f"{key}: {why}" for key, cell in data["cells"].items() if (why := _why(cell))]
    return _finding("Plans of one layer's attention", columns, rows, [*fastest, *problems], data)


_draft = _values(
    "Drafting a tree",
    {
        "draft": ("model", None), "tree": ("method", None), "temp.": ("temperature", 0),
        "way": ("way", None), "ms": ("ms", 3), "graph, ms": ("graph_ms", 3),
    },
)  # fmt: skip


def _accepts(cell: _Cell) -> str:
    return "as a real text" if cell.get("real_text") else "own"


def _profile(data: dict[str, Any]) -> Finding:
    cells = {key: dict(cell) | {"accepts": _accepts(cell)} for key, cell in data["cells"].items()}
    finding = _values(
        "What a step consists of",
        {
            "target": ("size", None), "words": ("words", 0), "method": ("method", None),
            "accepts": ("accepts", None), "ms/step": ("ms_per_step", 3),
            "kernels": ("kernels_ms", 3), "launches": ("launches", 0), "waiting": ("waiting_ms", 3),
            "bytes": ("floor_ms", 3), "/ sheet": ("over_sheet", 2),
            "/ measured": ("over_measured", 2),
        },
    )(data | {"cells": cells})  # fmt: skip
    rows = [
        kernel | {"case": key}
        for key, cell in data["cells"].items()
        for kernel in cell.get("kernels", [])
    ]
    columns = (
        keyed("step of", "case", left=True), keyed("us", "us", ".1f"), keyed("calls", "calls", ".1f"),
        Column[_Cell]("kernel", lambda row: row["name"][:80], left=True),
    )  # fmt: skip
    kernels = Table("Kernels of a step", columns, rows)
    return Finding(finding.title, [*finding.tables, kernels], finding.notes)


def _aa(data: dict[str, Any]) -> Finding:
    finding = _values(
        "A method against itself",
        {
            "run": ("run", 0), "ratio": ("ratio", 4), "half-width": ("half_width", 4),
            "contains 1": ("contains_1", None), "J/token": ("joules_per_token", 3),
        },
    )(data)  # fmt: skip
    halves = [cell["half_width"] for cell in data["cells"].values() if "half_width" in cell]
    narrow = sum(half <= LARGEST_HALF_WIDTH for half in halves)
    said = f"{narrow} of {len(halves)} intervals are at most {LARGEST_HALF_WIDTH:.1%} to each side."
    return Finding(finding.title, finding.tables, [said, *finding.notes])


FINDINGS = {
    "accuracy": _accuracy, "layers": _layers, "profile": _profile, "decode": _decode, "draft": _draft,
    "kernels": _kernels, "plans": _plans, "peers": _peers, "aa": _aa,
}  # fmt: skip
"""For each part, how its file becomes a finding."""


def _finding(
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Any],
    notes: Sequence[str],
    data: dict[str, Any],
) -> Finding:
    count = f"{len(data['cells'])} of {data['settings']['cells']} cells were measured."
    return Finding(title, [Table(title, columns, rows)], [*notes, count])


def _number(value: float | None, digits: int = 1) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def _thousands(count: int) -> str:
    return f"{count >> 10}k" if count and count % 1024 == 0 else str(count)


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None
