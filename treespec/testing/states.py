"""Where decoding stands: all that its parts remember, to tell whether two branches have the same future."""

import types
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from fractions import Fraction
from functools import _lru_cache_wrapper, partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treespec.models.tabular import TabularModel

__all__ = ["state_of"]

ATOMS = (
    *(type(None), bool, int, float, complex, str, bytes, range, Fraction),
    *(torch.dtype, torch.device),
)
CONSTANT = (
    *(type, types.ModuleType, types.CodeType, Enum),
    _lru_cache_wrapper,  # of functions that give the same for the same
    torch.nn.Module,  # weights
)
"""What nothing is remembered in: one is the other only if it is the same object."""

MADE_IN_PYTHON = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: a class whose instances remember nothing but in attributes."""


class _Hidden(Exception):
    """Something that may remember what cannot be looked at."""


class _Same:
    """An object that equals itself alone. It is held, lest another one take its address."""

    __slots__ = ("held",)

    def __init__(self, held: object) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.held is other.held

    def __hash__(self) -> int:
        return id(self.held)


def state_of(*parts: Any) -> Hashable | None:
    """All that these objects remember, as a value: parts with equal values go on alike.

    Attributes, elements of containers, variables that functions close over, and what all these hold in
    turn; numbers of tensors as they are, to the last bit. Equal values mean equal behaviour if the parts
    keep what they remember there and in nothing that was made before them. Not looked into, and equal only
    if it is the same object: the rows of a `TabularModel`, functions under `functools.cache` (both give the
    same for the same), the weights of a `torch.nn.Module`. Fields alone count of a frozen dataclass.

    Args:
        parts: drafter, target, and whatever else a branch has made for itself.

    Returns:
        A value to compare; None if something may remember what cannot be looked at: a generator, an open
        file, an object of a class written in C, a tensor that is sparse or of numbers that numpy lacks.
    """
    try:
        return tuple(_state(part, {}) for part in parts)
    except _Hidden:
        return None


_Seen = dict[int, tuple[int, object]]
"""By address, the objects that have been looked into, in order; they are held, like those of `_Same`."""


def _state(value: Any, seen: _Seen) -> Hashable:
    kind = type(value)
    if kind in ATOMS:
        return kind, value
    if isinstance(value, CONSTANT):
        return _Same(value)
    if isinstance(value, types.MethodType):
        return _state(value.__func__, seen), _state(value.__self__, seen)
    if kind is tuple:
        return kind, tuple(_state(item, seen) for item in value)
    # Of two that are equal, changing one changes the other if it is the same object: so that counts.
    if id(value) in seen:
        return "seen", seen[id(value)][0]
    seen[id(value)] = len(seen), value
    return kind, tuple(chain.from_iterable(_contents(value, seen)))


def _contents(value: Any, seen: _Seen) -> Iterator[tuple[Hashable, ...]]:
    if isinstance(value, Tensor | np.ndarray):
        yield _numbers(value)
        return
    if isinstance(value, torch.Generator):
        yield (bytes(value.get_state().numpy()),)
        return
    if isinstance(value, types.FunctionType):
        yield _Same(value.__code__), _Same(value.__globals__)
        filled = filter(_filled, value.__closure__ or ())
        cells = tuple(cell.cell_contents for cell in filled)
        inner = (value.__defaults__, value.__kwdefaults__, cells, value.__dict__)
        yield tuple(_state(item, seen) for item in inner)
        return
    if isinstance(value, partial):
        yield tuple(_state(item, seen) for item in (value.func, value.args, value.keywords))
        return
    if isinstance(value, types.BuiltinFunctionType):
        owner = value.__self__
        known = owner is None or isinstance(owner, types.ModuleType | type)
        yield (_Same(value),) if known else (value.__name__, _state(owner, seen))
        return
    yield from _of_containers(value, seen)
    yield from _of_attributes(value, seen)


def _of_containers(value: Any, seen: _Seen) -> Iterator[tuple[Hashable, ...]]:
    if isinstance(value, dict):
        yield tuple(_state(item, seen) for item in chain.from_iterable(value.items()))
        yield (_state(getattr(value, "default_factory", None), seen),)
    elif isinstance(value, list | tuple | deque):
        yield tuple(_state(item, seen) for item in value)
        yield (getattr(value, "maxlen", None),)
    elif isinstance(value, set | frozenset):
        yield (frozenset(_state(item, {}) for item in value),)


def _of_attributes(value: Any, seen: _Seen) -> Iterator[tuple[Hashable, ...]]:
    kind, looked_into = type(value), (dict, list, tuple, deque, set, frozenset, object)
    if any(
        not (c.__flags__ & MADE_IN_PYTHON or issubclass(c, looked_into[:-1]))
        for c in kind.__mro__[:-1]
    ):
        raise _Hidden
    if is_dataclass(value) and kind.__dataclass_params__.frozen:  # pyrefly: ignore[missing-attribute]
        yield tuple(_state(getattr(value, field.name), seen) for field in fields(value))
        return
    named = dict(getattr(value, "__dict__", {}))
    if isinstance(value, TabularModel):
        yield (named.pop("row"),)
    for name, item in chain(named.items(), _slots(value)):
        yield name, _state(item, seen)


def _slots(value: Any) -> Iterator[tuple[str, Any]]:
    """What its slots hold, by name: that of a private one is not the name that `__slots__` says."""
    for kind in type(value).__mro__:
        for name, slot in kind.__dict__.items():
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    yield name, slot.__get__(value)
                except AttributeError:  # empty
                    continue


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _numbers(value: Tensor | np.ndarray) -> tuple[Hashable, ...]:
    """The numbers of a tensor or an array."""
    array = getattr(value, "fractions", None)  # of Rationals
    if array is None:
        try:
            array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        except (TypeError, RuntimeError):  # sparse, or of numbers that numpy does not have
            raise _Hidden from None
    if isinstance(array, np.memmap):
        return (_Same(array),)
    if array.dtype == object:
        return array.shape, tuple(array.reshape(-1).tolist())
    return array.dtype.str, array.shape, array.tobytes()
