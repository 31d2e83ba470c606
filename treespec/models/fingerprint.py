"""A name for the weights of a model: what was learned of its passes is tied to it."""

import hashlib

import torch
from torch import nn

__all__ = ["fingerprint"]

NUMBERS_SAMPLED = 64
"""Numbers of each parameter, evenly spaced."""


def fingerprint(model: nn.Module) -> str:
    """The class of a model, its parameters, and a hash of some of its weights.

    Of each parameter the name, the shape and 64 evenly spaced numbers enter a SHA-256. The numbers are
    rounded to bfloat16, so that a model has one fingerprint whether it was loaded in bfloat16 or in
    float32 (float16 rounds otherwise, and has another). Training changes all numbers of a matrix, so that
    two models of one architecture differ.

    Args:
        model: with its weights.

    Returns:
        Such as "LlamaForCausalLM of 918,016 parameters, weights 1f0c6a7e93d2b845". Empty if not all of the
        weights are here: some were offloaded, or this is one of several processes that share them.

    Example:
        >>> torch.nn.init.constant_((layer := nn.Linear(2, 1)).weight, 0.5).tolist()
        [[0.5, 0.5]]
        >>> fingerprint(layer.bfloat16()) == fingerprint(layer.float())
        True
    """
    weights = sorted(model.named_parameters(), key=lambda named: named[0])
    shared = torch.distributed.is_available() and torch.distributed.is_initialized()
    if shared and torch.distributed.get_world_size() > 1:
        return ""
    if any(weight.is_meta for _, weight in weights):
        return ""
    digest = hashlib.sha256(type(model).__name__.encode())
    for name, weight in weights:
        numbers = weight.detach().reshape(-1)[:: max(1, weight.numel() // NUMBERS_SAMPLED)][
            :NUMBERS_SAMPLED
        ]
        if numbers.is_floating_point():
            numbers = numbers.bfloat16().view(torch.int16)
        digest.update(f"{name} {list(weight.shape)} {numbers.tolist()}".encode())
    count = sum(weight.numel() for _, weight in weights)
    return f"{type(model).__name__} of {count:,} parameters, weights {digest.hexdigest()[:16]}"
