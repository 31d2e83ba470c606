"""A draft whose vocabulary is trimmed to its most frequent tokens (FR-Spec, arXiv:2502.14856).

The head is the largest matrix of a small draft. With fewer rows it costs less, and tokens that are never
drafted are only drawn by the target. The model shares all other weights with the one it is made of, and
reads every token.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import InvalidArgument, UnsupportedModel
from treespec.models.variants.shortened import shallow_copy


def most_frequent(counts: Mapping[int, int], most: int, vocab_size: int) -> Int[Tensor, " S"]:
    """The ids of the most frequent tokens, in ascending order; of equal counts, the lowest ids.

    Args:
        counts: how often each token was seen; 0 for those that are left out.
        most: number of ids.
        vocab_size: number of tokens that the model has logits of.

    Raises:
        InvalidArgument: if there are not so many tokens.
    """
    if not 0 < most <= vocab_size:
        raise InvalidArgument(
            f"frequent = {most:,}: the draft has logits of {vocab_size:,} tokens; give 1 to {vocab_size:,}"
        )
    ranked = sorted(range(vocab_size), key=lambda token: (-counts.get(token, 0), token))
    return torch.tensor(sorted(ranked[:most]))


@torch.inference_mode()
def trimmed(model: PreTrainedModel, tokens: Int[Tensor, " S"]) -> PreTrainedModel:
    """The model with these rows of its head and no others; all other weights are shared.

    Raises:
        UnsupportedModel: if its head is not a plain matrix.
    """
    head: Any = model.get_output_embeddings()
    name = next((name for name, module in model.named_children() if module is head), None)
    if name is None or type(head) is not nn.Linear:
        raise UnsupportedModel(
            f"the vocabulary of {model.config.model_type} models cannot be trimmed: their head is not a "
            "plain matrix"
        )
    kept = tokens.to(head.weight.device)
    rows = nn.Linear(1, 1, bias=head.bias is not None, device=head.weight.device)
    rows.in_features, rows.out_features = head.in_features, len(kept)
    rows.weight = nn.Parameter(head.weight[kept].clone(), requires_grad=False)
    if head.bias is not None:
        rows.bias = nn.Parameter(head.bias[kept].clone(), requires_grad=False)
    twin = shallow_copy(model)
    twin._modules[name] = rows
    return twin
