"""A GPU that is only pretended: tensors remember on which device they would be, and mixing devices raises.

Everything is computed on the CPU with true values, so that code whose path depends on them can be followed.
What a GPU would refuse is refused: operations on tensors of both devices (but for single numbers, and
indices that are on the CPU), NumPy arrays and pinned copies of tensors that are there, and random numbers
of a generator that is elsewhere.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

GPU = torch.device("cuda", 0)


class Mixed(RuntimeError):
    """Tensors of two devices in one operation."""


def move(module: nn.Module) -> None:
    """Pretend that a module's parameters and buffers are on the GPU."""
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.there = True


def there(tensor: Tensor) -> bool:
    return getattr(tensor, "there", False)


class PretendedGpu(TorchFunctionMode):
    """Within it, the device `cuda` is there."""

    def __enter__(self) -> Any:
        plain = torch.Tensor._make_subclass

        def make(cls: Any, data: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # of parameters
            return _marked(plain(cls, data, *args, **kwargs), there(data))

        torch.Tensor._make_subclass = staticmethod(make)
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        del torch.Tensor._make_subclass

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", str(func))
        owner = getattr(getattr(func, "__self__", None), "__name__", None)  # of a property
        if name == "__get__" and owner in ("device", "is_cuda", "is_cpu", "grad", "data"):
            return self._property(owner, func, args)
        if name == "__set__" and owner in ("data", "grad"):
            if isinstance(args[1], Tensor):
                args[0].there = there(args[1])
            return func(*args)
        if name == "__get__":  # such as `T`
            value = func(*args)
            return _marked(value, there(args[0])) if isinstance(value, Tensor) else value
        if name in ("__set__", "device", "_parse_to", "_has_compatible_shallow_copy_type"):
            return func(*args, **kwargs)
        found = [*_tensors((args, kwargs))]
        if name in ("numpy", "__array__") and any(map(there, found)):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if name in ("cpu", "tolist", "item"):
            result = func(*args, **kwargs)
            return _marked(result.clone(), False) if isinstance(result, Tensor) else result
        if name == "pin_memory":  # which PyTorch refuses where there is no GPU
            if there(args[0]):
                raise RuntimeError("cannot pin a tensor of cuda:0")
            return _marked(args[0].clone(), False)
        args, kwargs, asked = _without_device(args, kwargs)
        if name in ("to", "cuda", "_to_copy"):
            goes = there(args[0]) if asked is None else asked.type == "cuda"
            other = next((there(a) for a in args[1:] if isinstance(a, Tensor)), goes)
            result = func(*args, **kwargs)
            if (goes and other) != there(args[0]):
                result = result.clone()
            return _marked(result, goes and other)
        generator = kwargs.get("generator")
        if generator is not None and (
            (asked is not None and asked.type == "cuda") or any(map(there, found))
        ):
            raise Mixed(f"{name}: a generator on the CPU for numbers on the GPU")
        _require_one_device(name, func, args, found)
        result = func(*args, **kwargs)
        if name in ("__setitem__", "copy_"):
            return result
        on_gpu = any(map(there, found)) if asked is None else asked.type == "cuda"
        for tensor in _tensors(result):
            _marked(tensor, on_gpu)
        return result

    @staticmethod
    def _property(owner: str, func: Any, args: Any) -> Any:
        tensor = args[0]
        if owner in ("grad", "data"):
            value = func(*args)
            return value if value is None else _marked(value, there(tensor))
        if owner == "device":
            return GPU if there(tensor) else func(*args)
        return there(tensor) == (owner == "is_cuda")


def _require_one_device(name: str, func: Any, args: Any, found: list[Tensor]) -> None:
    if name in ("__getitem__", "index_select_on_cpu"):
        indices = [*_tensors(args[1:])]
        if any(map(there, indices)) and not there(args[0]):
            raise Mixed(f"{name}: an index on the GPU into a tensor on the CPU")
        return
    if name in ("copy_",):
        return
    if name == "__setitem__":
        found = [args[0], *_tensors(args[2:])]
    places = {there(tensor) for tensor in found if tensor.dim() > 0}
    if len(places) > 1 and name not in ("set_", "type_as"):
        shapes = ", ".join(f"{[*t.shape]} {'gpu' if there(t) else 'cpu'}" for t in found)
        raise Mixed(f"{name}: tensors on both devices ({shapes})")


def _without_device(args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any], Any]:
    asked = kwargs.pop("device", None)
    if asked is not None and torch.device(asked).type == "meta":
        return args, kwargs | {"device": asked}, None
    rest = []
    for value in args:
        if isinstance(value, torch.device) or (
            isinstance(value, str) and value.split(":")[0] in ("cuda", "cpu")
        ):
            asked, value = value, torch.device("cpu")
        rest.append(value)
    return tuple(rest), kwargs, None if asked is None else torch.device(asked)


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        yield from _tensors([*values.values()])
    elif isinstance(values, Iterable) and isinstance(values, (list, tuple)):
        for value in values:
            yield from _tensors(value)


def _marked(tensor: Tensor, on_gpu: bool) -> Tensor:
    tensor.there = on_gpu
    return tensor
