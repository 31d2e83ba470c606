from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from treespec import Law
from treespec.errors import InvalidTree, NotADistribution
from treespec.testing import outcomes
from treespec.testing.rationals import Rationals
from treespec.verify.exponential_race import draws_in_prefix
from treespec.verify.optimal_acceptance import optimal_acceptance

LAWS = list(Law)
WITHOUT, TOP = Law.WITHOUT_REPLACEMENT, Law.TOP_THEN_SAMPLE


def row(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def random_row(size, generator):
    """Flat or peaked; often with zeros, sometimes of few different values (ties)."""
    kind = int(torch.randint(9, (), generator=generator))
    normal = torch.randn(size, generator=generator, dtype=torch.float64)
    probs = (normal * [1, 3, 8][kind % 3]).softmax(0)
    if kind >= 3:
        drop = torch.rand(size, generator=generator) < 0.4
        drop[int(torch.randint(size, (), generator=generator))] = False
        probs = probs.masked_fill(drop, 0)
    if kind >= 6:
        probs = (probs * 8).ceil()
    return probs / probs.sum()


def random_case(seed, law):
    generator = torch.Generator().manual_seed(seed)
    size = 1 + seed % 6
    most = {Law.IID: 4, Law.HUB: min(2, size)}.get(law, min(4, size))
    k = int(torch.randint(1, most + 1, (), generator=generator))
    return random_row(size, generator), random_row(size, generator), k


def law_of_sets(draft, k, law):
    """The law of the drafted set, by enumeration of `draw_many`, the code that drafts."""
    sets = {}
    for weight, tokens in outcomes(
        lambda c: frozenset(c.draw_many(draft[None], k, law)[0].tolist())
    ):
        sets[tokens] = sets.get(tokens, 0) + weight
    return sets


def by_linear_programme(target, sets):
    """The largest mass that sets can send to their own tokens, by a plain dense programme."""
    ends = [(i, x) for i, tokens in enumerate(sets) for x in sorted(tokens)]
    table = np.zeros((len(sets) + len(target), len(ends)))
    for column, (i, x) in enumerate(ends):
        table[i, column] = table[len(sets) + x, column] = 1
    # The solver's tolerances are absolute, so scale the masses up.
    limits = 1e6 * np.array([*sets.values(), *target.tolist()])
    return -linprog(-np.ones(len(ends)), A_ub=table, b_ub=limits, method="highs").fun / 1e6


def by_all_sets(target, sets):
    """1 + min over all sets H."""
    target, size = target.tolist(), len(target)
    subsets = (set(h) for m in range(size + 1) for h in combinations(range(size), m))
    return 1 + min(
        sum(target[x] for x in h) - sum(w for tokens, w in sets.items() if tokens <= h)
        for h in subsets
    )


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_formula_is_the_linear_programme(law):
    cases, worst = 150, 0.0
    for seed in range(cases):
        target, draft, k = random_case(seed, law)
        found = optimal_acceptance(target, draft, k, law)
        worst = max(worst, abs(found - by_linear_programme(target, law_of_sets(draft, k, law))))
    print(f"{law}: {cases} cases, largest difference {worst:.2g}")
    assert worst < 1e-9


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_best_set_is_found_among_all_sets(law):
    for seed in range(1000, 1150):
        target, draft, k = random_case(seed, law)
        found = optimal_acceptance(target, draft, k, law)
        assert abs(found - by_all_sets(target, law_of_sets(draft, k, law))) < 1e-12


def test_by_hand():
    p, q = row(0.5, 0.3, 0.2), row(0.2, 0.6, 0.2)
    # Both drafts are in {1, 2} with probability 0.64, and the output may be with 0.5 only.
    assert optimal_acceptance(p, q, 2, Law.IID) == pytest.approx(1 + 0.5 - 0.8**2)
    # Without replacement with 0.6 * 0.2 / 0.4 + 0.2 * 0.6 / 0.8 = 0.45 only.
    assert optimal_acceptance(p, q, 2, WITHOUT) == pytest.approx(1.0)
    assert optimal_acceptance(p, q, 2, Law.DETERMINISTIC) == pytest.approx(0.8)
    # T = {1}, then tokens 0 and 2 with probability 1/2 each.
    assert optimal_acceptance(p, q, 2, TOP) == pytest.approx(0.3 + 0.5 + 0.2)
    # The pairs {1, 0} and {1, 2}, 1/2 each: all mass fits. If p is (.1, .1, .8), {1, 0} supplies only 0.2.
    assert optimal_acceptance(p, q, 2, Law.HUB) == pytest.approx(1.0)
    assert optimal_acceptance(row(0.1, 0.1, 0.8), q, 2, Law.HUB) == pytest.approx(0.7)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_corners(law):
    p, q = row(0.5, 0.25, 0.25), row(0.2, 0.3, 0.5)
    if law is not Law.DETERMINISTIC:
        assert optimal_acceptance(p, p, 1, law) == pytest.approx(1.0)
        assert optimal_acceptance(p, q, 1, law) == pytest.approx(0.7)
    else:
        assert optimal_acceptance(p, q, 1, law) == pytest.approx(0.25)
    one, other = row(1, 0, 0), row(0, 1, 0)
    assert optimal_acceptance(one, one, 1, law) == 1
    assert optimal_acceptance(one, other, 1, law) == 0
    assert optimal_acceptance(row(1), row(1), 1, law) == 1
    # The draft has all its mass on token 1; a distinct second child is uniform over the other tokens.
    expected = {Law.IID: 0.25, Law.DETERMINISTIC: 0.75}.get(law, 1.0)
    assert optimal_acceptance(p, other, 2, law) == pytest.approx(expected)


@pytest.mark.parametrize("law", [WITHOUT, Law.DETERMINISTIC, TOP], ids=str)
def test_children_that_are_the_whole_vocabulary(law):
    p, q = row(0.5, 0.25, 0.25, 0), row(0, 0.3, 0, 0.7)
    assert optimal_acceptance(p, q, 4, law) == pytest.approx(1.0)


@given(st.integers(0, 10_000), st.integers(2, 5))
@settings(max_examples=60)
def test_draws_in_a_prefix_by_all_draws(seed, k):
    generator = torch.Generator().manual_seed(seed)
    size = k + seed % 3
    # Up to 26 orders of magnitude between the tokens.
    spread = [1.0, 5.0, 20.0][seed % 3]
    q = (torch.randn(size, generator=generator, dtype=torch.float64) * spread).softmax(0)
    expected = torch.zeros(size, dtype=torch.float64)
    for drawn in permutations(range(size), k):
        chance = 1.0
        for place, token in enumerate(drawn):
            chance *= float(q[token] / q[[x for x in range(size) if x not in drawn[:place]]].sum())
        expected[max(drawn) :] += chance
    assert float((draws_in_prefix(q, k) - expected).abs().max()) < 1e-12


@pytest.mark.parametrize("descending", [False, True])
def test_draws_among_many_tokens(descending):
    """Against all triples of 50 tokens: late rings of small tokens count, to 1e-12."""
    generator = torch.Generator().manual_seed(150)
    q = torch.randn(50, generator=generator, dtype=torch.float64).softmax(-1)
    q = q.sort(descending=descending).values
    first, second, third = q[:, None, None], q[:, None], q
    chance = first * second / (1 - first) * third / (1 - first - second)
    i, j, k = (torch.arange(50).view(shape) for shape in ((-1, 1, 1), (-1, 1), (-1,)))
    chance = chance.masked_fill((i == j) | (j == k) | (i == k), 0)
    expected = torch.stack([chance[:n, :n, :n].sum() for n in range(1, 51)])
    assert float((draws_in_prefix(q, 3) - expected).abs().max()) < 1e-12


@pytest.mark.parametrize("k", [2, 7, 40])
def test_draws_of_equal_tokens_are_hypergeometric(k):
    size = 3000  # several blocks
    found = draws_in_prefix(torch.full((size,), 1 / size, dtype=torch.float64), k)
    expected = torch.ones(size, dtype=torch.float64)
    count = torch.arange(1, size + 1, dtype=torch.float64)
    for draw in range(k):
        expected *= (count - draw).clamp_min(0) / (size - draw)
    assert float((found - expected).abs().max()) < 1e-12


def test_tokens_of_very_different_mass():
    # After the first token (1 - 1e-30 of the mass), the draws are among the other tokens alone.
    tiny = row(0.2, 0.5, 0.3)
    found = draws_in_prefix(torch.cat([row(1.0), tiny * 1e-30]), 2)
    assert torch.allclose(found, row(0, 0.2, 0.7, 1.0), atol=1e-12)


@given(st.integers(0, 10_000), st.sampled_from([Law.IID, WITHOUT]))
@settings(max_examples=60)
def test_more_drafts_accept_more_and_never_less_than_one(seed, law):
    generator = torch.Generator().manual_seed(seed)
    p, q = (random_row(7, generator) for _ in range(2))
    values = [optimal_acceptance(p, q, k, law) for k in range(1, 8)]
    assert values[0] == pytest.approx(float(torch.minimum(p, q).sum()))
    assert all(low <= high + 1e-12 for low, high in pairwise(values))
    assert all(0 <= value <= 1 + 1e-12 for value in values)
    if law is WITHOUT:
        assert values[-1] == pytest.approx(1.0)
        iid = [optimal_acceptance(p, q, k, Law.IID) for k in range(1, 8)]
        assert all(a <= b + 1e-12 for a, b in zip(iid, values, strict=True))


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_a_large_vocabulary(law):
    size, k = 128_256, 2 if law is Law.HUB else 16
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, size, generator=generator)
    p = (3 * logits[0]).softmax(0)
    q = (3 * logits[0] + logits[1]).softmax(0)
    value = optimal_acceptance(p, q, k, law)
    assert 0 < value < 1
    if law in (Law.IID, WITHOUT):
        assert value > optimal_acceptance(p, q, 4, law) > float(torch.minimum(p, q).sum())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_any_float_dtype(dtype):
    p, q = row(0.5, 0.3, 0.2), row(0.2, 0.6, 0.2)
    for law in LAWS:
        exact = optimal_acceptance(p, q, 2, law)
        assert optimal_acceptance(p.to(dtype), q.to(dtype), 2, law) == pytest.approx(
            exact, abs=0.01
        )


