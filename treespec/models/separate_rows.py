"""Does every layer of a model compute each row by itself, and how exactly?

The logits of a node must not depend on its siblings. In a quantised model they do if activations have one
scale for all rows of a pass: a large row makes the others coarse. So each layer is run once more on rows of
which some are multiplied by `LOUDER`. The others must stay as they are: numbers of rows and shapes are the
same, so rounding is too. Experts that no row reached are run on rows of random numbers.

A layer that rounds its activations to 8 bits turns the last bit of a number into a step, and the next layer
makes more steps of it. How far apart two exact computations of such a model can be is measured, by a pass
in which each product is computed in another way that is the same but for rounding (`recomputed`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from treespec.models.quantised import is_small

LOUDER = 256.0

MOST_CHANGE = 2.0**-8
"""Change of a row, relative to its norm, up to which it does not depend on the others."""


@dataclass
class Layers:
    """What was found out about layers.

    Args:
        mixing: the first layer in which a row depends on others; None if there is none.
        unexamined: the first layer with quantised weights of which this could not be found out.
        products: whether there are products that PyTorch does not compute from a plain matrix.
    """

    mixing: str | None = None
    unexamined: str | None = None
    products: bool = False


def examine(model: nn.Module, run: Callable[[], object]) -> Layers:
    """Examine the layers of a model, on the rows of a pass where it reaches them.

    Args:
        model: the model.
        run: runs a pass of it.
    """
    layers = {name: layer for name, layer in model.named_modules() if _may_mix(layer)}
    products = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
    changes: dict[str, float] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(layer: Any, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            change = None if named else _change(layer, given, output)
            if change is not None:
                changes[name] = max(change, changes.get(name, 0.0))

        return hook

    handles = [
        layer.register_forward_hook(note(name), with_kwargs=True) for name, layer in layers.items()
    ]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    for name in (name for name in products if name not in changes):
        changes[name] = _change_of_unreached(model, layers[name])
    return Layers(
        next((name for name in layers if not changes.get(name, 0.0) <= MOST_CHANGE), None),
        next((name for name in layers if name not in changes and is_small(layers[name])), None),
        bool(products),
    )


@contextmanager
def recomputed(model: nn.Module) -> Iterator[None]:
    """Context in which products f that PyTorch does not compute from a plain matrix are computed otherwise.

    With x a row and y its numbers in reverse, f(x) = 2 f((x + y) / 2) - f(y) but for rounding. So a pass
    differs from one outside the context as much as rounding explains, or a little more.
    """

    def otherwise(layer: Any, given: tuple[Any, ...], output: Any) -> Any:
        if len(given) != 1 or not isinstance(output, Tensor):  # such as a router, which chooses too
            return output
        other = (rows := given[0]).flip(-1)
        return 2 * layer.forward((rows + other) / 2) - layer.forward(other)

    products = (x for x in model.modules() if isinstance(x, nn.Linear) and _may_mix(x))
    handles = [layer.register_forward_hook(otherwise) for layer in products]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _may_mix(layer: nn.Module) -> bool:
    """Whether a layer must be examined: it is no product of PyTorch's with a plain matrix."""
    if _are_experts(layer):
        return True
    weight = getattr(layer, "weight", None)
    plain = type(layer) is nn.Linear and type(weight) is nn.Parameter
    own = plain and weight.is_floating_point() and "forward" not in vars(layer)
    return next(layer.children(), None) is None and not own and not isinstance(layer, nn.Embedding)


def _are_experts(layer: nn.Module) -> bool:
    """Whether a layer holds the matrices of several experts in one."""
    return any(weight.dim() == 3 for weight in layer.parameters(recurse=False))


def _change(layer: nn.Module, given: tuple[Any, ...], output: Any) -> float | None:
    """How much louder rows change the others; None if it does not compute rows from rows."""
    rows = given[0] if given else None
    if not isinstance(rows, Tensor) or not rows.is_floating_point() or rows.dim() < 2:
        return None
    if not isinstance(output, Tensor) or output.shape[:-1] != rows.shape[:-1]:
        return None
    if isinstance(layer, nn.Linear) or _are_experts(layer):
        # Each row beside its own louder copy: both are for the same experts.
        if any(not isinstance(x, Tensor) or x.shape[:-1] != rows.shape[:-1] for x in given):
            return None
        more = [torch.cat([x, x], -2) for x in given[1:]]
        quiet, loud = (layer.forward(torch.cat([rows, rows * k], -2), *more) for k in (1, LOUDER))
        kept = rows.shape[-2]
    elif len(given) == 1:
        kept = rows.shape[-2] // 2
        louder = rows.clone()
        louder[..., kept:, :] *= LOUDER
        quiet, loud = output, layer.forward(louder)
    else:
        return None
    own = quiet[..., :kept, :].double()
    change = (loud[..., :kept, :].double() - own).norm()
    return float(change / own.norm().clamp_min(1e-30)) if kept else 0.0


def _change_of_unreached(model: Any, layer: Any) -> float:
    numbers = torch.randn(2, layer.in_features, generator=torch.Generator().manual_seed(0))
    rows = numbers.to(layer.weight.device, model.dtype)
    return _change(layer, (rows,), layer(rows)) or 0.0
