"""The draft's loss: how far its distribution is from the target's."""

import torch
from transformers import LlamaForCausalLM

from treespec.experiments.training.train import Loss


def distillation_loss(target: LlamaForCausalLM) -> Loss:
    """Forward KL divergence from `target`: full vocabulary, temperature 1, on corpus text.

    Forward, because it makes the draft cover what the target may say: the second and third
    choices of the draft are what trees live on.
    """

    def loss(draft: LlamaForCausalLM, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        del targets  # the target's distribution replaces the corpus's next token
        with torch.no_grad():
            target_logs = target(inputs, use_cache=False).logits.float().log_softmax(-1)
        draft_logs = draft(inputs, use_cache=False).logits.float().log_softmax(-1)
        return (target_logs.exp() * (target_logs - draft_logs)).sum(-1).mean()

    return loss
