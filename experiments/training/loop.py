"""The training loop of every model and head: a budget of tokens, two optimizers, exact resumption.

transformers' Trainer counts epochs and steps; here a budget of tokens, the measurements along the way and
a resumption that ends with the same bits are the point, so the loop is our own.
"""

import io
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from treespec.errors import in_words
from treespec.experiments.errors import TrainingError
from treespec.experiments.training.precision import muon_step, training_passes
from treespec.files import write_whole

CHECKPOINT_SECONDS = 60.0
FADING = 0.98
"""The logged loss is a running mean over about 50 steps."""


class Diverged(TrainingError):
    """A loss or a gradient is no number; the last checkpoint is from before."""


class OutOfTime(TrainingError):
    """A training was told to stop before its end; the checkpoint is from then."""


@dataclass(frozen=True)
class Schedule:
    """Learning rates: warm-up, constant, and a linear decay to zero.

    Args:
        muon_lr: peak rate of matrices within layers.
        adamw_lr: peak rate of embeddings, heads, norms and biases.
        weight_decay: of the matrices.
        warmup_steps: steps until the peak.
        decay_share: share of the budget in which rates decay.
    """

    muon_lr: float
    adamw_lr: float
    weight_decay: float = 0.1
    warmup_steps: int = 40
    decay_share: float = 0.45


class Optimizers:
    """Both optimizers under one schedule.

    Muon (Jordan et al. 2024) orthogonalises the update of each matrix; at this size it needs about half as
    many tokens as AdamW. `match_rms_adamw` puts both learning rates on one scale.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], schedule: Schedule, total_tokens: int
    ) -> None:
        inner = {
            name: p
            for name, p in parameters.items()
            if p.ndim == 2 and "embed" not in name and "lm_head" not in name
        }
        others = [p for name, p in parameters.items() if name not in inner]
        self.parameters = list(parameters.values())
        self.parts: dict[str, torch.optim.Optimizer] = {}
        if inner:
            self.parts["muon"] = torch.optim.Muon(
                list(inner.values()),
                lr=schedule.muon_lr,
                weight_decay=schedule.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        if others:
            self.parts["adamw"] = torch.optim.AdamW(
                others, lr=schedule.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0
            )
        self.rates = {"muon": schedule.muon_lr, "adamw": schedule.adamw_lr}
        self.schedule = schedule
        self.total_tokens = total_tokens

    def factor(self, step: int, tokens: int) -> float:
        """Share of the peak learning rate at `step` after `tokens` tokens."""
        warmup = (step + 1) / self.schedule.warmup_steps
        decay = (1.0 - tokens / self.total_tokens) / self.schedule.decay_share
        return min(warmup, decay, 1.0)

    def clip(self) -> float:
        """Scale the gradients down to a norm of 1; returns the norm that they had."""
        return float(nn.utils.clip_grad_norm_(self.parameters, 1.0))

    def step(self, step: int, tokens: int) -> None:
        """Update the parameters and forget the gradients."""
        factor = self.factor(step, tokens)
        for name, optimizer in self.parts.items():
            for group in optimizer.param_groups:
                group["lr"] = self.rates[name] * factor
            with muon_step(self.parameters[0].device):
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)


@dataclass
class Progress:
    """Where a training stands.

    Args:
        step: updates made.
        tokens: tokens seen.
        seconds: time spent, over all attempts.
        loss: running mean of the loss.
        curve: rows that were noted along the way.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss: float = float("nan")
    curve: list[dict[str, Any]] = field(default_factory=list)


def train(
    parameters: Mapping[str, nn.Parameter],
    learn: Callable[[Progress], tuple[Tensor, int]],
    schedule: Schedule,
    total_tokens: int,
    checkpoint: Path,
    *,
    after: Callable[[Progress], None] = lambda progress: None,
    stores: bool = True,
    stopping: Callable[[], bool] = lambda: False,
) -> Progress:
    """Train parameters in place on a budget of tokens, resuming from `checkpoint` if it exists.

    Weights stay in float32; forward passes run in bfloat16 where the device has instructions for it
    (`training_passes`).

    Args:
        parameters: what is trained, by name.
        learn: the loss of the next step, and its number of tokens; it depends on the progress alone.
        schedule: learning rates.
        total_tokens: the budget.
        checkpoint: file of the last checkpoint; if killed while writing, the previous one remains.
        after: is called before the first step and after each one, and may append to the progress's curve.
        stores: whether this process writes checkpoints.
        stopping: is asked after each step whether to stop before the end.

    Raises:
        Diverged: if a loss or a gradient is no number.
        OutOfTime: if it was to stop.
    """
    optimizers = Optimizers(parameters, schedule, total_tokens)
    progress = _loaded(checkpoint, parameters, optimizers)
    device = next(iter(parameters.values())).device.type
    started, saved = time.perf_counter() - progress.seconds, time.perf_counter()
    if not progress.step:
        after(progress)
    while progress.tokens < total_tokens:
        with training_passes(device):
            loss, tokens = learn(progress)
        value = loss.item()
        loss.backward()
        norm = optimizers.clip()  # not finite in any process if it is not in one
        if not math.isfinite(norm) or not math.isfinite(value):
            raise Diverged(
                f"step {progress.step} ({progress.tokens:,} tokens) has the loss {value} and gradients of "
                f"the norm {norm}: choose a lower learning rate and another folder (--out)"
                + (f"; {checkpoint} is from before" if checkpoint.exists() else "")
            )
        optimizers.step(progress.step, progress.tokens)
        progress.tokens += tokens
        progress.step += 1
        fading = FADING if progress.step > 1 else 0.0
        progress.loss = fading * (progress.loss if fading else 0.0) + (1 - fading) * value
        progress.seconds = time.perf_counter() - started
        after(progress)
        stops = progress.tokens < total_tokens and stopping()
        if stores and (stops or time.perf_counter() - saved > CHECKPOINT_SECONDS):
            _save(checkpoint, parameters, optimizers, progress)
            saved = time.perf_counter()
        if stops:
            raise OutOfTime(
                f"stopped after {progress.tokens:,} of {total_tokens:,} tokens; the same command goes on"
            )
    if stores:
        _save(checkpoint, parameters, optimizers, progress)
    return progress


def _save(
    path: Path,
    parameters: Mapping[str, nn.Parameter],
    optimizers: Optimizers,
    progress: Progress,
) -> None:
    state = {
        "parameters": {name: p.detach() for name, p in parameters.items()},
        "optimizers": {name: part.state_dict() for name, part in optimizers.parts.items()},
        "progress": asdict(progress),
    }
    packed = io.BytesIO()  # torch turns the errors of a full disk into others
    torch.save(state, packed)
    write_whole(path, packed.getvalue())


def _loaded(path: Path, parameters: Mapping[str, nn.Parameter], optimizers: Optimizers) -> Progress:
    if not path.exists():
        return Progress()
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)  # of whatever device
    except Exception as error:  # of several classes
        raise TrainingError(
            f"{path} is no checkpoint ({in_words(error, 'torch')}): remove it, and the training begins anew"
        ) from None
    stored = state["parameters"]
    shapes = {name: p.shape for name, p in parameters.items()}
    if {name: tensor.shape for name, tensor in stored.items()} != shapes:
        raise TrainingError(
            f"{path} is a checkpoint of another model or head: choose another folder, or remove it"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(stored[name])
    for name, part in optimizers.parts.items():
        part.load_state_dict(state["optimizers"][name])
    return Progress(**state["progress"])
