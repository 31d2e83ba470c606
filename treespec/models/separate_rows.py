"""Does every layer of a model compute each row by itself, and how exactly?

The logits of a node must not depend on its siblings. In a quantised model they do if activations have one
scale for all rows of a pass: a large row makes the others coarse. So each layer is run once more on rows of
which half are multiplied by `LOUDER`. The other half must stay as they are: numbers of rows and shapes are
the same, so rounding is too.

A layer that rounds its activations to 8 bits turns the last bit of a number into a step, so models with
such layers are as exact as bfloat16 at best, whatever their dtype. That is measured as well: a product is
linear up to rounding.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

LOUDER = 256.0

MOST_CHANGE = 2.0**-8
"""Change of a row, relative to its norm, up to which it does not depend on the others."""


@dataclass
class Layers:
    """What was found out about layers.

    Args:
        mixing: the first layer in which a row depends on others; None if there is none.
        step: the largest deviation of a product from linearity, relative to its norm.
    """

    mixing: str | None = None
    step: float = 0.0


@contextmanager
def examined(model: nn.Module) -> Iterator[Layers]:
    """Context in which a pass of the model examines its layers."""
    found = Layers()
    watched = (
        module.register_forward_hook(partial(_examine, found, name), with_kwargs=True)
        for name, module in model.named_modules()
        if next(module.children(), None) is None and not _is_plain(module)
    )
    handles = list(watched)
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _is_plain(module: nn.Module) -> bool:
    """Whether it is PyTorch's own product with a plain matrix, which there is no need to examine."""
    weight = getattr(module, "weight", None)
    plain = type(module) is nn.Linear and type(weight) is nn.Parameter
    return plain and weight.is_floating_point() and "forward" not in vars(module)


def _examine(
    found: Layers,
    name: str,
    module: nn.Module,
    given: tuple[Any, ...],
    named: Mapping[str, Any],
    output: Any,
) -> None:
    rows = given[0] if len(given) == 1 and not named else None
    if not isinstance(rows, Tensor) or not isinstance(output, Tensor):
        return
    if not rows.is_floating_point() or rows.dim() < 2 or output.shape[:-1] != rows.shape[:-1]:
        return
    half = rows.shape[-2] // 2
    louder = rows.clone()
    louder[..., half:, :] *= LOUDER
    own = output[..., :half, :].double()
    change = module.forward(louder)[..., :half, :].double() - own
    if half and not _relative(change, own) <= MOST_CHANGE:
        found.mixing = found.mixing or name
    if isinstance(module, nn.Linear):
        other = rows.flip(-2)
        terms = (module.forward(x).double() for x in (rows + other, other, rows * 0))
        both, alone, bias = terms
        step = _relative(both - alone - output.double() + bias, output.double())
        found.step = max(found.step, step)


def _relative(difference: Tensor, whole: Tensor) -> float:
    return float(difference.norm() / whole.norm().clamp_min(1e-30))
