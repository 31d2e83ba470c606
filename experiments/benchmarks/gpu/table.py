"""Render the result files of each device as tables, for the terminal and in Markdown, with a figure.

The figure shows the fraction of the roofline that the kernel reaches, over the size of the tree.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from treespec.experiments.benchmarks.gpu.candidates import FLOORS, KERNEL, MASKED
from treespec.experiments.benchmarks.gpu.goals import (
    FRACTION,
    Goals,
    KernelRow,
    decode_goals,
    kernel_rows,
    tally,
)
from treespec.experiments.report.figure_style import INK, MUTED, PAGE, by_powers, panels_beside
from treespec.experiments.report.markdown import finding_markdown
from treespec.experiments.report.table import NONE, Column, Finding, Table, keyed
from treespec.experiments.report.terminal import print_finding, say
from treespec.files import write_whole

__all__ = ["draw", "render"]

_Cell = Mapping[str, Any]

DRY = "DRY RUN through the interpreter over tiny shapes: these figures mean nothing."


def render(folder: Path, console: Console) -> list[Path]:
    """Print the results of every device in a folder; write `gpu-<device>.md` and `gpu-<device>.png`.

    Args:
        folder: folder of the files that the other parts wrote.
        console: console for the tables.

    Returns:
        The paths of the written files.
    """
    devices: dict[str, dict[str, Any]] = {}
    for part in FINDINGS:
        for path in sorted(folder.glob(f"gpu_{part}-*.json")):
            device = path.stem.removeprefix(f"gpu_{part}-")
            devices.setdefault(device, {})[part] = json.loads(path.read_text(encoding="utf-8"))
    written = []
    for device, files in devices.items():
        findings = [make(files[part]) for part, make in FINDINGS.items() if part in files]
        for finding in findings:
            print_finding(finding, console)
        hardware = next(iter(files.values()))["hardware"]
        machine = hardware["gpu"] or f"{hardware['cpu']} (no GPU)"
        blocks = [f"# {machine}", _setting(files), *map(finding_markdown, findings)]
        rows = kernel_rows(files["kernels"]["cells"]) if "kernels" in files else []
        picture = draw(rows, folder / f"gpu-{device}.png")
        if picture is not None:
            blocks.append(f"![fraction of the roofline]({picture.name})")
            written.append(picture)
        path = folder / f"gpu-{device}.md"
        written.append(write_whole(path, "\n\n".join(blocks) + "\n"))
    if not devices:
        say(console, f"no results in {folder}")
    return written


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
    count = f"{len(data['cells'])} of {data['settings']['cells']} cases were checked."
    return _finding("The kernel against float64", columns, rows, [*errors, count])


def _kernels(data: dict[str, Any]) -> Finding:
    def other(name: str, row: KernelRow) -> str:
        return "error" if name in row.errors else _number(row.us.get(name))

    columns = (
        Column[KernelRow]("heads", lambda row: str(row.heads), left=True),
        Column[KernelRow]("prefix", lambda row: _thousands(row.prefix)),
        Column[KernelRow]("T", lambda row: str(row.rows)),
        Column[KernelRow]("kernel", lambda row: _number(row.us.get(KERNEL))),
        Column[KernelRow]("launch", lambda row: _number(row.launch_us)),
        Column[KernelRow]("roofline", lambda row: _number(row.floor_us)),
        Column[KernelRow]("bound", lambda row: row.bound, left=True),
        Column[KernelRow]("fraction", lambda row: _judged(row.fraction, row.goals, 0)),
        Column[KernelRow]("/ no mask", lambda row: _judged(row.over_unmasked, row.goals, 1)),
        Column[KernelRow]("/ masked", lambda row: _judged(row.over_masked, row.goals, 2)),
        *(Column[KernelRow](name, partial(other, name), moves=1) for name in (*MASKED, *FLOORS)),
    )
    rows = kernel_rows(data["cells"])
    notes = [
        "Median microseconds, without the making of masks, which layers share. Times are device times "
        "(captured graphs) where a call could be captured; launch: the kernel as Python calls it.",
        "roofline: max(bytes / bandwidth, flops / peak); fraction: roofline / kernel; / no mask: kernel "
        "over the faster of flash and cudnn; / masked: over the fastest of sdpa, flex and two_pass.",
        "yes and NO: whether a goal is met where it applies. "
        f"Goals met: {_tallied(row.goals for row in rows)}.",
        f"{len(data['cells'])} of {data['settings']['cells']} times were measured.",
        *sorted({f"{name}: {error}" for row in rows for name, error in row.errors.items()}),
    ]
    return _finding("Attention of one layer, Hq/Hkv/D", columns, rows, notes)


def _decode(data: dict[str, Any]) -> Finding:
    cells = list(data["cells"].values())
    cold = [cell for cell in cells if "text" in cell and cell["temperature"] == 0]
    texts = {cell["size"]: cell["text"] for cell in reversed(cold)}

    def same(cell: _Cell) -> str:
        if "text" not in cell or cell["temperature"] != 0:
            return NONE
        return "yes" if cell["text"] == texts[cell["size"]] else "no"

    def stage(name: str, cell: _Cell) -> str:
        return _number(cell["stage_ms"][name] if "stage_ms" in cell else None, 2)

    def value(key: str, digits: int, cell: _Cell) -> str:
        return _number(cell.get(key), digits)

    def floor(cell: _Cell) -> str:
        measured = "verify_floor_ms" in cell
        return _number(cell["verify_floor_ms"] + cell["draft_floor_ms"] if measured else None, 2)

    columns = (
        keyed("target", "size", left=True),
        keyed("temp.", "temperature", "g"),
        keyed("method", "method", left=True),
        keyed("passes", "target", left=True),
        Column[_Cell]("tok/s", partial(value, "tokens_per_second", 1)),
        Column[_Cell]("tok/step", partial(value, "tokens_per_step", 2)),
        Column[_Cell]("ms/step", partial(value, "ms_per_step", 2)),
        Column[_Cell]("draft", partial(stage, "draft")),
        Column[_Cell]("verify", partial(stage, "verify")),
        Column[_Cell]("floor", floor),
        Column[_Cell]("verify / floor", partial(value, "verify_over_floor", 2)),
        Column[_Cell](
            "step / floor", lambda cell: _judged(cell.get("step_over_floor"), decode_goals(cell))
        ),
        Column[_Cell]("same text", same, left=True),
    )
    reasons = [
        f"{cell['size']}, {cell['target']}: {cell.get('unavailable') or cell.get('error')}"
        for cell in cells
        if "ms_per_step" not in cell
    ]
    notes = [
        *dict.fromkeys(reasons),
        "Milliseconds per step; draft and verify: medians of these stages, each with synchronization.",
        "floor: bytes of all passes of a step over the bandwidth; / floor: time of the verify stage over "
        "its floor, and of the whole step over its floor.",
        "same text: whether the text equals that of the first row of this size, at temperature 0; in "
        "bfloat16 other kernels round differently, so a near tie may be decided differently.",
        "yes and NO: whether the goal is met, with graphs. "
        f"Goals met: {_tallied(map(decode_goals, cells))}.",
        f"{len(data['cells'])} of {data['settings']['cells']} cells were measured.",
    ]
    return _finding("Decoding with the embedded pair, its target enlarged", columns, cells, notes)


FINDINGS = {"accuracy": _accuracy, "kernels": _kernels, "decode": _decode}
"""For each part, how its file becomes a finding."""


def _finding(
    title: str, columns: Sequence[Column], rows: Sequence[Any], notes: Sequence[str]
) -> Finding:
    """A finding with one table under the title of the section."""
    return Finding(title, [Table(title, columns, rows)], notes)


def _setting(files: dict[str, Any]) -> str:
    """Code, versions and peaks, one line for each part."""
    lines = []
    for part, data in files.items():
        versions = ", ".join(f"{name} {v}" for name, v in data["versions"].items() if v)
        peak, reached = data["peak"], data["measured_peak"]
        lines.append(
            f"- {part}: {data['measured']}, git {data['git_hash']}, sources {data['source_hash']}; "
            f"{versions}; peaks {peak['bandwidth'] / 1e12:.3g} TB/s, {peak['flops'] / 1e12:.4g} TFLOP/s "
            f"({peak['source']}); a copy reaches {reached['bandwidth'] / 1e12:.3g} TB/s, a matrix product "
            f"{reached['flops'] / 1e12:.4g} TFLOP/s"
        )
    if any(data["dry"] for data in files.values()):
        lines.insert(0, f"**{DRY}**\n")
    return "\n".join(lines)


def _tallied(rows: Iterable[Goals]) -> str:
    return ", ".join(f"{name}: {met} of {of}" for name, (met, of) in tally(rows).items()) or NONE


def _judged(value: float | None, goals: Goals, goal: int = 0) -> str:
    """A figure as text, and whether it meets the goal with this index."""
    met = list(goals.values())[goal]
    return _number(value, 2) + {True: " yes", False: " NO", None: ""}[met]


def _number(value: float | None, digits: int = 1) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def _thousands(count: int) -> str:
    return f"{count >> 10}k" if count and count % 1024 == 0 else str(count)


SHADES = ("#c6dbef", "#93c4de", "#5a9fcd", "#2b7bba", "#0b559f", "#08306b")
"""Line colours, from short prefixes to long ones."""


def draw(rows: Sequence[KernelRow], path: Path) -> Path | None:
    """Write the figure, with a panel for each choice of heads and a line for each prefix.

    Args:
        rows: rows of the table.
        path: path of the PNG.

    Returns:
        The path, or None if there is nothing to draw.
    """
    points = [(r.heads, r.prefix, r.rows, r.fraction) for r in rows if r.fraction is not None]
    if not points:
        return None
    each_heads, each_prefix, each_count, fractions = zip(*points, strict=True)
    heads, prefixes, ticks = (sorted(set(each)) for each in (each_heads, each_prefix, each_count))
    with panels_beside(len(heads), 3.1 * len(heads) + 1.3, 3.4, sharey=True) as (figure, panels):
        for axes, shown in zip(panels, heads, strict=True):
            for i, prefix in enumerate(prefixes):
                line = [point[2:] for point in points if point[:2] == (shown, prefix)]
                axes.plot(
                    *zip(*line, strict=True), marker="o",
                    color=SHADES[-len(prefixes) :][i], markersize=4.5, label=f"{prefix:,}",
                )  # fmt: skip
            axes.axhline(FRACTION, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
            by_powers(axes, ticks, "nodes T")
            axes.set_title(f"Hq/Hkv/D = {shown}", loc="left", fontsize=10.5, color=INK)
        panels[0].set_ylim(0, max(1.0, *fractions) * 1.03)
        panels[0].set_ylabel("fraction of the roofline")
        figure.legend(
            *panels[0].get_legend_handles_labels(), title="prefix", loc="outside right center",
            fontsize=8.5,
        )  # fmt: skip
        return write_whole(
            path, lambda file: figure.savefig(file, format="png", dpi=160, facecolor=PAGE)
        )
