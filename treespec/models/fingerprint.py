"""A name for the weights of a model, which ties data learned from its passes to the model."""

import hashlib

import torch
from torch import nn

from treespec.models.quantised import stored

NUMBERS_SAMPLED = 64
"""Evenly spaced numbers taken from each parameter."""


def fingerprint(model: nn.Module) -> str:
    """The class of a model, its number of parameters, and a hash of some of its weights.

    The SHA-256 covers the name, the shape and 64 evenly spaced numbers of each parameter, or of each tensor
    that a quantised one is stored in. The numbers are rounded to bfloat16, so that a model has the same
    fingerprint whether it is loaded in bfloat16 or float32 (float16 rounds differently and gives another).
    Training changes all numbers of a matrix, so two models of the same architecture have different
    fingerprints.

    For example "LlamaForCausalLM of 918,016 parameters, weights 1f0c6a7e93d2b845". Empty if this process
    does not hold all weights: some were offloaded, or several processes share the model.

    Example:
        >>> torch.nn.init.constant_((layer := nn.Linear(2, 1)).weight, 0.5).tolist()
        [[0.5, 0.5]]
        >>> fingerprint(layer.bfloat16()) == fingerprint(layer.float())
        True
    """
    weights = sorted(model.named_parameters(), key=lambda item: item[0])
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if distributed and torch.distributed.get_world_size() > 1:
        return ""
    if any(weight.is_meta for _, weight in weights):
        return ""
    digest = hashlib.sha256(type(model).__name__.encode())
    for name, weight in ((name, part) for name, whole in weights for part in stored(whole)):
        step = max(1, weight.numel() // NUMBERS_SAMPLED)
        numbers = weight.detach().reshape(-1)[::step][:NUMBERS_SAMPLED]
        if numbers.is_floating_point():
            numbers = numbers.bfloat16().view(torch.int16)
        digest.update(f"{name} {list(weight.shape)} {numbers.tolist()}".encode())
    count = sum(weight.numel() for _, weight in weights)
    return f"{type(model).__name__} of {count:,} parameters, weights {digest.hexdigest()[:16]}"
