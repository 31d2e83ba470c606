import itertools
import math

import pytest
import torch
from far_away import FarAway
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from treespec import Law, TorchCoins
from treespec.errors import InvalidTree, NotADistribution, TreespecError
from treespec.sampling.children import top_k
from treespec.sampling.coins import inverse_cdf
from treespec.sampling.distributions import best_token, without
from treespec.testing import EnumeratingCoins, outcomes

FALSE_ALARM = 1e-4
"""Probability that a statistical test below fails although the code is right (seeds are fixed)."""


def test_one_stream_for_all_scalar_calls():
    stream = torch.rand(
        256, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    ).tolist()
    coins, row = TorchCoins(5), torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert coins.accept(0.5) == (stream[0] < 0.5)
    assert coins.draw(row) == int((row.double().cumsum(0) > stream[1]).nonzero()[0])
    assert coins.accept(torch.tensor(0.25)) == (stream[2] < 0.25)


@given(st.integers(0, 10_000))
def test_a_coin_compares_its_probability_with_the_next_uniform(seed):
    """Just above and just below the uniform, so that not even a tiny bias passes."""
    stream = TorchCoins(seed)
    uniforms = [stream.uniform() for _ in range(8)]
    above, below = TorchCoins(seed), TorchCoins(seed)
    for u in uniforms:
        assert above.accept(math.nextafter(u, 2.0))
        assert not below.accept(u)


@given(st.integers(0, 10_000))
def test_a_draw_is_the_inverse_cdf_of_the_next_uniform(seed):
    row = torch.rand(7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    stream, coins = TorchCoins(seed), TorchCoins(seed)
    for _ in range(5):
        point = stream.uniform() * float(row.sum())
        mass, expected = 0.0, 0
        for token, weight in enumerate(row.tolist()):
            mass += weight
            if mass > point:
                expected = token
                break
        assert coins.draw(row) == expected


def test_a_generator_is_taken_as_it_is():
    one, two = TorchCoins(3), TorchCoins(torch.Generator().manual_seed(3))
    assert [one.uniform() for _ in range(600)] == [two.uniform() for _ in range(600)]


@given(st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), min_size=1, max_size=6), st.integers(0, 99))
def test_inverse_cdf_is_the_first_token_past_the_uniform(weights, seed):
    if sum(weights) == 0:
        weights[0] = 1.0
    row = torch.tensor(weights, dtype=torch.float64)
    points = torch.rand(20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for u, token in zip(points.tolist(), inverse_cdf(row, points).tolist(), strict=True):
        mass = 0.0
        expected = next(i for i, w in enumerate(weights) if (mass := mass + w) > u * sum(weights))
        assert token == expected


@pytest.mark.parametrize("row", [[0.0, 1.0, 0.0], [0.3, 0.7, 0.0], [5e-324, 0.0, 0.0]])
def test_the_largest_uniform_never_gives_a_token_without_mass(row):
    last = torch.tensor([1 - 2.0**-53], dtype=torch.float64)
    token = int(inverse_cdf(torch.tensor(row, dtype=torch.float64), last))
    assert row[token] > 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("row", [[0.0, 0.0, 1.0], [0.0, 0.25, 0.0, 0.75], [0.0, 1e-30, 1.0]])
def test_a_uniform_of_zero_never_gives_a_token_without_mass(row, dtype):
    row = torch.tensor(row, dtype=dtype)
    first = next(token for token, mass in enumerate(row.tolist()) if mass > 0)
    assert inverse_cdf(row, torch.zeros(1, dtype=torch.float64)).tolist() == [first]
    assert inverse_cdf(row[None], torch.zeros(1, 3, dtype=torch.float64)).tolist() == [[first] * 3]

    class Zero(TorchCoins):
        def uniform(self):
            return 0.0

    assert Zero(0).draw(row) == first
    assert not Zero(0).accept(0.0)
    for law in (Law.IID, Law.WITHOUT_REPLACEMENT):
        assert Zero(0).draw_many(row[None], 1, law).tolist() == [[first]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_best_token_is_that_of_topk_ties_included(dtype):
    for size in (33, 64, 700):
        rows = torch.randint(-3, 4, (90, size), generator=torch.Generator().manual_seed(0)).to(
            dtype
        )
        assert torch.equal(top_k(rows, 1), rows.topk(1, dim=-1).indices)
        assert torch.equal(best_token(rows), rows.argmax(-1))


@pytest.mark.parametrize("law", [law for law in Law if law is not Law.DETERMINISTIC])
def test_rows_that_are_not_looked_at_give_the_same_tokens(law):
    generator = torch.Generator().manual_seed(0)
    rows = (3 * torch.randn(50, 9, generator=generator)).softmax(-1)
    looking, unseen = TorchCoins(5), TorchCoins(5)
    expected = looking.draw_many(rows, 2, law)
    assert torch.equal(unseen.draw_unseen(rows, 2, law), expected)
    assert unseen.uniform() == looking.uniform()
    unseen.peek(100)
    with FarAway() as far:
        again = unseen.draw_unseen(rows, 2, law)
    assert torch.equal(again, looking.draw_many(rows, 2, law))
    assert not far.reads
    broken = unseen.draw_unseen(torch.full((4, 9), math.nan), 2, law)
    assert broken.min() >= 0
    assert broken.max() < 9
    with pytest.raises(NotADistribution, match="negative"):
        unseen.draw_unseen(-rows, 2, law)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0])