def test_rows_of_fractions_and_rows_are_not_mutated():
    p, q = row(0.5, 0.25, 0.25), row(0.25, 0.5, 0.25)
    before = p.clone(), q.clone()
    for law in LAWS:
        found = optimal_acceptance(Rationals(p), Rationals(q), 2, law)
        assert found == optimal_acceptance(p, q, 2, law)
    assert torch.equal(p, before[0])
    assert torch.equal(q, before[1])


@pytest.mark.usefixtures("without_shape_checks")
def test_bad_input():
    p = row(0.5, 0.5)
    with pytest.raises(InvalidTree, match=r"\[2\] and draft_probs \[3\]"):
        optimal_acceptance(p, row(0.5, 0.25, 0.25), 1, Law.IID)
    with pytest.raises(InvalidTree, match="one row each"):
        optimal_acceptance(p[None], p[None], 1, Law.IID)
    with pytest.raises(InvalidTree, match="k = 0 children"):
        optimal_acceptance(p, p, 0, Law.IID)
    with pytest.raises(InvalidTree, match=r"3 distinct children.*vocabulary has 2"):
        optimal_acceptance(p, p, 3, WITHOUT)
    with pytest.raises(InvalidTree, match="'hub' gives one or two"):
        optimal_acceptance(p, p, 3, Law.HUB)
    bad = [
        row(0.5, 0.6),
        row(0.5, 0.498),
        row(-0.5, 1.5),
        row(0.0, 0.0),
        row(float("nan"), 1.0),
        row(torch.inf, 0),
    ]
    for wrong in bad:
        with pytest.raises(NotADistribution, match="target_probs is not a distribution"):
            optimal_acceptance(wrong, p, 1, Law.IID)
        with pytest.raises(NotADistribution, match="draft_probs is not a distribution"):
            optimal_acceptance(p, wrong, 1, Law.IID)
