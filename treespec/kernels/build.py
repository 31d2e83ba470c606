"""Compiling our kernels, by the compiler of compiled passes."""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from treespec.errors import Unavailable, in_words

__all__ = ["built", "held_call", "kernels", "source"]

FOLDER = Path(__file__).parent

FILES = (
    "blocks.hpp", "packed_linear.cpp", "exponential.hpp", "masked_attention.cpp", "drawn_children.cpp",
    "walked_tree.cpp",
)  # fmt: skip
"""One after the other they are one source, which needs no search for headers."""

FLAGS = ("-ffp-contract=fast",)
"""A product and a sum are one operation."""

CPU_INFO = Path("/proc/cpuinfo")


@lru_cache(maxsize=1)
def kernels() -> Any:
    """The library of all kernels. Its names are seen by code that is loaded later.

    Raises:
        Unavailable: if it cannot be compiled.
    """
    return ctypes.CDLL(built()._name, mode=ctypes.RTLD_GLOBAL)


def held_call(name: str, held: tuple[Tensor | None, ...], *arguments: Any) -> Callable[[], None]:
    """A kernel's call on the memory of tensors, which it holds; nothing is looked at.

    Args:
        name: of the kernel.
        held: its first arguments, in this order; None is a null pointer.
        arguments: the others, as `ctypes` has them.
    """
    pointers = [ctypes.c_void_p(None if one is None else one.data_ptr()) for one in held]
    return partial(_run, name, held, *pointers, *arguments)


def _run(name: str, held: tuple[Tensor | None, ...], *arguments: Any) -> None:
    getattr(kernels(), name)(*arguments)


def built(*flags: str) -> Any:
    """Compiled, or found on disk, as the compiler's own code is.

    Args:
        flags: further ones of the C++ compiler.

    Raises:
        Unavailable: if it cannot be compiled.
    """
    from torch._inductor.codecache import CppCodeCache

    try:
        return CppCodeCache.load(source(), extra_flags=(*FLAGS, *_pairs(), *flags))
    except Exception as problem:  # of the compiler, or of loading what it made
        raise Unavailable(
            f"the kernels of compiled passes cannot be compiled here: {in_words(problem, 'the compiler')}"
        ) from problem


def source() -> str:
    """All files as one."""
    return "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in FILES)


def _pairs() -> list[str]:
    """Of AMD: products of pairs take one cycle there, and two on Intel's (see `blocks.hpp`)."""
    with suppress(OSError):
        if "AuthenticAMD" in CPU_INFO.read_text(encoding="utf-8"):
            return ["-DTREESPEC_PAIRS"]
    return []
