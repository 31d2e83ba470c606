"""Medusa: one stack of residual layers per depth, all on the target's state.

Head k reads the target's post-norm state of the last committed token but the root: the target's own head
says the root from it, Medusa's head 0 the token after the root, head k the k-th after that. Tensors are
`{head}.{layer}.linear.{weight,bias}`: x + silu(linear(x)); then `{head}.{layers}.weight`, a head over the
vocabulary, which legacy files lack: the target's head serves.
"""

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from heads.arithmetic import named, projected
from heads.files import HIDDEN, VOCAB, Random, write


def checkpoint(
    folder: Path,
    layout: Literal["medusa", "legacy"] = "medusa",
    seed: int = 0,
    *,
    heads: int = 4,
    layers: int = 1,
    said: bool = True,
    **changes: Any,
) -> None:
    """Write random Medusa heads, as `medusa_lm_head.pt`.

    Args:
        folder: to write to.
        layout: "legacy" without heads over the vocabulary.
        seed: of the tensors.
        heads: their number.
        layers: of each head.
        said: whether the config says the two numbers; two published configs lack that of the layers.
        changes: of the config.
    """
    random, tensors = Random(seed), {}
    for i in range(heads):
        for j in range(layers):
            tensors[f"{i}.{j}.linear.weight"] = random.linear(HIDDEN, HIDDEN)
            tensors[f"{i}.{j}.linear.bias"] = random.normal(HIDDEN, scale=0.3)
        if layout == "medusa":
            tensors[f"{i}.{layers}.weight"] = random.head(VOCAB)
    numbers = {"medusa_num_heads": heads, "medusa_num_layers": layers} if said else {}
    config = {"base_model_name_or_path": "target", "model_type": "medusa", **numbers, **changes}
    write(folder, config, tensors, "medusa_lm_head.pt")


def rows(
    tensors: dict[str, Tensor],
    config: dict[str, Any],
    state: Tensor,
    head: Tensor,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Logits of all heads, [heads, V]: row k is the law of the k-th token after the root, from 0.

    Args:
        tensors: of the file.
        config: of the checkpoint; the numbers are read from the names of the tensors.
        state: the target's post-norm state from which its head says the root, [H].
        head: the target's, [V, H]; read if the file has none.
        dtype: of the computation.
    """
    w = named(tensors, dtype)
    result = []
    for i in range(1 + max(int(name.split(".")[0]) for name in w)):
        x = state.to(dtype)
        layers = sum(name.startswith(f"{i}.") and name.endswith(".linear.weight") for name in w)
        for j in range(layers):
            x = x + torch.nn.functional.silu(projected(x, w, f"{i}.{j}.linear"))
        result.append(w.get(f"{i}.{layers}.weight", head.to(dtype)) @ x)
    return torch.stack(result)
