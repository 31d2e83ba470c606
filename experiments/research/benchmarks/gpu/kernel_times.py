"""Time one layer's attention with every candidate, over trees, prefixes and heads."""

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from attention_masks.tree_attention.flex_attention import KERNEL_OPTIONS
from treespec.errors import in_words
from treespec.experiments.measure.roofline import Heads, attention_floor
from treespec.experiments.research.benchmarks.gpu.candidates import (
    CANDIDATES,
    KERNEL,
    Case,
    Inputs,
    call_of,
    inputs_of,
)
from treespec.experiments.research.benchmarks.gpu.gpu_session import Session
from treespec.experiments.research.benchmarks.gpu.timer import sets_needed, time_captured, time_each

# The most informative values first; cells are measured along the diagonals.
ROWS = (64, 16, 256, 32, 128, 8, 512)
PREFIXES = (16 << 10, 128 << 10, 4 << 10, 64 << 10, 1 << 10)
HEADS = (Heads(32, 8, 128), Heads(64, 8, 128), Heads(32, 32, 128))
DRY = ((8,), (40,), (Heads(4, 2, 16), Heads(2, 2, 16)))

DTYPE = torch.bfloat16
SECONDS = 0.06
"""Duration of each measurement. A cell has two measurements of every candidate."""

LARGEST_DEVIATION = 0.02
"""Largest allowed difference of the kernel's output from that of `two_pass`, over its largest value."""


def cases(dry: bool) -> list[Case]:
    """All cells, the most informative ones first."""
    rows, prefixes, heads = DRY if dry else (ROWS, PREFIXES, HEADS)
    grid = product(enumerate(heads), enumerate(rows), enumerate(prefixes))
    ranked = sorted(grid, key=lambda cell: (sum(rank for rank, _ in cell), cell[0][0]))
    return [Case(h, t, prefix) for (_, h), (_, t), (_, prefix) in ranked]


def run(session: Session, deadline: float) -> None:
    """Measure the cells until all exist or the time is over."""
    todo = cases(session.dry)
    store = session.store(
        "kernels", dtype=str(DTYPE), seconds=SECONDS, flex_tile=KERNEL_OPTIONS,
        cells=len(todo) * len(CANDIDATES),
    )  # fmt: skip
    for case in session.each("kernels", todo, deadline, store):
        for name, cell in _measure(session, case):
            store.add(f"{case.key} {name}", cell)
            if name == KERNEL and "error" in cell and "out of memory" not in cell["error"]:
                session.fail("kernels", case.key, cell["error"])


def _measure(session: Session, case: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure the candidates of a cell, one after another, on the same inputs."""
    itemsize, keys = DTYPE.itemsize, case.prefix + case.rows
    count = sets_needed(2 * keys * case.heads.kv * case.heads.dim * itemsize, session.device)
    floor = attention_floor(case.heads, case.rows, keys, itemsize, session.peak)
    common = {
        "heads": list(case.heads), "rows": case.rows, "prefix": case.prefix, "sets": count,
        "bytes_us": round(floor.bytes_us, 3), "flops_us": round(floor.flops_us, 3),
    }  # fmt: skip
    try:
        sets = inputs_of(case, count, session.device, DTYPE)
    except torch.OutOfMemoryError as error:
        problem = f"inputs: {in_words(error, 'their making')}"
        for name in CANDIDATES:
            yield name, common | {"candidate": name, "error": problem}
        session.recover(case.key)
        return
    for name in CANDIDATES:
        try:
            with torch.inference_mode():
                figures = _times(session, case, name, sets)
        except Exception as error:  # a baseline that fails is a result too
            figures = {"error": in_words(error, "the kernel")}
        yield name, common | {"candidate": name} | figures
        if "error" in figures:
            session.recover(f"{name} at {case.key}")


def _times(session: Session, case: Case, name: str, sets: list[Inputs]) -> dict[str, Any]:
    call = call_of(name, case)
    calls: list[Callable[[], Tensor]] = [lambda inputs=inputs: call(inputs) for inputs in sets]
    figures: dict[str, Any] = {}
    if name == KERNEL:
        figures["disagreement"] = _disagreement(case, call(sets[0]), sets[0])
    figures["with_launch"] = time_each(calls, session.device, SECONDS)._asdict()
    try:
        captured = time_captured(calls, session.device, SECONDS)
        figures["device"] = None if captured is None else captured._asdict()
    except Exception as error:  # a call that cannot be captured still has a time
        figures |= {"device": None, "capture_error": in_words(error, "the kernel")}
        session.recover(f"the capture of {name} at {case.key}")
    return figures


def _disagreement(case: Case, out: Tensor, inputs: Inputs) -> float | None:
    """The distance of the timed output from that of `two_pass`, which shares no code with the kernel.

    It is given in units of the largest value of that output; None if `two_pass` fails, which its own cell
    reports. The part `accuracy` tests the kernel properly, at more shapes.
    """
    try:
        other = call_of("two_pass", case)(inputs).float()
    except Exception:
        return None
    distance = float((out.float() - other).abs().max() / other.abs().max())
    if not math.isfinite(distance) or distance > LARGEST_DEVIATION:
        raise ArithmeticError(
            f"the kernel's output differs from that of two passes by {distance:.2g}"
        )
    return round(distance, 6)
