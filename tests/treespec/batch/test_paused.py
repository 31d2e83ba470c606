"""Functions that are paused between the values that they hand over."""

import pytest
import torch
from beartype import beartype
from jaxtyping import Float, jaxtyped
from torch import Tensor

from treespec.batch.paused import paused


def test_a_paused_function_goes_on_where_it_stopped():
    def deep(give, left):
        if left:
            give(left)
            deep(give, left - 1)

    assert list(paused(lambda give: deep(give, 4))) == [4, 3, 2, 1]
    assert list(paused(lambda give: None)) == []


def test_a_paused_function_that_is_closed_ends_where_it_stands():
    ended = []

    def function(give):
        try:
            give(1)
            give(2)
        finally:
            ended.append(True)

    values = paused(function)
    assert next(values) == 1
    values.close()
    assert ended == [True]
    untouched = paused(function)
    untouched.close()
    assert ended == [True]


def test_what_a_paused_function_raises_comes_out_where_a_value_was_wanted():
    def function(give):
        give(1)
        raise ValueError("inside")

    values = paused(function)
    assert next(values) == 1
    with pytest.raises(ValueError, match="inside"):
        next(values)
    assert next(values, None) is None


def test_the_callback_returns_what_is_sent_and_raises_what_is_thrown():
    got = []

    def function(give):
        got.append(give(1))
        with pytest.raises(KeyError):
            give(2)
        give(3)

    values = paused(function)
    assert [next(values), values.send("sent"), values.throw(KeyError("thrown"))] == [1, 2, 3]
    assert got == ["sent"]
    assert next(values, None) is None


def test_sizes_of_axes_belong_to_the_paused_function():
    """Otherwise a check in one function would compare with the sizes in another."""

    @jaxtyped(typechecker=beartype)
    def waits(give, row: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
        give(len(row))
        return row

    several = [paused(lambda give, n=n: waits(give, torch.zeros(n))) for n in (1, 2, 3)]
    assert [next(one) for one in several] == [1, 2, 3]
    assert [next(one, None) for one in several] == [None] * 3
