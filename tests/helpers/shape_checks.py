"""The checks of signatures while tests run: those of jaxtyping's import hook, at a third of their time.

Jaxtyping's decorator binds the arguments anew and goes through them twice at each call. Here they are gone
through once, and functions that state no shape have their types checked alone.
"""

import dataclasses
import inspect
import os
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, wraps
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype

by_type = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))
jaxtyped = jaxtyping.jaxtyped
config = jaxtyping.config


def install() -> None:
    """Check the signatures of the core from its import on, as `TREESPEC_STRICT=1` does, but quicker."""
    if sys.version_info < (3, 12):  # which looks at a protocol once, not at each `isinstance`
        typing._get_protocol_attrs = cache(typing._get_protocol_attrs)
    jaxtyping.jaxtyped = checked
    os.environ["TREESPEC_STRICT"] = "1"
    import treespec  # noqa: F401

    del os.environ["TREESPEC_STRICT"]  # processes that tests start check nothing


@contextmanager
def disabled() -> Iterator[None]:
    """Check nothing meanwhile; decorates functions too."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)


def checked(decorated: Any = None, *, typechecker: Any) -> Any:
    """In the place of `jaxtyping.jaxtyped`, by which the hook decorates functions and classes."""
    if decorated is None:
        return partial(checked, typechecker=typechecker)
    if inspect.isclass(decorated):
        if dataclasses.is_dataclass(decorated) and "__init__" in vars(decorated):
            decorated.__init__ = checked(decorated.__init__, typechecker=typechecker)
        return decorated
    if config.jaxtyping_disable and "<locals>" in decorated.__qualname__:
        # An enumeration defines it anew on each branch: compiling its checks would cost more than the
        # branch, and states that hold it would never be equal.
        return decorated
    hints = decorated.__annotations__.values()
    own_class = decorated.__qualname__.rpartition(".")[0]
    other_names = any(isinstance(hint, str) and hint != own_class for hint in hints)
    if other_names or inspect.isgeneratorfunction(decorated):  # jaxtyping does what can be done
        return jaxtyped(decorated, typechecker=typechecker)
    return with_shapes(decorated) if any(map(has_shape, hints)) else with_types(decorated)


def with_types(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the types of arguments and result."""
    typed = by_type(function)
    if typed is function:  # it has no annotations
        return function

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (function if config.jaxtyping_disable else typed)(*args, **kwargs)

    return call


def with_shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check shapes too: an axis has one size in all arguments and the result of a call."""
    typed = by_type(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if config.jaxtyping_disable:
            return function(*args, **kwargs)
        with jaxtyped("context"):
            return typed(*args, **kwargs)

    return call


def has_shape(hint: object) -> bool:
    """Whether an annotation states the shape of a tensor, at any depth."""
    if isinstance(hint, list | tuple):
        return any(map(has_shape, hint))
    return getattr(hint, "__module__", "") == "jaxtyping" or has_shape(get_args(hint))
