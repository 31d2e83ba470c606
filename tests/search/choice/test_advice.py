"""The advised shape, undecided comparisons, and what would decide them."""

from dataclasses import replace
from math import ceil
from statistics import NormalDist

import numpy as np
import pytest

from treespec import TreeShape
from treespec.search import best_tree
from treespec.search.choice.advice import Needed, advise
from treespec.search.choice.rows import Entry, Growing, Speed, row_of
from treespec.search.intervals import expanded_tail

ROOT = TreeShape.chain(0)
SHAPES = {"tree": TreeShape.kary(2, 2), "chain": TreeShape.chain(3), "plain": ROOT, "growth": ROOT}
GROWTHS = {"growth": Growing("EAGLE-2 4x5, 16", {}, 16.0, 5, 1.0)}


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


def advised(level=0.95, **speeds):
    plain = speeds.get("plain") or speed(1.0)
    rows = [
        (row_of(Entry(SHAPES[kind], "iid", one, growth=GROWTHS.get(kind)), plain, 1, 0.95), one)
        for kind, one in speeds.items()
    ]
    return advise(rows, level)


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


def test_the_best_tree_and_the_best_chain_are_both_said_whatever_wins():
    kinds = {"growth": 1.6, "tree": 1.4, "chain": 1.2, "plain": 1.0}
    for first in kinds:
        speeds = kinds | {first: 2.0}
        found = advised(**{kind: speed(tokens) for kind, tokens in speeds.items()})
        assert found.use.kind == first
        told = found.to_dict()
        assert (
            {one["kind"] for one in told["others"]} == set(told["over"]) == kinds.keys() - {first}
        )
        for kind in {"tree", "chain"} - {first}:
            assert f"the best {kind} (" in str(found).replace("The", "the")
            assert f"{2 / speeds[kind]:.2f} times the best {kind}" in str(found) or first == "plain"
        apart = speeds["tree"] / speeds["chain"]
        assert told["tree_over_chain"]["estimate"] == pytest.approx(apart)
        said = f"The best tree is {apart:.2f} times as fast as the best chain."
        assert (said in str(found)) == (first not in ("tree", "chain"))
    assert advised(tree=speed(1.5), plain=speed(1.0)).to_dict()["tree_over_chain"] is None
    alone = str(advised(growth=speed(1.5), chain=speed(1.2), plain=speed(1.0)))
    assert alone == (
        "Use the EAGLE-2 4x5, 16 (iid): 1.50 times plain decoding and 1.25 times the best chain "
        "(chain of 3). There was no tree to compare with."
    )


def test_what_there_was_none_of_is_said_whatever_is_advised():
    chain, plain = speed(1.1, of_texts=0.1), speed(1.0)
    undecided, plainly, nothing = (
        str(advised(**speeds))
        for speeds in (
            {"chain": chain, "plain": plain},
            {"tree": speed(0.9), "plain": plain},
            {"plain": plain},
        )
    )
    assert undecided.startswith("Not decided between the chain of 3 (")
    assert undecided.endswith("would decide. There was no tree to compare with.")
    assert plainly == (
        "Decode plainly: no tree is predicted to be faster. The best tree (tree of 7 nodes, 2 deep) has "
        "0.90 of its speed. There was no chain to compare with."
    )
    assert nothing == "Decode plainly: there was no tree or chain to compare with."
    both = advised(chain=chain, plain=plain, tree=speed(1.095, of_texts=0.1, seed=1))
    assert "compare with" not in str(both)
    alike = advised(chain=chain, plain=speed(1.099, seed=1), growth=speed(1.06, seed=2))
    assert len(alike.alike) == 1
    assert str(alike).endswith("take what is simpler. There was no tree to compare with.")
    growth = replace(GROWTHS["growth"], config={"kind": "budget"})
    row = row_of(Entry(ROOT, "deterministic", chain, growth=growth), plain, 1, 0.95)
    only = advise([(row, chain), (row_of(Entry(ROOT, "iid", plain), plain, 1, 0.95), plain)], 0.95)
    assert "compare with" not in str(only)  # chains and trees are among budgets


