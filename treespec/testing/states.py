"""The state of decoding: all that its parts remember, to tell whether two branches have the same future."""

import types
from array import array
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

from treespec.draft.text.compiled import CompiledTrie
from treespec.models.tabular import TabularModel

ATOMS = (
    *(type(None), bool, int, float, complex, str, bytes, range, Fraction),
    *(torch.dtype, torch.device),
)
CONSTANT = (
    *(type, types.ModuleType, types.CodeType, types.UnionType, types.GenericAlias, Enum),
    _lru_cache_wrapper,  # cached functions are assumed to be pure
    torch.nn.Module,  # weights
)
"""Types without mutable state that matters here: their objects are compared by identity."""

MADE_IN_PYTHON = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: a class whose instances have no state outside their attributes."""


class _Hidden(Exception):
    """An object may have state that cannot be inspected."""


class _Same:
    """An object compared by identity. The reference keeps its address from being reused."""

    __slots__ = ("held",)

    def __init__(self, held: object) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.held is other.held

    def __hash__(self) -> int:
        return id(self.held)


def state_of(*parts: Any) -> Hashable | None:
    """The state of these objects as a value: parts with equal values behave the same from then on.

    The state comprises attributes, elements of containers, closure variables of functions, and what all of
    these contain in turn; the numbers of tensors count to the last bit. Equal values mean equal behaviour
    if the parts keep their state there, and not in objects made before them. Some objects are not inspected
    and are equal only if identical: the rows of a `TabularModel` and functions under `functools.cache`
    (both are assumed to be pure), and the weights of a `torch.nn.Module`. Of a frozen dataclass, only the
    fields count.

    `parts`: drafter, target, and anything else that a branch has made for itself. Returns a value to
    compare; None if a part may have state that cannot be inspected: a generator, an open file, an object of
    a class written in C, a tensor that is sparse or has a dtype that numpy lacks.
    """
    try:
        return tuple(_state(part, {}) for part in parts)
    except _Hidden:
        return None


_Seen = dict[int, tuple[int, object]]
"""Inspected objects by address, with their order; the references keep addresses from being reused."""


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
    # Identity matters: a later change to one of two equal values changes both if they are one object.
    if id(value) in seen:
        return "seen", seen[id(value)][0]
    seen[id(value)] = len(seen), value
    return kind, tuple(chain.from_iterable(_contents(value, seen)))


def _contents(value: Any, seen: _Seen) -> Iterator[tuple[Hashable, ...]]:
    if isinstance(value, Tensor | np.ndarray):
        yield _numbers(value)
        return
    if isinstance(value, array):
        yield value.typecode, value.tobytes()
        return
    if isinstance(value, CompiledTrie):
        yield (value.state,)
        return
    if isinstance(value, torch.Generator):
        yield (bytes(value.get_state().numpy()),)
        return
    if isinstance(value, types.FunctionType):
        yield _Same(value.__code__), _Same(value.__globals__)
        cells = tuple(cell.cell_contents for cell in value.__closure__ or () if _filled(cell))
        attributes = (value.__defaults__, value.__kwdefaults__, cells, value.__dict__)
        yield tuple(_state(item, seen) for item in attributes)
        return
    if isinstance(value, partial):
        yield tuple(_state(item, seen) for item in (value.func, value.args, value.keywords))
        return
    if isinstance(value, types.BuiltinFunctionType):
        owner = value.__self__
        stateless = owner is None or isinstance(owner, types.ModuleType | type)
        yield (_Same(value),) if stateless else (value.__name__, _state(owner, seen))
        return
    yield from _elements(value, seen)
    yield from _attributes(value, seen)


def _elements(value: Any, seen: _Seen) -> Iterator[tuple[Hashable, ...]]:
    """The states of a container's elements."""
    if isinstance(value, dict):
        yield tuple(_state(item, seen) for item in chain.from_iterable(value.items()))
        yield (_state(getattr(value, "default_factory", None), seen),)
    elif isinstance(value, list | tuple | deque):
        yield tuple(_state(item, seen) for item in value)
        yield (getattr(value, "maxlen", None),)
    elif isinstance(value, set | frozenset):
        yield (frozenset(_state(item, {}) for item in value),)


def _attributes(value: Any, seen: _Seen) -> Iterator[tuple[Hashable, ...]]:
    """The states of an object's attributes."""
    kind, containers = type(value), (dict, list, tuple, deque, set, frozenset)
    if any(
        not (c.__flags__ & MADE_IN_PYTHON or issubclass(c, containers)) for c in kind.__mro__[:-1]
    ):
        raise _Hidden
    if is_dataclass(value) and kind.__dataclass_params__.frozen:  # pyrefly: ignore[missing-attribute]
        yield tuple(_state(getattr(value, field.name), seen) for field in fields(value))
        return
    attributes = dict(getattr(value, "__dict__", {}))
    if isinstance(value, TabularModel):
        yield (attributes.pop("row"),)
    for name, item in chain(attributes.items(), _slots(value)):
        yield name, _state(item, seen)


def _slots(value: Any) -> Iterator[tuple[str, Any]]:
    """Names and contents of slots, by descriptor, since `__slots__` does not mangle private names."""
    for kind in type(value).__mro__:
        for name, slot in kind.__dict__.items():
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    yield name, slot.__get__(value)
                except AttributeError:  # an empty slot
                    continue


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _numbers(value: Tensor | np.ndarray) -> tuple[Hashable, ...]:
    """The numbers of a tensor or an array."""
    numbers = getattr(value, "fractions", None)  # an attribute of Rationals
    if numbers is None:
        try:
            numbers = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        except (TypeError, RuntimeError):  # sparse, or of a dtype that numpy lacks
            raise _Hidden from None
    if isinstance(numbers, np.memmap):
        return (_Same(numbers),)
    if numbers.dtype == object:
        return numbers.shape, tuple(numbers.reshape(-1).tolist())
    return numbers.dtype.str, numbers.shape, numbers.tobytes()
