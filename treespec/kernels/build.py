"""Compile our kernels with the C++ compiler of compiled passes."""

import ctypes
import os
import platform
import shlex
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from treespec.errors import Unavailable, in_words
from treespec.files import cache_folder

FOLDER = Path(__file__).parent

FILES = (
    "blocks.hpp", "packed_linear.cpp", "exponential.hpp", "masked_attention.cpp", "joined_attention.cpp",
    "drawn_children.cpp", "walked_tree.cpp",
)  # fmt: skip
"""The files, in the order in which they are joined to a single source, which needs no include path."""

ALONE = ("-O3", "-std=c++17", "-ffp-contract=off", "-shared", "-fPIC")
"""Flags of a file that is compiled alone."""

FLAGS = ("-ffp-contract=fast",)
"""Contract products and sums into fused multiply-adds."""

CPU_INFO = Path("/proc/cpuinfo")


@lru_cache(maxsize=1)
def kernels() -> Any:
    """The library of all kernels, loaded so that later code can use its symbols."""
    return ctypes.CDLL(built()._name, mode=ctypes.RTLD_GLOBAL)


def held_call(name: str, held: tuple[Tensor | None, ...], *arguments: Any) -> Callable[[], None]:
    """A call of a kernel on the memory of tensors, which it keeps alive; arguments are not checked.

    `held`: tensors, passed in this order as its first arguments; None is a null pointer.
    """
    pointers = [ctypes.c_void_p(None if x is None else x.data_ptr()) for x in held]
    return partial(_run, name, held, *pointers, *arguments)


def _run(name: str, held: tuple[Tensor | None, ...], *arguments: Any) -> None:
    getattr(kernels(), name)(*arguments)


def built(*flags: str) -> Any:
    """Compile the kernels, or load them from the compiler's code folder if they are there.

    `flags`: further flags for the C++ compiler.
    """
    from torch._inductor.codecache import CppCodeCache

    try:
        return CppCodeCache.load(source(), extra_flags=(*FLAGS, *_pairs(), *flags))
    except Exception as problem:  # of the compiler, or of loading what it made
        raise Unavailable(
            f"the kernels of compiled passes cannot be compiled here: {in_words(problem, 'the compiler')}"
        ) from problem


def built_alone(name: str) -> Any:
    """Compile a file that needs none of the others, or load it from the user's cache if it is there.

    Without torch's compiler, whose import takes longer than this file.
    """
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    about = repr((compiler, ALONE, platform.platform()))  # a folder may be shared by machines
    key = sha256((FOLDER / name).read_bytes() + about.encode()).hexdigest()
    path = cache_folder() / "kernels" / f"{key}.so"
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=path.parent) as folder:
                made = Path(folder) / path.name
                command = [*compiler, *ALONE, os.fspath(FOLDER / name), "-o", os.fspath(made)]
                subprocess.run(command, check=True, capture_output=True)
                made.replace(path)
        return ctypes.CDLL(os.fspath(path))
    except (OSError, subprocess.CalledProcessError) as problem:
        raise Unavailable(f"{name} cannot be compiled here: {problem}") from problem


def source() -> str:
    return "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in FILES)


def _pairs() -> list[str]:
    """The flag for AMD processors: products of pairs take one cycle there, two on Intel (`blocks.hpp`)."""
    with suppress(OSError):
        if "AuthenticAMD" in CPU_INFO.read_text(encoding="utf-8"):
            return ["-DTREESPEC_PAIRS"]
    return []
