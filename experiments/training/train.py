"""The training loop of both models, with a token budget, checkpoints and exact resumption.

Muon trains the matrices inside the layers, AdamW the embeddings and norms. The target learns the next
tokens of the corpus, the draft learns the distribution of the target.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import LlamaForCausalLM

from treespec.experiments.training.sizes import Schedule
from treespec.experiments.training.tokenizer import Batches
from treespec.files import write_whole


class Optimizers:
    """Both optimizers under one schedule.

    Muon (Jordan et al. 2024) orthogonalises the update of each matrix; at this size it needs about half as
    many tokens as AdamW. `match_rms_adamw` puts both learning rates on one scale.
    """

    def __init__(self, model: nn.Module, schedule: Schedule, total_tokens: int) -> None:
        named = dict(model.named_parameters())
        matrices = [p for name, p in named.items() if p.ndim == 2 and "embed" not in name]
        other_parameters = [p for name, p in named.items() if p.ndim != 2 or "embed" in name]
        self.parts: dict[str, torch.optim.Optimizer] = {
            "muon": torch.optim.Muon(
                matrices,
                lr=schedule.muon_lr,
                weight_decay=schedule.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            ),
            "adamw": torch.optim.AdamW(
                other_parameters, lr=schedule.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0
            ),
        }
        self.rates = {"muon": schedule.muon_lr, "adamw": schedule.adamw_lr}
        self.schedule = schedule
        self.total_tokens = total_tokens

    def factor(self, step: int, tokens: int) -> float:
        """Share of the peak learning rate at `step` after `tokens` tokens: warm-up, constant, decay."""
        warmup = (step + 1) / self.schedule.warmup_steps
        decay = (1.0 - tokens / self.total_tokens) / self.schedule.decay_share
        return min(warmup, decay, 1.0)

    def step(self, step: int, tokens: int) -> None:
        factor = self.factor(step, tokens)
        for name, optimizer in self.parts.items():
            for group in optimizer.param_groups:
                group["lr"] = self.rates[name] * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


CHECKPOINT_SECONDS = 180.0
LOG_STEPS = 20

logger = logging.getLogger(__name__)

Loss = Callable[[LlamaForCausalLM, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass
class Progress:
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
    """Train `model` in place on `total_tokens` tokens, resuming from `checkpoint` if it exists.

    Weights stay in float32; forward and backward passes run under bfloat16 autocast.
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
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(model, batch[:, :-1], batch[:, 1:])
    value.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizers.step(progress.step, progress.tokens)
    return value.item()


def save_checkpoint(
    path: Path, model: LlamaForCausalLM, optimizers: Optimizers, progress: Progress
) -> None:
    """Write everything needed to resume; if killed while writing, the previous file remains."""
    state = {
        "model": model.state_dict(),
        "optimizers": {name: part.state_dict() for name, part in optimizers.parts.items()},
        "progress": asdict(progress),
    }
    write_whole(path, lambda file: torch.save(state, file))


def load_checkpoint(path: Path, model: LlamaForCausalLM, optimizers: Optimizers) -> Progress:
    if not path.exists():
        return Progress()
    state = torch.load(path)
    model.load_state_dict(state["model"])
    for name, part in optimizers.parts.items():
        part.load_state_dict(state["optimizers"][name])
    return Progress(**state["progress"])


def distillation_loss(target: LlamaForCausalLM) -> Loss:
    """Forward KL divergence from `target` over the full vocabulary, at temperature 1, on corpus text.

    Forward, because it makes the draft cover everything that the target may say: trees rely on the second
    and third choices of the draft.
    """

    def loss(draft: LlamaForCausalLM, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        del targets  # the target's distribution replaces the corpus's next token
        with torch.no_grad():
            target_logs = target(inputs, use_cache=False).logits.float().log_softmax(-1)
        draft_logs = draft(inputs, use_cache=False).logits.float().log_softmax(-1)
        return (target_logs.exp() * (target_logs - draft_logs)).sum(-1).mean()

    return loss
