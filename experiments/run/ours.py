"""Run our own loop, with a tree or plainly, and measure it."""

import time
from typing import TYPE_CHECKING

from jaxtyping import Int
from torch import Tensor

from treespec.coins import TorchCoins
from treespec.decoding import decode
from treespec.experiments.config.build import BuiltMethod
from treespec.experiments.records.outcome import STAGES, Outcome, StepOutcome
from treespec.experiments.run.observers import StageTimer, synchronizer
from treespec.stopping import Stop
from treespec.target import make_target
from treespec.verify import on_host

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["decode_ours"]


def decode_ours(
    pair: "Pair",
    method: BuiltMethod,
    sampling: str,
    prompt: Int[Tensor, "T"],
    *,
    max_new_tokens: int,
    stop: Stop,
    seed: int,
) -> Outcome:
    """Decode a prompt by `treespec.decode`.

    Args:
        pair: the models.
        method: of kind `plain` or `tree`.
        sampling: name of the setting.
        prompt: token ids on the models' device.
        max_new_tokens: the budget.
        stop: when the text is over.
        seed: of the coins.
    """
    choice, target = method.choices[sampling], make_target(pair.target)
    drafter = method.drafter(pair, sampling)
    timer = StageTimer(synchronizer(prompt.device))
    tokens: list[int] = []
    taken = []
    start = time.perf_counter()
    for step in decode(
        target,
        drafter,
        on_host(choice.rule),  # on a GPU one synchronisation a step, whatever the rule
        prompt,
        sampling=choice.sampling,
        coins=TorchCoins(seed),
        max_new_tokens=max_new_tokens,
        stop=stop,
        observer=timer,
    ):
        tokens += step.tokens
        # Scores are large: keep what the record needs and let go of the rest.
        taken.append((step.tree.shape, step.tree.token_ids, step.verdict, len(step.tokens)))
    total = time.perf_counter() - start
    steps = tuple(
        StepOutcome(shape, ids, verdict, kept, {stage: timer.seconds[stage][i] for stage in STAGES})
        for i, (shape, ids, verdict, kept) in enumerate(taken)
    )
    return Outcome(
        tokens=tuple(tokens),
        target_passes=len(steps),
        accepted=sum(step.verdict.accepted for step in steps),
        drafted=sum(step.shape.size - 1 for step in steps),
        prefill_s=timer.seconds["prefill"][0],
        total_s=total,
        steps=steps,
    )
