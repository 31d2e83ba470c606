"""Tensors of exact fractions, on which the code of rules and drafters runs without rounding."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

Plain = Any


class Rationals(Tensor):
    """A tensor whose elements are `fractions.Fraction`; its dtype claims to be float64.

    Operations with other tensors and numbers take their values as exact. Comparisons return ordinary
    boolean tensors, searches ordinary indices, and `tolist` and `item` fractions. `numpy` returns the
    nearest float64, where exactness ends. Only operations that acceptance rules and drafters need are
    implemented.

    Args:
        values: numbers of any kind, nested like the tensor.

    Raises:
        NotImplementedError: when an operation has no exact version.

    Example:
        >>> row = Rationals([1, 2, 4])
        >>> (row / row.sum()).tolist()
        [Fraction(1, 7), Fraction(2, 7), Fraction(4, 7)]
    """

    fractions: np.ndarray

    def __new__(cls, values: Any) -> "Rationals":
        """Convert the numbers to fractions."""
        array = _fractions(values)
        tensor = Tensor._make_wrapper_subclass(cls, array.shape, dtype=torch.float64)  # pyrefly: ignore
        tensor.fractions = array
        return tensor

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the exact version of a torch function."""
        name = func.__name__
        if name in ("__get__", "dim", "size", "is_floating_point", "__len__"):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        operation = _OPERATIONS.get(name) or _OPERATIONS.get(name.strip("_"))
        if operation is None:
            raise NotImplementedError(f"exact arithmetic has no torch function {name!r}")
        result = operation(*map(_plain, args), **{k: _plain(v) for k, v in (kwargs or {}).items()})
        if name in _IN_PLACE or (name.endswith("_") and not name.endswith("__")):
            args[0].fractions[...] = _fractions(result)
            return args[0]
        return _wrapped(result)

    @classmethod
    def __torch_dispatch__(  # pyrefly: ignore[bad-override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse operators that bypass `__torch_function__`: they have no exact version."""
        raise NotImplementedError(f"exact arithmetic has no torch operator {func}")

    def __repr__(self, **kwargs: Any) -> str:
        return f"Rationals({self.fractions.tolist()})"


def _with_fractions(name: str) -> Callable[[Rationals, Any], Any]:
    """The operator, extended to `Fraction` operands, which torch's argument parser would refuse."""
    operator = getattr(Tensor, name)
    return lambda x, y: operator(x, Rationals(y) if isinstance(y, Fraction) else y)


for _name in ("add", "sub", "mul", "truediv"):
    setattr(Rationals, f"__{_name}__", _with_fractions(f"__{_name}__"))
    setattr(Rationals, f"__r{_name}__", _with_fractions(f"__r{_name}__"))

_fraction = np.frompyfunc(lambda x: x if isinstance(x, Fraction) else Fraction(x), 1, 1)


def _fractions(values: Any) -> np.ndarray:
    if isinstance(values, Rationals):
        return values.fractions
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    elif isinstance(values, list | tuple) and any(isinstance(v, Tensor) for v in values):
        values = np.stack([_fractions(v) for v in values])
    return np.asarray(_fraction(np.asarray(values, dtype=object)), dtype=object)


def _plain(value: Any) -> Plain:
    """The value for numpy: object arrays for floats, integer and boolean arrays unchanged."""
    if isinstance(value, Rationals):
        return value.fractions
    if isinstance(value, Tensor):
        return _fractions(value) if value.is_floating_point() else value.cpu().numpy()
    if isinstance(value, float):
        return Fraction(value)
    if isinstance(value, list | tuple) and any(isinstance(v, Tensor) for v in value):
        return type(value)(map(_plain, value))
    return value


def _wrapped(result: Any) -> Any:
    """The result of an operation as a tensor."""
    if isinstance(result, _Unwrapped):
        return result.value
    if isinstance(result, np.ndarray):
        return Rationals(result) if result.dtype == object else torch.from_numpy(result.copy())
    if isinstance(result, tuple):
        return tuple(map(_wrapped, result))
    return Rationals(result) if isinstance(result, Fraction) else result


class _Unwrapped:
    """A result that is returned as it is."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _axis(function: Callable[..., Any]) -> Callable[..., Any]:
    """A numpy reduction with torch's argument names."""

    def reduce(x: np.ndarray, dim: int | None = None, keepdim: bool = False, **_: Any) -> Any:
        return function(x, axis=dim, keepdims=keepdim)

    return reduce


def _bools(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, y: np.asarray(compare(x, y)).astype(bool)


def _scatter(x: np.ndarray, dim: int, index: np.ndarray, source: Any) -> np.ndarray:
    result = x.copy()
    np.put_along_axis(result, index, _spread(source, index), dim)
    return result


def _spread(source: Any, index: np.ndarray) -> np.ndarray:
    return np.broadcast_to(_fractions(source), index.shape)


def _getitem(x: np.ndarray, index: Any) -> Any:
    item = x[index]
    return np.asarray(item, dtype=object) if x.dtype == object else item


def _setitem(x: np.ndarray, index: Any, value: Any) -> None:
    x[index] = _fractions(value)[()]


def _integer_power(power: Any) -> int:
    if Fraction(power).denominator != 1:
        raise NotImplementedError(f"exact arithmetic has no power of {float(power):g}")
    return int(power)


def _argsort(x: np.ndarray, dim: int = -1, descending: bool = False, **_: Any) -> np.ndarray:
    return np.argsort(-x if descending else x, axis=dim, kind="stable")


def _topk(x: np.ndarray, k: int, dim: int = -1) -> Any:
    order = np.take(_argsort(x, dim, descending=True), np.arange(k), axis=dim)
    largest = Rationals(np.take_along_axis(x, order, dim))
    return _Unwrapped(torch.return_types.topk((largest, torch.from_numpy(order.copy()))))


def _argmax(x: np.ndarray, dim: int | None = None, keepdim: bool = False) -> np.ndarray:
    return np.asarray(np.argmax(x, axis=dim, keepdims=keepdim))


def _max(x: np.ndarray, dim: int | None = None) -> Any:
    return np.max(x) if dim is None else (np.max(x, axis=dim), np.asarray(np.argmax(x, axis=dim)))


def _aminmax(x: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.tensor(float(x.min())), torch.tensor(float(x.max()))


def _flat(x: np.ndarray, start_dim: int = 0, end_dim: int = -1) -> np.ndarray:
    return x.reshape(*x.shape[:start_dim], -1)


_IN_PLACE = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__")

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "radd": lambda x, y: y + x,
    "iadd": lambda x, y: x + y,
    "isub": lambda x, y: x - y,
    "imul": lambda x, y: x * y,
    "itruediv": lambda x, y: x / y,
    "idiv": lambda x, y: x / y,
    "sub": lambda x, y: x - y,
    "rsub": lambda x, y: y - x,
    "mul": lambda x, y: x * y,
    "rmul": lambda x, y: y * x,
    "truediv": lambda x, y: x / y,
    "div": lambda x, y: x / y,
    "rtruediv": lambda x, y: y / x,
    "rdiv": lambda x, y: y / x,
    "pow": lambda x, y: x ** _integer_power(y),
    "neg": lambda x: -x,
    "abs": np.abs,
    "lt": _bools(lambda x, y: x < y),
    "le": _bools(lambda x, y: x <= y),
    "gt": _bools(lambda x, y: x > y),
    "ge": _bools(lambda x, y: x >= y),
    "eq": _bools(lambda x, y: x == y),
    "ne": _bools(lambda x, y: x != y),
    "minimum": np.minimum,
    "maximum": np.maximum,
    "clamp_min": np.maximum,
    "clamp_max": np.minimum,
    "where": lambda condition, x, y: np.where(condition, _fractions(x), _fractions(y)),
    "sum": _axis(np.sum),
    "amax": _axis(np.max),
    "max": _max,
    "aminmax": _aminmax,
    "cumsum": lambda x, dim, **_: np.cumsum(x, axis=dim),
    "argmax": _argmax,
    "argsort": _argsort,
    "topk": _topk,
    "flip": np.flip,
    "gather": lambda x, dim, index: np.take_along_axis(x, index, dim),
    "scatter": _scatter,
    "getitem": _getitem,
    "setitem": _setitem,
    "stack": lambda rows, dim=0: np.stack([_fractions(r) for r in rows], axis=dim),
    "cat": lambda rows, dim=0: np.concatenate([_fractions(r) for r in rows], axis=dim),
    "unbind": lambda x, dim=0: tuple(np.moveaxis(x, dim, 0)),
    "expand": lambda x, *size: np.broadcast_to(
        x, [x.shape[i - len(size)] if n == -1 else n for i, n in enumerate(size)]
    ).copy(),
    "flatten": _flat,
    "zeros_like": lambda x, **_: _fractions(np.zeros(x.shape, dtype=int)),
    "ones_like": lambda x, **_: _fractions(np.ones(x.shape, dtype=int)),
    "new_tensor": lambda x, data, **_: _fractions(data),
    "clone": lambda x, **_: x.copy(),
    "double": lambda x: x,
    "cpu": lambda x: x,
    "detach": lambda x: x,
    "all": lambda x, **_: np.asarray(x.all()),
    "tolist": lambda x: _Unwrapped(x.tolist()),
    "item": lambda x: _Unwrapped(x.item()),
    "numpy": lambda x: _Unwrapped(x.astype(float)),
    "__float__": lambda x: _Unwrapped(float(x.item())),
    "__bool__": lambda x: _Unwrapped(bool(x.item())),
    "__int__": lambda x: _Unwrapped(int(x.item())),
}
