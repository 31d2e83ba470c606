from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treespec.sampling.distributions import residual, without
from treespec.testing import Rationals

numbers = st.lists(st.fractions(0, 10, max_denominator=20), min_size=3, max_size=3)


@given(numbers, numbers)
def test_operators_are_those_of_fractions(xs, ys):
    x, y = Rationals(xs), Rationals([value + 1 for value in ys])
    plain = np.array(xs, dtype=object), np.array([value + 1 for value in ys], dtype=object)
    for operation in (
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        lambda a, b: a / b,
        lambda a, b: 1 - a,
        lambda a, b: 2 * a + b / 3,
        lambda a, b: a**3,
        lambda a, b: a * Fraction(1, 3),
        lambda a, b: Fraction(1, 3) * a,
        lambda a, b: -a,
    ):
        assert operation(x, y).tolist() == operation(*plain).tolist()


@given(numbers, numbers)
def test_torch_functions_agree_with_floats(xs, ys):
    x, y = Rationals(xs), Rationals([value + 1 for value in ys])
    floats = tuple(torch.tensor(np.array(t.tolist(), dtype=float)) for t in (x, y))
    for function in (
        torch.minimum,
        lambda a, b: (a - b).clamp_min(0),
        lambda a, b: (a - b).clamp_min_(0),
        lambda a, b: a.clamp_max(2),
        lambda a, b: a.sum() + b.sum(),
        lambda a, b: a.cumsum(0),
        lambda a, b: torch.where(a > b, a, b),
        lambda a, b: torch.stack([a, b])[1],
        lambda a, b: torch.cat([a[None], b[None]]).sum(-1, keepdim=True),
        lambda a, b: a.scatter(0, torch.tensor([1]), 0.0),
        lambda a, b: a[torch.tensor([2, 0])],
        lambda a, b: a[1],
        lambda a, b: a.max(),
        lambda a, b: torch.zeros_like(a) + torch.ones_like(b),
        lambda a, b: a.new_tensor([1.5, 2.0, 3.0]) * b,
        lambda a, b: a.clone().expand(2, -1),
        lambda a, b: a.flip(0).double(),
    ):
        found, right = function(x, y), function(*floats)
        assert isinstance(found, Rationals)
        assert found.shape == right.shape
        assert np.allclose(found.numpy(), right.numpy())


@given(numbers)
def test_searches_and_comparisons_are_ordinary_tensors(xs):
    x = Rationals(xs)
    floats = torch.tensor([float(value) for value in xs], dtype=torch.float64)
    assert torch.equal(x > 1, floats > 1)
    assert int(x.argmax()) == int(floats.argmax())
    assert torch.equal(x.argsort(stable=True), floats.argsort(stable=True))
    assert bool((x >= 0).all())


def test_the_residual_without_rounding():
    target, draft = Rationals([1, 2, 3]) / 6, Rationals([3, 2, 1]) / 6
    assert residual(target, draft).tolist() == [0, 0, 1]
    assert residual(target, target).tolist() == target.tolist()
    removed = torch.tensor([[0]])
    assert without(draft[None], removed)[0].tolist() == [0, Fraction(2, 3), Fraction(1, 3)]
    sure = Rationals([[1, 0, 0]])
    assert without(sure, removed).tolist() == [[0, Fraction(1, 2), Fraction(1, 2)]]


def test_floats_are_taken_as_they_are():
    assert Rationals([0.1]).tolist() == [Fraction(0.1)]
    assert (Rationals([0]) + torch.tensor([0.1], dtype=torch.float64)).tolist() == [Fraction(0.1)]


def test_what_a_tensor_of_fractions_is():
    x = Rationals([[1, 2], [3, 4]])
    assert isinstance(x, torch.Tensor)
    assert (x.shape, x.ndim, len(x), x.dtype) == ((2, 2), 2, 2, torch.float64)
    assert float(x[0][1]) == 2.0
    assert repr(x[0]) == "Rationals([Fraction(1, 1), Fraction(2, 1)])"
    changed = x[0].clone()
    changed[1] = 0
    assert (changed.tolist(), x[0].tolist()) == ([1, 0], [1, 2])


def test_what_has_no_exact_version_says_so():
    with pytest.raises(NotImplementedError, match="no torch function 'softmax'"):
        Rationals([1, 2]).softmax(-1)
    with pytest.raises(NotImplementedError, match="no torch function 'log'"):
        Rationals([1, 2]).log()


def test_operations_in_place_are_in_place():
    x = Rationals([2, -3])
    same = x
    x.clamp_min_(0)
    assert x.tolist() == [2, 0]
    x += 1
    x.div_(3)
    assert x is same
    assert same.tolist() == [1, Fraction(1, 3)]
    x.scatter_(0, torch.tensor([0]), 5.0)
    assert x.tolist() == [5, Fraction(1, 3)]


def test_roots_are_not_exact():
    with pytest.raises(NotImplementedError, match=r"no power of 0\.5"):
        Rationals([2]) ** 0.5
