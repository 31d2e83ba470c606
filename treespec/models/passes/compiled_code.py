"""Remove addresses from the compiler's code, so that the next process finds the machine code on disk.

torch stores the machine code of a graph under a hash of its source text. If the graph owns its weights
(freezing), this text contains addresses of weights and of compiler functions, which the code does not use.
Every process would then compile the same code again, which takes most of the compile time. Without the
addresses the code is found. Measured with the embedded draft, when it had two graphs and the library packed
its weights, in seconds on one core:

    | | first process | later processes |
    | --- | ---: | ---: |
    | packed weights, code as torch writes it | 29.0 | 25.8 |
    | packed weights, code without addresses | 28.5 | 14.1 |
    | the model's own weights, a graph that torch stores on disk as a whole | 28.9 | 6.8 |

Weights are not part of the code: they are passed to it at each call. Graphs that read the model's own
weights would load fastest, but packed weights save more (`treespec.models.passes.packed_layers`).
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

CONSTANT = re.compile(r"^(\s*// \w+ device\(.*\)) -?[0-9a-f]+$", re.MULTILINE)
"""A comment about a weight, which ends in a hash."""

FUNCTION = re.compile(r" at 0x[0-9a-f]+(?=>)")
"""The address in Python's representation of a function, as part of an operation's name."""


@contextmanager
def without_addresses() -> Iterator[None]:
    """Context in which the compiler's C++ code contains no addresses."""
    from torch._inductor.graph import GraphLowering

    original: Callable[..., Any] = GraphLowering.codegen_with_cpp_wrapper

    def without(graph: Any) -> Any:
        code, kernels = original(graph)
        code.value = FUNCTION.sub("", CONSTANT.sub(r"\1", code.value))
        return code, kernels

    with patch.object(GraphLowering, "codegen_with_cpp_wrapper", without):
        yield
