"""Time plans of one layer's attention in turns: the chosen one, two launches, and tiles not yet chosen.

    planned        what `attend` does: few splits are merged by the program that ends last
    two launches   the table's tile, its splits merged by a second launch, as every call did before
    128x128x8x2..  tiles of `FURTHER` (rows x keys x warps x stages), for large trees

Every round replays a captured graph of each plan, in random order, so drift of the clocks meets all of them
alike; a plan that equals `two launches` is left out. The estimate by which plans are chosen stands beside
the times: it leaves out what plans share.
"""

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attention_masks import TreePass, topology
from attention_masks.tree_attention.options import Options
from attention_masks.tree_attention.tiles import (
    FURTHER,
    Plan,
    nanoseconds,
    planned,
    splits,
    tile,
)
from attention_masks.tree_attention.triton import device_properties, triton
from treespec.errors import in_words
from treespec.experiments.measure.roofline import Heads, attention_floor
from treespec.experiments.measure.timing import in_turns, median_ratio, seconds_of
from treespec.experiments.research.benchmarks.gpu.candidates import BRANCHING, Case, inputs_of
from treespec.experiments.research.benchmarks.gpu.gpu_session import Session
from treespec.experiments.research.benchmarks.gpu.kernel_times import DTYPE, LARGEST_DEVIATION
from treespec.experiments.research.benchmarks.gpu.timer import captured, event_seconds, sets_needed

HEADS = Heads(32, 8, 128)
SIZES = (
    (16, 1), (16, 4), (16, 16), (256, 128), (64, 16), (128, 16), (256, 16), (16, 64), (64, 128),
    (128, 64), (256, 64), (16, 128), (64, 64), (128, 128), (64, 1), (64, 4), (4, 1), (4, 4),
)  # fmt: skip
"""Nodes, and thousands (1,024) of tokens before them; the most informative first."""

DRY = (Case(Heads(2, 1, 128), 33, 300), Case(Heads(4, 2, 16), 8, 40))
ROUNDS, DRY_ROUNDS = 15, 1
PLANNED, TWO_LAUNCHES = "planned", "two launches"


def cases(dry: bool) -> list[Case]:
    """All cells."""
    return [*DRY] if dry else [Case(HEADS, nodes, prefix << 10) for nodes, prefix in SIZES]


def plans_of(case: Case, device: torch.device) -> dict[str, Plan]:
    """The different plans of a case by name."""
    (processors, generation), heads = device_properties(device), case.heads
    rows, keys = case.rows * heads.group, case.prefix + case.rows
    size = rows, keys, heads.kv, heads.dim, DTYPE.itemsize, processors, generation
    usual = tile(rows, heads.dim, DTYPE.itemsize, generation)
    programs = -(-rows // usual.block_m) * heads.kv
    plans = {
        PLANNED: planned(*size),
        TWO_LAUNCHES: Plan(usual, splits(keys, programs, usual, processors), False),
    }
    for shape in FURTHER.get(generation, {}).get((DTYPE.itemsize, heads.dim), ()):
        if rows > shape.block_m // 2:
            plans["x".join(map(str, shape))] = planned(*size, shape)
    return {
        name: plan
        for name, plan in plans.items()
        if name == TWO_LAUNCHES or plan != plans[TWO_LAUNCHES]
    }


def run(session: Session, deadline: float) -> None:
    """Measure the cells until all exist or the time is over."""
    todo = cases(session.dry)
    store = session.store("plans", dtype=str(DTYPE), cells=len(todo), rounds=ROUNDS)
    for case in session.each("plans", todo, deadline, store):
        try:
            with torch.inference_mode():
                cell = _cell(case, session)
        except Exception as error:
            cell = {"error": in_words(error, "the kernel")}
            if "out of memory" not in cell["error"]:
                session.fail("plans", case.key, cell["error"])
        store.add(case.key, case._asdict() | cell)
        if "error" in cell:
            session.recover(case.key)


def _cell(case: Case, session: Session) -> dict[str, Any]:
    heads, keys, device = case.heads, case.prefix + case.rows, session.device
    count = sets_needed(2 * keys * heads.kv * heads.dim * DTYPE.itemsize, device)
    sets = inputs_of(case, count, device, DTYPE)
    tree_pass = TreePass(topology([(i - 1) // BRANCHING for i in range(case.rows)]), case.prefix)
    options, plans = Options(heads.dim**-0.5), plans_of(case, device)

    def calls(plan: Plan) -> list[Callable[[], Tensor]]:
        given = {"tile_choice": plan.tile, "split_count": plan.splits, "in_place": plan.in_place}
        return [lambda own=own: triton(*own, tree_pass, options, **given) for own in sets]

    right = calls(plans[TWO_LAUNCHES])[0]().float()
    ways, off = {}, {}
    for name, plan in plans.items():
        own = calls(plan)
        off[name] = float((own[0]().float() - right).abs().max() / right.abs().max())
        if not off[name] <= LARGEST_DEVIATION:
            raise ArithmeticError(f"{name} differs from {TWO_LAUNCHES} by {off[name]:.2g}")
        ways[name] = _way(own, device)
    seconds = in_turns(ways, DRY_ROUNDS if session.dry else ROUNDS)
    floor = attention_floor(heads, case.rows, keys, DTYPE.itemsize, session.peak)
    size = case.rows * heads.group, keys, heads.kv, heads.dim, DTYPE.itemsize
    return {
        "floor_us": round(floor.us, 3),
        "plans": [
            {
                "plan": name,
                "tile": "x".join(map(str, plan.tile)),
                "splits": plan.splits,
                "in_place": plan.in_place,
                "us": round(1e6 * statistics.median(seconds[name]), 3),
                "over_two_launches": round(median_ratio(seconds[name], seconds[TWO_LAUNCHES]), 4),
                "estimated_us": round(nanoseconds(plan, *size, device_properties(device)[0]) / 1e3, 3),
                "fraction": round(floor.us / (1e6 * statistics.median(seconds[name])), 3),
                "differs": round(off[name], 6),
            }
            for name, plan in plans.items()
        ],
    }  # fmt: skip


def _way(calls: list[Callable[[], Tensor]], device: torch.device) -> Callable[[], float]:
    """Measures one call on the device, in a captured graph of many; without CUDA the call itself."""
    if device.type != "cuda":
        return lambda: seconds_of(calls[0])
    graph, count = captured(calls, device)
    return lambda: event_seconds([graph.replay], device)[0] / count
