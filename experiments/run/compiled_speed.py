"""How the passes of a compiled model compare with eager ones: measured once on a machine, then kept."""

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from treespec.experiments.records.machine_load import BUSY_RUN_PERCENT, LoadWatch
from treespec.experiments.run.notes import keep, note

if TYPE_CHECKING:
    from treespec.models.transformers_model import TransformersModel

TIMED_PASSES, TIMED_NODES = 5, 4
"""How many passes are timed, over how many nodes each."""

COMPARED_ROUNDS = 3
"""How many times compiled passes are compared with eager ones."""

TIMED_PREFIX = 256
"""Cached tokens before the timed passes, as after a prompt."""


def note_of(model: "TransformersModel") -> Path:
    """Where the slowdown of a model is kept; asked before it is compiled, since packed weights count."""
    from treespec.models.passes.code_on_disk import code_key

    return note("slowdown", code_key(model))


def measured(model: "TransformersModel", file: Path) -> float:
    """Measure the slowdown, and keep what was measured on a quiet machine."""
    watch = LoadWatch()
    ratio = slowdown(model)
    busy = watch.busy_percent()
    if busy is None or busy <= BUSY_RUN_PERCENT:
        keep(file, ratio)
    return ratio


def slowdown(model: "TransformersModel") -> float:
    """Time of a model's pass over that of an eager one: the median of rounds in which they alternate."""
    from treespec.models.runner import TreeRunner

    eager = model.fresh(runner=TreeRunner)
    return statistics.median(
        pass_seconds(model) / pass_seconds(eager) for _ in range(COMPARED_ROUNDS)
    )


def pass_seconds(model: "TransformersModel") -> float:
    """Median time of a pass over a few nodes after a prompt, measured here and now."""
    length = max(1, min(TIMED_PREFIX, model.max_length - TIMED_NODES))
    fresh, prompt = model.fresh(), torch.arange(length) % model.vocab_size
    fresh.prefill(prompt)
    nodes = torch.arange(TIMED_NODES) % model.vocab_size
    seconds = []
    for _ in range(TIMED_PASSES + 1):
        start = time.perf_counter()
        fresh.run(nodes, (-1, *[0] * (TIMED_NODES - 1)))
        seconds.append(time.perf_counter() - start)
        fresh.keep(())
    return statistics.median(seconds[1:])
