"""The training loop of both models: one token budget, checkpoints, exact resumption."""

import io
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import LlamaForCausalLM

from treespec.experiments.training.optimizer import Optimizers
from treespec.experiments.training.packing import Batches
from treespec.experiments.training.sizes import Schedule
from treespec.search.whole_file import write_whole

CHECKPOINT_SECONDS = 180.0
LOG_STEPS = 20

logger = logging.getLogger(__name__)

Loss = Callable[[LlamaForCausalLM, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass
class Progress:
    """How far a run is; `seconds` adds up over resumptions."""

    step: int = 0
    long_steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss: float = float("nan")


def next_token_loss(
    model: LlamaForCausalLM, inputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Cross-entropy of the corpus's next tokens, in nats per token."""
    logits = model(inputs, use_cache=False).logits
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def train(
    model: LlamaForCausalLM,
    files: Sequence[np.ndarray],
    loss: Loss,
    schedule: Schedule,
    total_tokens: int,
    seed: int,
    checkpoint: Path,
) -> Progress:
    """Train `model` in place on `total_tokens` tokens, or finish the run in `checkpoint`.

    Weights stay float32; forward and backward run under bfloat16 autocast.
    """
    optimizers = Optimizers(model, schedule, total_tokens)
    progress = load_checkpoint(checkpoint, model, optimizers)
    rows = max(1, schedule.batch_tokens // schedule.length)
    short = Batches(files, rows, schedule.length, seed)
    long = Batches(files, schedule.long_rows, schedule.long_length, seed)
    long_start = total_tokens * (1.0 - schedule.long_share)
    model.train()
    started, saved = time.perf_counter() - progress.seconds, time.perf_counter()
    while progress.tokens < total_tokens:
        if progress.tokens < long_start:
            batch = short[progress.step]
        else:
            batch = long[progress.long_steps]
            progress.long_steps += 1
        value = update(model, optimizers, loss, batch, progress)
        progress.tokens += batch[:, 1:].numel()
        progress.step += 1
        # The logged loss is a running mean over about 50 steps.
        progress.loss = value if progress.step == 1 else 0.98 * progress.loss + 0.02 * value
        progress.seconds = time.perf_counter() - started
        if progress.step % LOG_STEPS == 0:
            logger.info("%s loss %.4f %s", checkpoint.stem, value, progress)
        if time.perf_counter() - saved > CHECKPOINT_SECONDS:
            save_checkpoint(checkpoint, model, optimizers, progress)
            saved = time.perf_counter()
    save_checkpoint(checkpoint, model, optimizers, progress)
    return progress


def update(
    model: LlamaForCausalLM,
    optimizers: Optimizers,
    loss: Loss,
    batch: torch.Tensor,
    progress: Progress,
) -> float:
    """One optimizer step on one batch; the loss before it, in nats per token."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(model, batch[:, :-1], batch[:, 1:])
    value.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizers.step(progress.step, progress.tokens)
    return value.item()


def save_checkpoint(
    path: Path, model: LlamaForCausalLM, optimizers: Optimizers, progress: Progress
) -> None:
    """Write everything a resumption needs; a kill while writing leaves the previous file."""
    state = {
        "model": model.state_dict(),
        "optimizers": optimizers.state_dict(),
        "progress": asdict(progress),
    }
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_whole(path, buffer.getvalue())


def load_checkpoint(path: Path, model: LlamaForCausalLM, optimizers: Optimizers) -> Progress:
    """Restore a run from `path`; a fresh start when there is none."""
    if not path.exists():
        return Progress()
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizers.load_state_dict(state["optimizers"])
    return Progress(**state["progress"])