def test_a_shape_is_advised_only_if_it_is_told_from_its_rivals():
    plain, chain = speed(1.0), speed(1.5, of_texts=0.03)
    rivals = {"equal": speed(1.49, of_texts=0.03, seed=1), "slow": speed(1.2, seed=2)}

    def held(*names):
        rows = [(row_of(Entry(SHAPES[kind], "iid", one, "own"), plain, 1, 0.95), one)
                for kind, one in (("chain", chain), ("plain", plain))]  # fmt: skip
        entries = [
            (Entry(SHAPES["chain"], "iid", rivals[name], name), rivals[name]) for name in names
        ]
        others = [(row_of(entry, plain, 1, 0.95), one) for entry, one in entries]
        return advise(rows, 0.95, {"chain": others, "tree": others})

    assert held().use.source == "own"
    slow, open_still = held("slow"), held("slow", "equal")
    assert slow.use.source == "own"
    assert "times the chain of 3 (slow, iid)" in str(slow)
    assert (held().level, slow.level, open_still.level) == (0.95, 0.975, 0.975)
    assert open_still.use is None
    assert [one.source for one in open_still.between] == ["own", "equal"]
    told = open_still.to_dict()
    assert told["between"] == ["chain", "chain (equal, iid)"]
    assert set(told["over"]) == {"chain (equal, iid)", "chain (slow, iid)", "plain"}
    assert {one["name"] for one in told["others"]} == set(told["over"])
    assert "The chain of 3 (slow, iid) has 0.80 " in str(open_still)
    assert "the chain of 3 (equal, iid: 0.99 " in str(open_still)


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


@pytest.mark.parametrize("texts", [2, 3, 5, 7])
def test_few_texts_that_agree_decide_nothing(texts):
    """The bounds lie beyond all resamples, and the two texts agree by chance."""

    def held(number):
        errors = {"texts": number, "of_texts": 0.01, "draws": 1000}
        plain = speed(1.0, number, draws=1000)
        return advised(tree=speed(1.5, **errors), chain=speed(1.2, seed=1, **errors), plain=plain)

    found, eight = held(texts), held(8)
    assert found.over["chain"].low > 1
    assert found.use is None
    assert texts + found.needed.texts == 8
    assert f"About {8 - texts} more text" in str(found)
    assert eight.use is eight.first


def test_more_resamples_are_asked_for_where_texts_do_not_help():
    errors = {"of_texts": 0.01, "draws": 60}
    found = advised(
        tree=speed(1.5, **errors), chain=speed(1.2, seed=1, **errors), plain=speed(0.5, draws=60)
    )
    assert found.use is None
    assert found.needed.texts == 0
    assert found.needed.draws == ceil(1 / expanded_tail(24, 0.975))
    assert f"Draws = {found.needed.draws} would decide" in str(found)


def test_no_more_texts_are_asked_for_where_those_there_are_suffice():
    """At 1.5 times the speed 24 texts decide, but the times have to be steadier."""
    found = advised(
        tree=speed(1.5, of_texts=0.09, of_times=0.25), chain=speed(1.0, seed=1), plain=speed(0.2)
    )
    assert found.needed.texts == 0
    assert found.needed.steadier > 1


@pytest.mark.parametrize("level", [0.95, 0.99, 0.999])
@pytest.mark.parametrize("texts", [2, 3, 6, 24])
@pytest.mark.parametrize("error", [0.01, 0.1, 0.3])
def test_what_is_asked_for_is_the_least_that_suffices(texts, level, error):
    """By the bounds for the requested number of texts, not for the recorded one."""
    first, second = (speed(v, texts, error, seed=i) for i, v in enumerate((1.5, 1.2)))
    found = advised(level=level, tree=first, chain=second)
    if found.use is not None:
        return
    more, shrink = found.needed.texts, np.log(1.5 / 1.2) / error / np.sqrt(2)

    def decided(number):
        tail = expanded_tail(number, level)
        wide = -NormalDist().inv_cdf(tail) * np.sqrt(texts / number) if tail > 0 else np.inf
        return tail * 20_000 >= 1 and wide < shrink

    margin = ceil(0.05 * (texts + more))
    assert decided(texts + more + margin)
    assert more == 0 or not decided(max(2, texts + more - 1 - margin))


