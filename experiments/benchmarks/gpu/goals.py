"""Turn measured figures into ratios and compare them with the goals. Pure functions of the result files.

The goals are for an H200. The kernel reaches at least 0.80 of the roofline where a pass is bound by memory
(T x G up to 128, prefixes from 16k), takes at most 1.3 times as long as attention without a mask, and is
faster than every baseline with a mask. A decoding step with graphs takes at most 1.25 times as long as
reading what its passes must read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treespec.experiments.benchmarks.gpu.candidates import FLOORS, KERNEL, MASKED
from treespec.experiments.benchmarks.gpu.roofline import Floor, Heads

__all__ = ["Goals", "KernelRow", "decode_goals", "kernel_rows", "microseconds", "tally"]

Goals = Mapping[str, bool | None]
"""By goal, whether it is reached; None if it does not apply or a figure is missing."""

FRACTION, OVER_FLOOR, OVER_BYTES = 0.80, 1.3, 1.25
MOST_ROWS, LEAST_PREFIX = 128, 16 << 10


@dataclass(frozen=True)
class KernelRow:
    """One cell of the grid.

    Args:
        heads: heads of the layer.
        rows: number of nodes.
        prefix: number of cached keys.
        us: time of each candidate that has one; on the device if the call could be captured.
        launch_us: time of the kernel as Python calls it.
        floor_us: the roofline.
        bound: the larger term of the roofline.
        errors: error messages of the candidates without a time.
    """

    heads: Heads
    rows: int
    prefix: int
    us: Mapping[str, float]
    launch_us: float | None
    floor_us: float
    bound: str
    errors: Mapping[str, str]

    @property
    def fraction(self) -> float | None:
        """The fraction of the roofline that the kernel reaches."""
        return _ratio(self.floor_us, self.us.get(KERNEL))

    @property
    def over_unmasked(self) -> float | None:
        """The kernel's time over that of the fastest attention without a mask."""
        return _ratio(self.us.get(KERNEL), self._least(FLOORS))

    @property
    def over_masked(self) -> float | None:
        """The kernel's time over that of the fastest baseline with the mask."""
        return _ratio(self.us.get(KERNEL), self._least(MASKED))

    @property
    def goals(self) -> dict[str, bool | None]:
        """By goal, whether it is reached; None if it does not apply or a figure is missing."""
        applies = self.rows * self.heads.group <= MOST_ROWS and self.prefix >= LEAST_PREFIX
        fraction, floor, masked = self.fraction, self.over_unmasked, self.over_masked
        return {
            f"at least {FRACTION} of the roofline": fraction >= FRACTION
            if applies and fraction is not None
            else None,
            f"at most {OVER_FLOOR} x no mask": None if floor is None else floor <= OVER_FLOOR,
            "faster than every masked": None if masked is None else masked < 1,
        }

    def _least(self, names: Sequence[str]) -> float | None:
        return min((self.us[name] for name in names if name in self.us), default=None)


def decode_goals(cell: Mapping[str, Any]) -> Goals:
    """By goal, whether one way to decode reaches it; None if the goal does not apply."""
    applies = "step_over_floor" in cell and cell["target"] != "eager"
    met = cell["step_over_floor"] <= OVER_BYTES if applies else None
    return {f"a step within {OVER_BYTES} x its bytes": met}


def kernel_rows(cells: Mapping[str, Mapping[str, Any]]) -> list[KernelRow]:
    """The rows of a file, one for each place in the grid, sorted by heads, prefix and nodes."""
    places: dict[tuple[Heads, int, int], list[Mapping[str, Any]]] = {}
    for cell in cells.values():
        heads = Heads(*cell["heads"])
        places.setdefault((heads, cell["prefix"], cell["rows"]), []).append(cell)
    grid_rows = []
    for (heads, prefix, rows), here in sorted(places.items()):
        by_name = {cell["candidate"]: cell for cell in here}
        times = {name: microseconds(cell) for name, cell in by_name.items()}
        kernel = by_name.get(KERNEL, {}).get("with_launch")
        floor = Floor(here[0]["bytes_us"], here[0]["flops_us"])
        grid_rows.append(
            KernelRow(
                heads, rows, prefix,
                us={name: time for name, time in times.items() if time is not None},
                launch_us=kernel["median_us"] if kernel else None,
                floor_us=floor.us,
                bound=floor.bound,
                errors={name: cell["error"] for name, cell in by_name.items() if "error" in cell},
            )
        )  # fmt: skip
    return grid_rows


def microseconds(cell: Mapping[str, Any]) -> float | None:
    """The time of a cell: on the device if it was captured, else with launch; None without a time."""
    timing = cell.get("device") or cell.get("with_launch")
    return None if timing is None else timing["median_us"]


def tally(rows: Iterable[Goals]) -> dict[str, tuple[int, int]]:
    """By goal, the number of rows that reach it, and the number of rows that it applies to."""
    counts: dict[str, tuple[int, int]] = {}
    for row in rows:
        for name, met in row.items():
            reached, total = counts.get(name, (0, 0))
            counts[name] = (reached + (met is True), total + (met is not None))
    return counts


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None
