"""Draws for a level, compared with float64 within a rounding bound."""

import math

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from treespec.kernels.drawn_children import DTYPES, best_children, drawn_children
from treespec.sampling.distributions import best_token

UNIT = torch.finfo(torch.float32).eps / 2
LAST = 1 - 2.0**-53
"""The largest uniform."""


def plan_of(counts):
    """A plan with the uniforms of the last row first, and children in the order of rows."""
    before = [sum(counts[:i]) for i in range(len(counts))]
    behind = [sum(counts[i + 1 :]) for i in range(len(counts))]
    return torch.tensor([counts, behind, before])


def draw(logits, counts, uniforms, temperature=1.0, distinct=True):
    """Probabilities, the children of each row with their uniforms, and extremes."""
    probs, extremes = torch.full(logits.shape, -1.0), torch.empty(2)
    plan = plan_of(counts)
    tokens = drawn_children(logits, plan, uniforms, temperature, distinct, probs, extremes)
    rows = [
        list(zip(tokens[c : c + k].tolist(), uniforms[u : u + k], strict=True))
        for k, u, c in plan.T.tolist()
    ]
    return probs, rows, extremes.tolist()


def require_right(row, found, distinct):
    """Each token is the one that its uniform selects, up to the rounding of sums."""
    gone: list[int] = []
    for token, uniform in found:
        assert 0 <= token < len(row)
        assert token not in gone
        mass = row.double().clone()
        mass[gone] = 0
        if not mass.sum() > 0:
            mass = torch.ones(len(row)).double()
            mass[gone] = 0
        assert mass[token] > 0
        ends = mass.cumsum(0)
        point, slack = uniform * ends[-1], 1e-12 * ends[-1]
        assert ends[token] - mass[token] - slack <= point <= ends[token] + slack
        if distinct:
            gone.append(token)


@drawn(
    st.sampled_from(DTYPES), st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.integers(4, 700), st.sampled_from([0.3, 1.0, 2.5]), st.sampled_from([0.5, 3.0, 60.0]),
    st.booleans(), st.data(),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def check(dtype, counts, width, temperature, spread, distinct, data):
    seed = data.draw(st.integers(0, 99))
    logits = spread * torch.randn(len(counts), width, generator=torch.Generator().manual_seed(seed))
    logits = logits.to(dtype)
    numbers = st.floats(0, LAST) | st.sampled_from([0.0, LAST])
    uniforms = data.draw(st.lists(numbers, min_size=sum(counts), max_size=sum(counts)))
    probs, rows, extremes = draw(logits, counts, uniforms, temperature, distinct)
    assert extremes == [logits.min(), logits.max()]
    wide = logits.double() / temperature
    truth = wide.softmax(-1)
    far = (wide.amax(-1, keepdim=True) - wide) + 2 * wide.abs().amax(-1, keepdim=True)
    error = (far * UNIT * 2 + 4e-7 + 4 * UNIT).expm1() * truth + math.exp(-86)
    assert ((probs.double() - truth).abs() <= 2 * error).all()
    for row, found in zip(probs, rows, strict=True):
        require_right(row, found, distinct)


def test_where_uniforms_point(kernel):
    check()


@pytest.mark.parametrize(("size", "temperature"), [(3000.0, 1e-6), (3e5, 1e-4), (1e6, 1.0)])
def test_large_logits_on_cold_rows(size, temperature):
    logits = size + torch.randn(60, 37, generator=torch.Generator().manual_seed(0))
    probs, rows, _ = draw(logits, [1] * 60, [0.5] * 60, temperature)
    truth = (logits.double() / temperature).softmax(-1)
    assert (probs - truth).abs().max() < 1e-4  # logits are float32: their differences are exact
    for row, found in zip(truth, rows, strict=True):
        assert row[found[0][0]] > 1e-6


def test_what_is_left_without_mass_is_equally_probable():
    logits = torch.zeros(1, 600)
    logits[0, 300] = 500.0
    seen = []
    for i in range(200):
        probs, ((first, *others),), _ = draw(
            logits, [4], [0.7, *[(i + j / 7) / 201 for j in range(3)]]
        )
        assert first[0] == 300
        require_right(probs[0], (first, *others), distinct=True)
        seen += [token for token, _ in others]
    assert set(seen) & {0, 1, 2}
    assert max(seen) > 590


def test_a_row_of_two_tokens_is_used_up():
    for uniform in (0.0, 0.4, LAST):
        _, rows, _ = draw(torch.tensor([[1.0, 2.0]]), [2], [uniform, LAST])
        assert sorted(token for token, _ in rows[0]) == [0, 1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 5, 16, 36])
