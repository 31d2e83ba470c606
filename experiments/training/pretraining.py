"""How both models of the embedded pair are trained, in short blocks first and in long ones at the end.

The target learns the next tokens of the corpus, the draft learns the distribution of the target.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import LlamaForCausalLM

from treespec.experiments.training.loop import Progress, train
from treespec.experiments.training.losses import Labels, forward_kl
from treespec.experiments.training.sizes import PairSchedule
from treespec.experiments.training.tokenizer import Batches

LOG_STEPS = 20

logger = logging.getLogger(__name__)

Loss = Callable[[LlamaForCausalLM, torch.Tensor, torch.Tensor], torch.Tensor]


def next_token_loss(
    model: LlamaForCausalLM, inputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Cross-entropy of the corpus's next tokens, in nats per token."""
    logits = model(inputs, use_cache=False).logits
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def train_model(
    model: LlamaForCausalLM,
    files: Sequence[np.ndarray],
    loss: Loss,
    schedule: PairSchedule,
    total_tokens: int,
    seed: int,
    checkpoint: Path,
) -> Progress:
    """Train `model` in place on `total_tokens` tokens, resuming from `checkpoint` if it exists."""
    rows = max(1, schedule.batch_tokens // schedule.length)
    short = Batches(files, rows, schedule.length, seed)
    long = Batches(files, schedule.long_rows, schedule.long_length, seed)
    long_start = total_tokens * (1.0 - schedule.long_share)
    first_long = int(np.ceil(long_start / (rows * schedule.length)))

    def learn(progress: Progress) -> tuple[torch.Tensor, int]:
        step = progress.step
        batch = short[step] if step < first_long else long[step - first_long]
        return loss(model, batch[:, :-1], batch[:, 1:]), batch[:, 1:].numel()

    def after(progress: Progress) -> None:
        if progress.step % LOG_STEPS == 0:
            logger.info(
                "%s loss %.4f, %d tokens, %.0f s",
                checkpoint.stem, progress.loss, progress.tokens, progress.seconds,
            )  # fmt: skip

    model.train()
    parameters = dict(model.named_parameters())
    return train(parameters, learn, schedule, total_tokens, checkpoint, after=after)


def distillation_loss(target: LlamaForCausalLM) -> Loss:
    """Forward KL divergence from `target` over the full vocabulary, at temperature 1, on corpus text.

    Forward, because it makes the draft cover everything that the target may say: trees rely on the second
    and third choices of the draft.
    """

    def loss(draft: LlamaForCausalLM, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target_logs = target(inputs, use_cache=False).logits.float().log_softmax(-1)
        logits = draft(inputs, use_cache=False).logits
        return forward_kl(Labels(target_logs, targets), logits).mean()

    return loss
