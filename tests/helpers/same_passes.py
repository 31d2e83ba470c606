"""Whether compiled passes give what ordinary ones give."""

from typing import Any

import torch

from treespec import TreeShape
from treespec.models.transformers_model import TransformersModel

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
VOCAB = 96


def rows(model: TransformersModel) -> list[torch.Tensor]:
    """Committed rows of all layers."""
    cache: Any = model._runner.cache
    layers = [one for one in cache.layers if one.keys is not None]
    return [x[:, :, : cache.length] for one in layers for x in (one.keys, one.values)]


def compare(ordinary: TransformersModel, compiled: TransformersModel, prompt: int = 11) -> None:
    """Trees, whole and in parts, one behind the other, until the cache has grown."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCAB, (400,), generator=generator)
    for one in (ordinary, compiled):
        one.prefill(tokens[:prompt])
    for step in range(8):
        size = int(torch.randint(2, 14, (), generator=generator)) if step else 1
        draws = torch.rand(size, generator=generator)
        shape = TreeShape((-1, *(int(draws[i] * i) for i in range(1, size)))).breadth_first()
        nodes = tokens[20 + step : 20 + step + size]
        expected = ordinary.run(nodes, shape.parents).logits
        if step % 2:
            parts, first = [], 0
            for count in shape.level_sizes:
                end = first + count
                parts.append(compiled.run(nodes[first:end], shape.parents[:end], first).logits)
                first = end
            logits = torch.cat(parts)
        else:
            logits = compiled.run(nodes, shape.parents).logits
        torch.testing.assert_close(logits, expected, **CLOSE)
        path = shape.path(shape.leaves[-1])
        for one in (ordinary, compiled):
            one.keep(path)
        assert compiled.length == ordinary.length
    for mine, expected in zip(rows(compiled), rows(ordinary), strict=True):
        torch.testing.assert_close(mine, expected, **CLOSE)