@pytest.mark.parametrize("first", [False, True])
def test_one_row_without_mass_among_others_is_refused(bad, first):
    rows = [[0.5, 0.5], [bad, 0.0]]
    probs = torch.tensor(rows[::-1] if first else rows)
    with pytest.raises(NotADistribution, match="without finite, positive mass"):
        inverse_cdf(probs, torch.full((2, 1), 0.5))


def test_a_uniform_on_a_border_belongs_to_what_lies_behind_it():
    """A token without mass at the boundary is never drawn; the next token with mass is."""
    row = torch.tensor([0.25, 0.0, 0.25, 0.0, 0.0, 0.5, 0.0], dtype=torch.float64)
    points = torch.tensor([0.0, 0.25, 0.5, 1 - 2.0**-53], dtype=torch.float64)
    assert inverse_cdf(row, points).tolist() == [0, 2, 5, 5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_large_rows_whose_sums_are_off(dtype):
    """With 128k tokens, half precision rounds a row's sum far from 1; every uniform still gives a token."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(128_256, generator=generator).mul(2).softmax(-1)
    row[torch.rand(len(row), generator=generator) < 0.5] = 0
    row[:3] = row[-3:] = 0
    row = (row / row.sum()).to(dtype)
    with_mass = row.nonzero().flatten()
    wide = row.double().numpy()
    points = torch.rand(200, generator=generator, dtype=torch.float64)
    ends = torch.tensor([0.0, 5e-324, 2.0**-53, 1 - 2.0**-24, 1 - 2.0**-53], dtype=torch.float64)
    points = torch.cat([ends, points])
    drawn = inverse_cdf(row, points)
    assert bool((row[drawn] > 0).all())
    assert int(drawn[0]) == int(with_mass[0])
    assert int(drawn[4]) == int(with_mass[-1])
    exact = [math.fsum(wide[:token]) for token in drawn.tolist()]
    above = [before + wide[token] for before, token in zip(exact, drawn.tolist(), strict=True)]
    total = math.fsum(wide)
    for u, low, high in zip(points.tolist(), exact, above, strict=True):
        assert low / total - 1e-12 <= u <= high / total + 1e-12


def law_of_children(probs, k, law):
    """The distribution of k children by hand: products of conditional probabilities."""
    table = {}
    for children in itertools.product(range(len(probs)), repeat=k):
        weight, gone = 1.0, []
        for token in children:
            left = probs
            if law is Law.WITHOUT_REPLACEMENT and gone:
                if token in gone:
                    weight = 0.0
                    break
                left = without(probs, torch.tensor(gone))
            weight *= float(left[token] / left.sum())
            gone.append(token)
        table[children] = weight
    return table


@pytest.mark.parametrize("law", [Law.IID, Law.WITHOUT_REPLACEMENT])
@pytest.mark.parametrize("probs", [[0.5, 0.3, 0.2, 0.0], [1.0, 0.0, 0.0, 0.0], [0.25] * 4])
def test_draw_many_follows_its_law(law, probs):
    row = torch.tensor(probs, dtype=torch.float64)
    expected = law_of_children(row, 3, law)
    exact: dict[tuple[int, ...], float] = {}
    for weight, drawn in outcomes(lambda coins: coins.draw_many(row[None], 3, law)):
        key = tuple(drawn[0].tolist())
        exact[key] = exact.get(key, 0.0) + weight
    assert exact == pytest.approx({c: w for c, w in expected.items() if w > 0}, abs=1e-14)

    rows, coins = row.repeat(4000, 1), TorchCoins(1)
    seen = [tuple(c) for c in coins.draw_many(rows, 3, law).tolist()]
    possible = [c for c, w in expected.items() if w > 0]
    assert set(seen) <= set(possible)
    if len(possible) > 1:
        counts = [seen.count(c) for c in possible]
        assert chisquare(counts, [expected[c] * len(seen) for c in possible]).pvalue > FALSE_ALARM


def test_deterministic_children_are_the_best_and_use_no_coin():
    coins = EnumeratingCoins()
    scores = torch.tensor([[0.1, 0.5, 0.4], [3.0, 1.0, 2.0]])
    assert coins.draw_many(scores, 2, Law.DETERMINISTIC).tolist() == [[1, 2], [0, 2]]
    assert TorchCoins(0).draw_many(scores, 2, Law.DETERMINISTIC).tolist() == [[1, 2], [0, 2]]
    assert coins.trail == []


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 0.0])
@pytest.mark.parametrize("law", [Law.IID, Law.WITHOUT_REPLACEMENT])
def test_no_token_is_drawn_from_what_is_no_distribution(bad, law):
    row = torch.full((3,), bad)
    with pytest.raises(NotADistribution, match="without finite, positive mass"):
        TorchCoins(0).draw(row)
    with pytest.raises(NotADistribution):
        TorchCoins(0).draw_many(row[None], 2, law)


@pytest.mark.parametrize("law", [Law.WITHOUT_REPLACEMENT, Law.DETERMINISTIC])
@pytest.mark.parametrize("coins", [TorchCoins(0), EnumeratingCoins()])
def test_more_distinct_children_than_tokens(law, coins):
    with pytest.raises(InvalidTree, match=r"4 distinct children.*vocabulary has 3"):
        coins.draw_many(torch.ones(1, 3), 4, law)


def test_enumeration_is_exact_and_complete():
    def play(coins):
        first = coins.draw(torch.tensor([1.0, 2.0, 0.0, 1.0]))
        return first, coins.accept(0.25) if first else coins.accept(1.0)

    found = list(outcomes(play))
    assert found == [
        (0.25, (0, True)), (0.125, (1, True)), (0.375, (1, False)),
        (0.0625, (3, True)), (0.1875, (3, False)),
    ]  # fmt: skip


@pytest.mark.parametrize(("given", "sides"), [(2.0, 1), (-1.0, 1), (float("nan"), 1), (0.5, 2)])
def test_probabilities_outside_the_unit_interval_are_certain(given, sides):
    assert len(list(outcomes(lambda coins: coins.accept(given)))) == sides


@given(st.integers(0, 10_000), st.lists(st.integers(0, 300), min_size=1, max_size=6))
def test_uniforms_that_are_peeked_at_stay_in_the_stream(seed, counts):
    plain, peeking = TorchCoins(seed), TorchCoins(seed)
    for count in counts:
        ahead = peeking.peek(count)
        used = count // 2
        assert ahead == peeking.peek(count)
        peeking.skip(used)
        assert ahead[:used] == [plain.uniform() for _ in range(used)]
    assert plain.uniform() == peeking.uniform()


def numbers(coins):
    return coins.uniforms(300)


def test_a_fork_is_a_stream_of_its_seed_and_name():
    coins, used = TorchCoins(5), TorchCoins(torch.Generator().manual_seed(5))
    used.uniforms(700)
    draft = numbers(coins.fork("draft 3"))
    assert draft == numbers(used.fork("draft 3")) == numbers(coins.fork("draft 3"))
    assert numbers(coins) == numbers(TorchCoins(5))  # forking takes none of them
    others = [coins, coins.fork("draft 4"), TorchCoins(6).fork("draft 3")]
    others.append(coins.fork("draft 3").fork("draft 3"))
    assert all(not set(draft) & set(numbers(other)) for other in others)


def test_enumeration_has_one_stream():
    coins = EnumeratingCoins()
    assert coins.fork("draft") is coins
    with pytest.raises(TreespecError, match=r"forked twice under the name 'draft'"):
        coins.fork("draft")  # the same numbers again


@pytest.mark.parametrize("coins", [TorchCoins(0), EnumeratingCoins()], ids=["real", "enumerated"])
def test_children_of_the_greedy_multi_draft_law(coins):
    row = torch.tensor([[0.1, 0.4, 0.2, 0.3]], dtype=torch.float64)
    drawn = coins.draw_many(row, 3, Law.TOP_THEN_SAMPLE)[0].tolist()
    assert drawn[:2] == [1, 3]
    assert drawn[2] in (0, 2)
    assert coins.draw_many(row, 4, Law.TOP_THEN_SAMPLE)[0].tolist()[:3] == [1, 3, 2]


def pairs_of(law, row, k=2):
    """The exact distribution of the children, computed by the code that draws them."""
    found = {}
    for weight, drawn in outcomes(lambda coins: coins.draw_many(row[None], k, law)):
        key = tuple(drawn[0].tolist())
        found[key] = found.get(key, 0) + weight
    return found


def test_pairs_around_a_hub():
    row = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    expected = {(0, 1): 0.2, (2, 1): 0.3, (1, 0): 0.5 * 0.2 / 0.5, (1, 2): 0.5 * 0.3 / 0.5}
    assert pairs_of(Law.HUB, row) == pytest.approx(expected)
    assert pairs_of(Law.HUB, row, k=1) == pytest.approx({(0,): 0.2, (1,): 0.5, (2,): 0.3})


@pytest.mark.parametrize("law", [Law.WITHOUT_REPLACEMENT, Law.TOP_THEN_SAMPLE, Law.HUB], ids=str)
def test_an_exhausted_draft_goes_on_uniformly(law):
    sure = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    assert pairs_of(law, sure) == pytest.approx({(1, 0): 0.5, (1, 2): 0.5})


@pytest.mark.parametrize("law", [Law.TOP_THEN_SAMPLE, Law.HUB, Law.WITHOUT_REPLACEMENT], ids=str)
def test_both_kinds_of_coins_draw_children_by_one_law(law):
    row = torch.tensor([0.1, 0.35, 0.25, 0.3], dtype=torch.float64)
    expected, draws = pairs_of(law, row), 4000
    drawn = TorchCoins(11).draw_many(row.expand(draws, -1), 2, law).tolist()
    counts = [drawn.count(list(pair)) for pair in expected]
    assert sum(counts) == draws
    assert chisquare(counts, [w * draws for w in expected.values()]).pvalue > FALSE_ALARM


@pytest.mark.parametrize("coins", [TorchCoins(0), EnumeratingCoins()], ids=["real", "enumerated"])
def test_more_children_than_a_law_gives(coins):
    row = torch.full((1, 4), 0.25)
    with pytest.raises(
        InvalidTree, match="3 children of one node, but the law 'hub' gives one or two"
    ):
        coins.draw_many(row, 3, Law.HUB)
    with pytest.raises(InvalidTree, match="5 distinct children"):
        coins.draw_many(row, 5, Law.TOP_THEN_SAMPLE)