def test_logits_that_are_not_finite_show(bad, place):
    for dtype in DTYPES:
        logits = torch.randn(3, 37).to(dtype)
        logits[1, place] = bad
        _, rows, extremes = draw(logits, [2, 3, 1], [0.5] * 6)
        assert not all(map(math.isfinite, extremes))
        assert all(0 <= token < 37 for row in rows for token, _ in row)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_a_larger_tensor_and_threads(dtype):
    generator = torch.Generator().manual_seed(3)
    whole = torch.randn(40, 4200, generator=generator).to(dtype)
    logits = whole[4:, :4099]
    uniforms = torch.rand(72, generator=generator, dtype=torch.float64).tolist()
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        probs, rows, extremes = draw(logits, [2] * 36, uniforms)
    finally:
        torch.set_num_threads(before)
    assert extremes == [logits.min(), logits.max()]
    for i, row in enumerate(rows):
        alone, (found,), _ = draw(logits[i : i + 1].clone(), [2], [uniform for _, uniform in row])
        assert found == row
        assert torch.equal(probs[i], alone[0])


@drawn(
    st.sampled_from(DTYPES), st.integers(1, 4), st.integers(1, 300), st.sampled_from([1, 3, 1000]),
    st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def check_best(dtype, rows, width, values, seed):
    """Logits with few distinct values, so that several tokens are the best."""
    draws = torch.Generator().manual_seed(seed)
    whole = torch.randint(-values, values, (rows, width + 3), generator=draws).to(dtype)
    logits, extremes = whole[:, :width], torch.empty(2)
    found = best_children(logits, extremes)
    assert found.tolist() == best_token(logits).tolist()
    assert extremes.tolist() == [logits.min(), logits.max()]


def test_the_first_of_the_best(kernel):
    check_best()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_best_of_logits_that_are_not_finite(bad):
    for place in (0, 20, 36):
        logits = torch.randn(3, 37)
        logits[2, place] = bad
        found = best_children(logits, extremes := torch.empty(2))
        assert not extremes.isfinite().all()
        assert ((found >= 0) & (found < 37)).all()


def test_what_does_not_fit_is_refused():
    logits, probs, extremes = torch.zeros(2, 8), torch.empty(2, 8), torch.empty(2)
    plan = plan_of([1, 1])

    def call(logits=logits, probs=probs, extremes=extremes, plan=plan):
        return drawn_children(logits, plan, [0.5, 0.5], 1.0, True, probs, extremes)

    assert call().shape == (2,)
    wrong = [
        {"logits": logits.double()}, {"logits": logits.half()}, {"logits": torch.zeros(8, 2).T},
        {"logits": torch.zeros(3, 8)}, {"probs": probs.bfloat16()}, {"probs": torch.empty(2, 9)},
        {"extremes": torch.empty(3)}, {"extremes": extremes.double()}, {"plan": plan.int()},
    ]  # fmt: skip
    for one in wrong:
        with pytest.raises(ValueError, match="logits"):
            call(**one)
    with pytest.raises(ValueError, match="logits"):
        best_children(logits.double(), extremes)


@pytest.mark.parametrize("width", [4, 256, 512])
def test_every_token_of_a_row(width):
    uniforms = torch.rand(width, dtype=torch.float64).tolist()
    probs, rows, _ = draw(torch.randn(1, width), [width], uniforms)
    assert sorted(token for token, _ in rows[0]) == list(range(width))
    require_right(probs[0], rows[0], distinct=True)