def test_what_would_decide_is_never_nothing():
    assert str(Needed(0, 1.0)) == "A few more texts or repeats would decide"
    assert "1.1 times as many repeats" in str(Needed(0, 1.02))
    assert str(Needed(1, 1.0)) == "About 1 more text like these would decide"


def test_names_keep_their_capitals():
    speeds = {"tree": speed(1.5, of_texts=0.03), "chain": speed(1.2), "plain": speed(1.49, seed=1)}
    rows = [
        (row_of(Entry(SHAPES[kind], "TopK", one, "Qwen"), speeds["plain"], 1, 0.95), one)
        for kind, one in speeds.items()
    ]
    assert "The chain of 3 (Qwen, TopK) has" in str(advise(rows, 0.95))


def test_unsteady_times_have_to_be_steadier():
    found = advised(tree=speed(1.5, of_times=0.05), chain=speed(1.45, seed=1), plain=speed(0.5))
    z = NormalDist().inv_cdf(1 - 0.05 / 4)  # two comparisons share the 5 %
    assert found.needed.steadier == pytest.approx(z * 0.05 / np.log(1.5 / 1.45), rel=0.05)
    assert found.needed.texts == 0
    repeats = found.needed.steadier**2
    assert repeats <= found.needed.repeats < repeats + 0.1
    assert f"{found.needed.repeats:.1f} times as many repeats" in str(found)
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
    assert str(found).endswith(
        "The best chain (chain of 3) has 0.90 (0.86–0.94) of its speed and the best tree (tree of 7 nodes, "
        "2 deep) has 0.80 of its speed. The best tree is 0.89 (0.85–0.93) times as fast as the best chain."
    )
    assert [one["kind"] for one in found.to_dict()["others"]] == ["chain", "tree"]
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


def test_what_would_not_decide_is_not_said_to():
    """More texts distinguish the tree from plain decoding, but never from an equally fast chain."""
    error = {"of_texts": 0.03}
    tree, chain = speed(1.5, **error), speed(1.497, seed=1, **error)
    found = advised(tree=tree, chain=chain, plain=speed(1.47, seed=2))
    assert [one.kind for one in found.between] == ["tree", "chain", "plain"]
    assert [one.kind for one in found.alike] == ["chain"]
    assert not found.needed.hopeless
    said = str(found)
    assert (
        f"About {found.needed.texts} more texts like these would decide between the first" in said
    )
    assert (
        "and plain decoding; hardly any measurement would between the first and the chain" in said
    )
    assert found.to_dict()["alike"] == ["chain"]
    other = advised(tree=tree, chain=chain, plain=speed(0.5))
    assert (other.alike, other.needed.hopeless) == ((), True)


def test_what_is_asked_for_changes_little_with_what_was_measured():
    """The request does not jump where times, or texts, begin to matter."""
    allowed = np.log(1.5 / 1.4) / NormalDist().inv_cdf(1 - 0.05 / 4)

    def asked(of_texts, of_times):
        first = speed(1.5, of_texts=of_texts * allowed, of_times=of_times * allowed)
        still = speed(1.4, seed=1)
        needed = advised(tree=first, chain=still, plain=speed(0.5)).needed
        return None if needed is None else (needed.texts, needed.steadier)

    for of_texts in (0.0, 0.005, 0.02, 0.5, 1.0, 1.5, 3.0):
        times = [x for x in np.linspace(0.0, 2.0, 81) if asked(of_texts, x) is not None]
        found = np.array([asked(of_texts, x) for x in times])
        step = np.abs(np.diff(found, axis=0))
        assert (step[:, 0] <= 3 + 0.1 * found[1:, 0]).all()
        assert (step[:, 1] <= 0.05).all()
    for of_times in (1.1, 1.5):
        texts = np.array([asked(x, of_times) for x in np.linspace(0.0, 0.3, 61)])
        assert (np.abs(np.diff(texts[:, 1])) < 0.05).all()
        assert (texts[:, 0] == 0).all()


def test_too_many_texts_are_no_advice():
    found = advised(
        tree=speed(1.5, of_texts=0.3), chain=speed(1.49, of_texts=0.3, seed=1), plain=speed(0.2)
    )
    assert found.needed.hopeless
    assert "More than 2,400 more texts like these would be needed to decide" in str(found)
