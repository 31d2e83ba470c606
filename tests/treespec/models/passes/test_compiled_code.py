"""Machine code that later processes find: its source must not contain addresses."""

import pytest
import torch
from torch._inductor.codecache import CppWrapperCodeCache

from treespec.models.passes import compiled_code, compiled_pass
from treespec.models.passes.compiled_code import CONSTANT, FUNCTION
from treespec.models.passes.direct_call import DirectCall


def test_what_is_left_out():
    line = "// _frozen_param1 device(type='cpu') torch.bfloat16 (128,) (1,) 7f6b454140f0"
    assert CONSTANT.sub(r"\1", f"a\n{line}\nb") == f"a\n{line.rsplit(' ', 1)[0]}\nb"
    name = "partial(<function one.<locals>.fn at 0x7f5331c44860>, 3)"
    assert FUNCTION.sub("", name) == "partial(<function one.<locals>.fn>, 3)"


@pytest.mark.slow
def test_equal_code_is_compiled_once_and_weights_stay_apart(without_shape_checks):
    weights = [torch.nn.Linear(32, 48, bias=False).eval().requires_grad_(False) for _ in range(2)]
    rows = [torch.rand(size, 32) for size in (3, 5)]
    cache = torch.zeros(7)

    def made(linear: torch.nn.Linear) -> DirectCall:
        def run(one: torch.Tensor, fixed: torch.Tensor) -> tuple[torch.Tensor]:
            return (torch.relu(linear(one)) + fixed[0],)

        examples = [[one, cache] for one in rows]
        return DirectCall(run, *examples, fixed=1, options=compiled_pass.OPTIONS, frozen=True)

    first = made(weights[0])
    before = len(CppWrapperCodeCache.cache)
    second = made(weights[1])
    assert before
    assert len(CppWrapperCodeCache.cache) == before
    for linear, call in zip(weights, (first, second), strict=True):
        for one in rows:
            (found,) = call.bound([cache])(one)
            torch.testing.assert_close(found, torch.relu(linear(one)))


def test_the_compiler_is_left_as_it_was():
    from torch._inductor.graph import GraphLowering

    write = GraphLowering.codegen_with_cpp_wrapper
    with compiled_code.without_addresses():
        assert GraphLowering.codegen_with_cpp_wrapper is not write
    assert GraphLowering.codegen_with_cpp_wrapper is write
