"""Decode by our own loop, with a tree or plainly, and time every step."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxtyping import Int
from torch import Tensor

from treespec.decoding import decode
from treespec.experiments.config.build import BuiltMethod
from treespec.experiments.config.model_draft import source_of
from treespec.experiments.config.schema import TreeMethod
from treespec.experiments.records.outcome import STAGES, StepOutcome
from treespec.experiments.run.observers import StageTimer, now
from treespec.plugins import Budget
from treespec.protocols import Drafter
from treespec.sampling.coins import TorchCoins
from treespec.stopping import Stop
from treespec.target import make_target
from treespec.verify import verifier_for

if TYPE_CHECKING:
    from treespec.models.load import Pair


def decode_ours(
    pair: "Pair",
    method: BuiltMethod,
    sampling: str,
    prompt: Int[Tensor, "T"],
    *,
    max_new_tokens: int,
    stop: Stop,
    seed: int,
) -> Iterator[StepOutcome]:
    """Decode a prompt by `treespec.decode`. Nothing between two steps is timed."""
    choice, timer = method.choices[sampling], StageTimer(prompt.device)
    drafter = method.drafter(pair, sampling)
    steps = decode(
        make_target(pair.target),
        drafter,
        verifier_for(choice.rule, pair.target),
        prompt,
        sampling=choice.sampling,
        coins=TorchCoins(seed),
        max_new_tokens=max_new_tokens,
        stop=stop,
        observer=timer,
    )
    timer.clock.settle()
    at, start = now(), time.perf_counter()
    for step in steps:
        seconds = {stage: times.pop() for stage, times in timer.seconds.items() if times}
        took, prefill = time.perf_counter() - start, seconds.pop("prefill", 0.0)
        off_target = None
        if not choice.rule.lossless and step.rows is not None:
            off_target = choice.rule.off_target(step.tree, step.rows, step.verdict)
        # Scores are large: keep only what the records need.
        yield StepOutcome(
            shape=step.tree.shape,
            tokens=step.tree.token_ids,
            verdict=step.verdict,
            kept=len(step.tokens),
            seconds={stage: seconds[stage] for stage in STAGES},
            at=at + prefill,
            took=took - prefill,
            prefill_s=prefill,
            origins=_origins(drafter, method, step.tree.shape.size),
            off_target=off_target,
        )
        at, start = now(), time.perf_counter()


def _origins(drafter: Drafter, method: BuiltMethod, size: int) -> tuple[tuple[str, ...], ...]:
    """For each node of the latest tree, the sources that drafted it.

    A drafter with several (`treespec.draft.Merge`, and `Cascade` by its levels) has an attribute `origins`:
    a tuple of names for each node. Otherwise all nodes are of the method's one source; if it drafts a given
    shape or growth, the method says so, and the result is empty.
    """
    origins = tuple(tuple(names) for names in getattr(drafter, "origins", ()))
    if len(origins) == size:
        return origins
    if isinstance(method.tree, Budget) and isinstance(method.config, TreeMethod):
        return ((), *[(source_of(method.config.draft).name,)] * (size - 1))
    return ()
