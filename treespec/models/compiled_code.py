"""Code of the compiler without addresses, so that its next process finds the machine code on disk.

torch keeps the machine code of a graph under a hash of its source text. Of a graph that owns its weights
(freezing) this text names addresses, of each weight and of functions of the compiler, though nothing is
done with them: every process would compile the same code again, for most of the time that compiling
takes. Without them it is found. Measured of the embedded draft, which then had two graphs, with weights
packed by the library, in seconds of one core:

    | | first process | next ones |
    | --- | ---: | ---: |
    | packed weights, code as torch writes it | 29.0 | 25.8 |
    | packed weights, code without addresses | 28.5 | 14.1 |
    | the model's own weights, which torch keeps on disk as a whole | 28.9 | 6.8 |

Weights themselves are no part of the code: they are handed to it at each call. Graphs that read the model's
own weights would load fastest, but packed ones are worth more (`treespec.models.packed_layers`).
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

__all__ = ["without_addresses"]

CONSTANT = re.compile(r"^(\s*// \w+ device\(.*\)) -?[0-9a-f]+$", re.MULTILINE)
"""A comment about a weight, of which a hash is the last word."""

FUNCTION = re.compile(r" at 0x[0-9a-f]+(?=>)")
"""What Python says of functions, in names of operations."""


@contextmanager
def without_addresses() -> Iterator[None]:
    """While it lasts, the compiler's C++ code names no addresses."""
    from torch._inductor.graph import GraphLowering

    write: Callable[..., Any] = GraphLowering.codegen_with_cpp_wrapper

    def written(graph: Any) -> Any:
        code, kernels = write(graph)
        code.value = FUNCTION.sub("", CONSTANT.sub(r"\1", code.value))
        return code, kernels

    with patch.object(GraphLowering, "codegen_with_cpp_wrapper", written):
        yield
