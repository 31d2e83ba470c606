"""What is advised, what is not decided, and what would decide it."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from treespec import TreeShape
from treespec.search import best_tree
from treespec.search.choice.advice import advise
from treespec.search.choice.rows import Entry, Speed, row_of
from treespec.search.intervals import expanded_tail

SHAPES = {"tree": TreeShape.kary(2, 2), "chain": TreeShape.chain(3), "plain": TreeShape.chain(0)}


def speed(tokens, texts=24, of_texts=0.0, of_times=0.0, seed=0, draws=20_000):
    """Resamples with these relative errors, independent for each seed."""
    rng = np.random.default_rng(seed)
    return Speed(
        tokens,
        1.0,
        tokens * np.exp(of_texts * rng.normal(size=draws)),
        np.exp(of_times * rng.normal(size=draws)),
        texts,
    )


def advised(**speeds):
    plain = speeds["plain"]
    rows = [
        (row_of(Entry(SHAPES[kind], "iid", one), plain, 1, 0.95), one)
        for kind, one in speeds.items()
    ]
    return advise(rows, 0.95)


def test_a_shape_is_advised_if_both_intervals_exclude_one():
    found = advised(
        tree=speed(1.5, of_texts=0.02), chain=speed(1.3, of_texts=0.02, seed=1), plain=speed(1.0)
    )
    assert found.use is found.first
    assert found.use.kind == "tree"
    assert found.needed is None
    assert found.over["chain"].low > 1
    assert str(found).startswith("Use the tree of 7 nodes, 2 deep (iid): 1.50 ")
    assert "times the best chain (chain of 3)" in str(found)


@pytest.mark.parametrize(("other", "value"), [("chain", 1.46), ("plain", 1.47)])
def test_one_interval_that_holds_one_leaves_it_open(other, value):
    speeds = {"chain": speed(1.1), "plain": speed(1.0)} | {
        other: speed(value, seed=1, of_texts=0.03)
    }
    found = advised(tree=speed(1.5, of_texts=0.03), **speeds)
    assert found.use is None
    assert [one.kind for one in found.between] == ["tree", other]
    assert "Not decided between the tree" in str(found)
    assert found.needed.texts > 0
    assert found.to_dict()["use"] is None


def test_comparisons_share_the_level():
    tree, chain = speed(1.5, of_texts=0.02), speed(1.44, seed=1)
    two = advised(tree=tree, chain=chain, plain=speed(0.5)).over["chain"]
    one = advised(tree=tree, plain=chain).over["plain"]
    tail = expanded_tail(24, 0.975)
    assert two[1:] == pytest.approx(
        tuple(np.quantile(tree.rate_drawn / chain.rate_drawn, [tail, 1 - tail]))
    )
    assert two.low < one.low < 1.5 / 1.44 < one.high < two.high


def test_as_many_texts_as_are_asked_for_decide():
    errors = {"of_texts": 0.02, "of_times": 0.009}
    first, second = speed(1.5, **errors), speed(1.43, seed=1, **errors)
    needed = advised(tree=first, chain=second, plain=speed(0.5)).needed
    assert needed.steadier == 1.0
    texts = 24 + needed.texts
    errors["of_texts"] *= np.sqrt(24 / texts)
    few = dict(errors, of_texts=errors["of_texts"] * 1.2)
    more = {"texts": texts, **errors}, {"texts": texts, **few}
    decided, open_still = (
        advised(tree=speed(1.5, **e), chain=speed(1.43, seed=1, **e), plain=speed(0.5))
        for e in more
    )
    assert decided.over["chain"].low == pytest.approx(1.0, abs=0.003)
    assert open_still.use is None


def test_of_few_texts_as_many_are_asked_for_as_their_wider_bounds_need():
    def held(texts, error):
        first, second = (speed(value, texts, error, seed=i) for i, value in enumerate((1.5, 1.2)))
        return advised(tree=first, chain=second, plain=speed(0.5))

    needed = held(4, 0.08).needed
    assert needed.texts >= 2
    texts = 4 + needed.texts
    assert held(texts, 0.08 * np.sqrt(4 / texts)).over["chain"].low == pytest.approx(1, abs=0.03)
    fewer = texts - 2
    assert held(fewer, 0.08 * np.sqrt(4 / fewer)).use is None


def test_unsteady_times_have_to_be_steadier():
    found = advised(tree=speed(1.5, of_times=0.05), chain=speed(1.45, seed=1), plain=speed(0.5))
    z = NormalDist().inv_cdf(1 - 0.05 / 4)  # two comparisons share the 5 %
    assert found.needed.steadier == pytest.approx(z * 0.05 / np.log(1.5 / 1.45), rel=0.05)
    assert found.needed.texts == 0
    assert "times as steady" in str(found)
    both = advised(
        tree=speed(1.5, of_times=0.05, of_texts=0.05), chain=speed(1.45, seed=1), plain=speed(0.5)
    )
    assert both.needed.texts > 0
    assert both.needed.steadier > found.needed.steadier


def test_equal_shapes_are_called_equal():
    found = advised(tree=speed(1.5, of_texts=0.02), chain=speed(1.499, seed=1), plain=speed(0.5))
    assert found.needed.hopeless
    assert "look equally fast" in str(found)


def test_plain_decoding_is_advised_like_any_other():
    found = advised(tree=speed(0.8), chain=speed(0.9, of_texts=0.02), plain=speed(1.0))
    assert found.use.kind == "plain"
    assert str(found).startswith("Decode plainly")
    assert "the best chain, a chain of 3, has 0.90" in str(found)
    unsure = advised(tree=speed(0.8), chain=speed(0.98, of_texts=0.05), plain=speed(1.0))
    assert unsure.use is None
    assert [one.kind for one in unsure.between] == ["plain", "chain"]


def test_a_ranking_carries_its_advice(flat):
    ranking = best_tree([0.6, 0.2, 0.1], flat)
    assert ranking.verdict == str(ranking.advice)
    assert ranking.advice.use is ranking.best
    assert any("as if every level were independent" in note for note in ranking.notes)


def test_disturbed_times_are_told(flat):
    noisy = replace(flat, disturbed="3 of 5 rounds were disturbed: profile again")
    assert "times: 3 of 5 rounds were disturbed: profile again" in best_tree([0.6], noisy).notes
    assert not any("disturbed" in note for note in best_tree([0.6], flat).notes)
