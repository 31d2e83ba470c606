"""Muon for the matrices between layers, AdamW for embeddings and norms."""

import torch
from torch import nn

from treespec.experiments.training.sizes import Schedule


class Optimizers:
    """The two optimizers under one schedule.

    Muon (Jordan et al. 2024) orthogonalises each matrix update; at this size it needs about half
    the tokens of AdamW. `match_rms_adamw` puts both learning rates on one scale.
    """

    def __init__(self, model: nn.Module, schedule: Schedule, total_tokens: int) -> None:
        named = dict(model.named_parameters())
        matrices = [p for name, p in named.items() if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in named.items() if p.ndim != 2 or "embed" in name]
        muon = torch.optim.Muon(
            matrices,
            lr=schedule.muon_lr,
            weight_decay=schedule.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
        adamw = torch.optim.AdamW(others, lr=schedule.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0)
        self.parts = {"muon": muon, "adamw": adamw}
        self.rates = {"muon": schedule.muon_lr, "adamw": schedule.adamw_lr}
        self.schedule = schedule
        self.total_tokens = total_tokens

    def factor(self, step: int, tokens: int) -> float:
        """Share of the peak rate at `step`, with `tokens` seen: warm-up, constant, decay."""
        warm = min(1.0, (step + 1) / self.schedule.warmup_steps)
        left = 1.0 - tokens / self.total_tokens
        return min(warm, left / self.schedule.decay_share, 1.0)

    def step(self, step: int, tokens: int) -> None:
        """Update the parameters from their gradients and clear them."""
        factor = self.factor(step, tokens)
        for name, part in self.parts.items():
            for group in part.param_groups:
                group["lr"] = self.rates[name] * factor
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, dict]:
        """State of both optimizers."""
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: dict[str, dict]) -> None:
        """Restore what `state_dict` gave."""
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
