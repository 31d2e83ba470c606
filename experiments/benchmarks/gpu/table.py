"""The files of one device as tables, for the terminal and in Markdown, with a figure beside them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from treespec.experiments.benchmarks.gpu.candidates import FLOORS, MASKED
from treespec.experiments.benchmarks.gpu.figure import draw
from treespec.experiments.benchmarks.gpu.goals import (
    DecodeRow,
    KernelRow,
    decode_rows,
    kernel_rows,
    tally,
)
from treespec.search.whole_file import write_whole

__all__ = ["Sheet", "render"]

PARTS = ("accuracy", "kernels", "decode")
NONE = "–"
DRY = "DRY RUN through the interpreter over tiny shapes: these figures mean nothing."


@dataclass(frozen=True)
class Sheet:
    """A table as text.

    Args:
        title: above it.
        columns: their heads.
        rows: their cells.
        notes: below it.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """For a file."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        notes = "".join(f"\n- {note}" for note in self.notes)
        return f"## {self.title}\n\n{table}\n{notes}\n"

    def show(self, console: Console) -> None:
        """On the terminal."""
        table = Table(*self.columns, title=self.title)
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        for note in self.notes:
            console.print(f"- {note}", highlight=False, markup=False)


def render(folder: Path, console: Console) -> list[Path]:
    """Print the results of every device in a folder; write `gpu-<device>.md` and `gpu-<device>.png`.

    Args:
        folder: of the files that the other parts wrote.
        console: to print on.

    Returns:
        The files written.
    """
    devices: dict[str, dict[str, Any]] = {}
    for part in PARTS:
        for path in sorted(folder.glob(f"gpu_{part}-*.json")):
            device = path.stem.removeprefix(f"gpu_{part}-")
            devices.setdefault(device, {})[part] = json.loads(path.read_text(encoding="utf-8"))
    written = []
    for device, files in devices.items():
        sheets = sheets_of(files)
        for sheet in sheets:
            sheet.show(console)
        blocks = [f"# {_machine(files)}\n\n{_setting(files)}\n", *(s.markdown() for s in sheets)]
        text = "\n".join(blocks)
        rows = kernel_rows(files["kernels"]["cells"]) if "kernels" in files else []
        picture = draw(rows, folder / f"gpu-{device}.png")
        if picture is not None:
            text += f"\n![fraction of the roofline]({picture.name})\n"
            written.append(picture)
        path = folder / f"gpu-{device}.md"
        written.append(write_whole(path, text))
    if not devices:
        console.print(f"no results in {folder}", markup=False)
    return written


def sheets_of(files: dict[str, Any]) -> list[Sheet]:
    """The tables of one device, of the parts that were measured."""
    make = {"accuracy": _accuracy, "kernels": _kernels, "decode": _decode}
    return [make[part](files[part]) for part in PARTS if part in files]


def _accuracy(data: dict[str, Any]) -> Sheet:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in data["cells"].values():
        groups.setdefault((cell["dtype"], cell["name"]), []).append(cell)
    rows = []
    for (dtype, name), cells in groups.items():
        good = [cell for cell in cells if "error" not in cell]
        worst = max(good, key=lambda cell: cell["of_bound"], default=None)
        rows.append([
            dtype, name, str(len(cells)), f"{worst['error_max']:.2e}" if worst else NONE,
            f"{worst['of_bound']:.2f}" if worst else NONE,
            "FAILED" if any(cell.get("passed") is False for cell in cells)
            else "yes" if len(good) == len(cells) else "not all checked",
        ])  # fmt: skip
    notes = [f"{key}: {cell['error']}" for key, cell in data["cells"].items() if "error" in cell]
    notes.append(f"{len(data['cells'])} of {data['settings']['cells']} cases were checked.")
    return Sheet(
        "The kernel against float64",
        ("dtype", "case", "cases", "largest error", "of bound", "right"),
        rows,
        notes,
    )


def _kernels(data: dict[str, Any]) -> Sheet:
    found = kernel_rows(data["cells"])
    rows = [
        [
            str(row.heads), _thousands(row.prefix), str(row.rows),
            _number(row.us.get("kernel")), _number(row.launch_us), _number(row.floor_us), row.bound,
            *(f"{_number(value, 2)}{mark}" for value, mark in zip(
                (row.fraction, row.over_unmasked, row.over_masked), _marks(row), strict=True
            )),
            *(_other(row, name) for name in (*MASKED, *FLOORS)),
        ]
        for row in found
    ]  # fmt: skip
    notes = [
        "Microseconds, medians, without the making of masks, which layers share. Times are those of the "
        "device (captured graphs) where a call could be captured; launch: the kernel as Python calls it.",
        "roofline: max(bytes / bandwidth, flops / peak); fraction: roofline / kernel; / no mask: kernel "
        "over the faster of flash and cudnn; / masked: over the fastest of sdpa, flex and two_pass.",
        f"yes and NO: whether a goal is met where it applies. {_tallied(found)}.",
        f"{len(data['cells'])} of {data['settings']['cells']} times were taken.",
    ]
    notes += sorted({f"{name}: {error}" for row in found for name, error in row.errors.items()})
    return Sheet(
        "Attention of one layer, Hq/Hkv/D",
        ("heads", "prefix", "T", "kernel", "launch", "roofline", "bound", "fraction", "/ no mask",
         "/ masked", *MASKED, *FLOORS),
        rows, notes,
    )  # fmt: skip


def _decode(data: dict[str, Any]) -> Sheet:
    found = decode_rows(data["cells"])
    texts: dict[tuple[str, float], str] = {}
    for row in found:
        if row.measured and row.cell["temperature"] == 0:
            texts.setdefault((row.cell["size"], 0.0), row.cell["text"])
    rows, notes = [], []
    for row in found:
        cell = row.cell
        start = [cell["size"], f"{cell['temperature']:g}", cell["method"], cell["target"]]
        if not row.measured:
            rows.append([*start, *[NONE] * 9])
            reason = cell.get("unavailable") or cell.get("error")
            notes.append(f"{cell['size']}, {cell['target']}: {reason}")
            continue
        stages, text = cell["stage_ms"], texts.get((cell["size"], cell["temperature"]))
        rows.append([
            *start, _number(cell["tokens_per_second"]), _number(cell["tokens_per_step"], 2),
            _number(cell["ms_per_step"], 2), _number(stages["draft"], 2), _number(stages["verify"], 2),
            _number(cell["verify_floor_ms"] + cell["draft_floor_ms"], 2),
            _number(cell["verify_over_floor"], 2), f"{cell['step_over_floor']:.2f}{_marks(row)[0]}",
            NONE if text is None else "yes" if text == cell["text"] else "no",
        ])  # fmt: skip
    notes = [
        *dict.fromkeys(notes),
        "Milliseconds per step; draft and verify: medians of these stages, each ended by waiting.",
        "floor: bytes of all passes of a step over the bandwidth; / floor: of the verify stage, and of the "
        "whole step.",
        "same text: as the first row of this size, at temperature 0; in bfloat16 other kernels round "
        "otherwise, so a near tie may fall the other way.",
        f"yes and NO: whether the goal is met, with graphs. {_tallied(found)}.",
        f"{len(data['cells'])} of {data['settings']['cells']} cells were measured.",
    ]
    return Sheet(
        "Decoding with the embedded pair, its target grown",
        ("target", "temp.", "method", "passes", "tok/s", "tok/step", "ms/step", "draft", "verify",
         "floor", "verify / floor", "step / floor", "same text"),
        rows, notes,
    )  # fmt: skip


def _machine(files: dict[str, Any]) -> str:
    hardware = next(iter(files.values()))["hardware"]
    return hardware["gpu"] or f"{hardware['cpu']} (no GPU)"


def _setting(files: dict[str, Any]) -> str:
    """What was measured with what, a line for each part."""
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


def _tallied(rows: Sequence[KernelRow] | Sequence[DecodeRow]) -> str:
    counts = tally(rows)
    return ", ".join(f"{name}: {met} of {of}" for name, (met, of) in counts.items()) or NONE


def _marks(row: KernelRow | DecodeRow) -> list[str]:
    words = {True: " yes", False: " NO", None: ""}
    return [words[met] for met in row.goals.values()]


def _other(row: KernelRow, name: str) -> str:
    return "error" if name in row.errors else _number(row.us.get(name))


def _number(value: float | None, digits: int = 1) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def _thousands(count: int) -> str:
    return f"{count >> 10}k" if count and count % 1024 == 0 else str(count)
