"""The advised shape, undecided comparisons, and what would decide them."""

from dataclasses import replace

import numpy as np
import pytest

from treespec import TreeShape
from treespec.search import LatencyModel, best_tree
from treespec.search.choice.advice import EQUAL_WITHIN, Needed, advise
from treespec.search.choice.rows import Choice, Growing, Speed

ROOT = TreeShape.chain(0)
SHAPES = {"tree": TreeShape.kary(2, 2), "chain": TreeShape.chain(3), "plain": ROOT, "growth": ROOT}
GROWTHS = {"growth": Growing("EAGLE-2 4x5, 16", {}, 16.0, 5, 1.0)}


def speed(tokens, texts=24, of_texts=1e-6, of_times=0.0, seed=0, draws=20_000):
    """Resamples with these relative errors, independent for each seed."""
    rng = np.random.default_rng(seed)
    return Speed(
        tokens,
        1.0,
        tokens * np.exp(of_texts * rng.normal(size=draws)),
        np.exp(of_times * rng.normal(size=draws)),
        texts,
    )


def held(kind, one, plain, source=""):
    return Choice(SHAPES[kind], "iid", one, source, growth=GROWTHS.get(kind), plain=plain)


def advised(level=0.95, **speeds):
    plain = speeds.get("plain") or speed(1.0)
    return advise([held(kind, one, plain) for kind, one in speeds.items()], level)


def test_a_shape_is_advised_if_both_intervals_exclude_one():
    found = advised(
        tree=speed(1.5, of_texts=0.02), chain=speed(1.3, of_texts=0.02, seed=1), plain=speed(1.0)
    )
    assert found.use is found.first
    assert found.use.kind == "tree"
    assert found.needed is None
    assert found.over["chain"].low > 1
    assert found.level == 0.975
    assert advised(tree=speed(1.5), plain=speed(1.0)).level == 0.95
    assert str(found).startswith("Use the tree of 7 nodes, 2 deep (iid): 1.50 ")
    assert "times the best chain (chain of 3)" in str(found)


def test_the_best_tree_and_the_best_chain_are_both_said_whatever_wins():
    kinds = {"growth": 1.6, "tree": 1.4, "chain": 1.2, "plain": 1.0}
    for first in kinds:
        speeds = kinds | {first: 2.0}
        found = advised(**{kind: speed(tokens) for kind, tokens in speeds.items()})
        assert found.use.kind == first
        told = found.to_dict()
        names = {one["kind"] for one in told["others"]}
        assert names == set(told["over"]) == kinds.keys() - {first}
        apart = speeds["tree"] / speeds["chain"]
        assert told["tree_over_chain"]["estimate"] == pytest.approx(apart)
        said = f"The best tree is {apart:.2f} times as fast as the best chain."
        assert (said in str(found)) == (first not in ("tree", "chain"))
    assert advised(tree=speed(1.5), plain=speed(1.0)).tree_over_chain is None
    alone = advised(growth=speed(1.5), chain=speed(1.2), plain=speed(1.0))
    assert str(alone).endswith("There was no tree to compare with.")
    budget = replace(GROWTHS["growth"], config={"kind": "budget"})
    plain = speed(1.0)
    row = Choice(ROOT, "deterministic", speed(1.5), growth=budget, plain=plain)
    only = advise([row, held("plain", plain, plain)], 0.95)
    assert "compare with" not in str(only)  # chains and trees are among budgets


def test_a_shape_is_advised_only_if_it_is_told_from_those_of_other_sources():
    plain, chain = speed(1.0), speed(1.5, of_texts=0.03)
    rivals = {"equal": speed(1.45, of_texts=0.03, seed=1), "slow": speed(1.2, seed=2)}

    def found(*names):
        own = [held("chain", chain, plain, "own"), held("plain", plain, plain)]
        return advise(own + [held("chain", rivals[name], plain, name) for name in names], 0.95)

    slow, still_open = found("slow"), found("slow", "equal")
    assert slow.use.source == "own"
    assert "times the chain of 3 (slow, iid)" in str(slow)
    assert still_open.use is None
    assert [one.source for one in still_open.between] == ["own", "equal"]
    told = still_open.to_dict()
    assert told["between"] == ["chain", "chain (equal, iid)"]
    assert set(told["over"]) == {"chain (equal, iid)", "chain (slow, iid)", "plain"}
    assert "The chain of 3 (slow, iid) has 0.80 " in str(still_open)
    assert "the chain of 3 (equal, iid: 0.97 " in str(still_open)


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
    assert f"bout {found.needed.texts} more texts" in str(found)


@pytest.mark.parametrize("texts", [6, 24])
@pytest.mark.parametrize("of_times", [0.0, 0.02])
def test_what_is_asked_for_decides_and_half_of_it_does_not(texts, of_times):
    def found(number, repeats=1.0):
        errors = {
            "of_texts": 0.06 * np.sqrt(texts / number), "of_times": of_times / np.sqrt(repeats)
        }  # fmt: skip
        first, second = (speed(v, number, seed=i, **errors) for i, v in enumerate((1.5, 1.38)))
        return advised(tree=first, chain=second, plain=speed(0.5, number))

    needed = found(texts).needed
    assert needed.texts > 0
    assert found(texts + needed.texts + 2, needed.repeats).use is not None
    assert found(max(texts, (texts + needed.texts) // 2)).use is None


def test_unsteady_times_have_to_be_steadier():
    found = advised(tree=speed(1.5, of_times=0.05), chain=speed(1.45, seed=1), plain=speed(0.5))
    assert found.needed.texts == 0
    assert found.needed.repeats > 1
    assert f"{found.needed.repeats:.1f} times as many repeats" in str(found)


@pytest.mark.parametrize("texts", [2, 3])
def test_few_texts_that_agree_decide_nothing(texts):
    found = advised(
        tree=speed(1.5, texts, of_texts=0.05),
        chain=speed(1.2, texts, seed=1),
        plain=speed(1.0, texts),
    )
    assert found.use is None
    decided = advised(tree=speed(1.5, of_texts=0.05), chain=speed(1.2, seed=1), plain=speed(1.0))
    assert decided.use is decided.first


def test_equal_shapes_are_called_equal():
    equal = 1.5 / (1 + EQUAL_WITHIN / 2)
    found = advised(tree=speed(1.5, of_texts=0.02), chain=speed(equal, seed=1), plain=speed(0.5))
    assert found.needed.hopeless
    assert "take what is simpler" in str(found)
    three = advised(
        tree=speed(1.5, of_texts=0.03), chain=speed(equal, seed=1), plain=speed(1.47, seed=2)
    )
    assert not three.needed.hopeless
    assert "tell the first from plain decoding" in str(three)
    assert "tell it from the chain of 3 (iid): take what is simpler" in str(three)
    assert str(Needed(0)) == "a few more texts or repeats"


def test_plain_decoding_is_advised_like_any_other():
    found = advised(tree=speed(0.8), chain=speed(0.9, of_texts=0.02), plain=speed(1.0))
    assert found.use.kind == "plain"
    assert str(found).startswith("Decode plainly. The best chain (chain of 3) has 0.90 (")
    unsure = advised(tree=speed(0.8), chain=speed(0.98, of_texts=0.05), plain=speed(1.0))
    assert [one.kind for one in unsure.between] == ["plain", "chain"]
    assert str(advised(plain=speed(1.0))).startswith("Decode plainly. There was no tree or chain")


FLAT = {"verify": {1: 0.020, 2: 0.020, 8: 0.020}, "draft": 1e-4, "law": "iid"}


@pytest.mark.parametrize(
    ("times", "rates", "limits", "words"),
    [
        ({}, [0.6, 0.2], {}, "the rates have no intervals"),
        (
            {"verify": {1: 0.020, 9: 0.020}},
            None,
            {"max_size": 8},
            "time of 8 nodes is interpolated",
        ),
        ({"draft": {1: 1e-4}}, None, {}, "no wider level of the draft was measured"),
        ({"draft": {1: 1e-4}}, None, {"branching": 1}, None),  # asked for chains
        ({}, [0.6], {}, "only rates of first children are known"),
        ({}, None, {}, None),
        ({"verify": 0.020}, None, {"max_size": 7}, None),  # one number holds for every size
    ],
)
def test_what_does_not_earn_advice(stretchy, times, rates, limits, words):
    latency = LatencyModel.from_tables(**FLAT | times)
    ranking = best_tree(rates or stretchy, latency, draws=200, **limits)
    told = ranking.advice.to_dict()["doubts"]
    assert ranking.best.kind != "plain"
    assert ranking.best.speedup.low > 1
    assert (ranking.advice.use is None) == (words is not None)
    if words is None:
        assert told == []
    else:
        assert any(words in doubt for doubt in told)
        assert words in ranking.verdict
        assert "Use " not in ranking.verdict


def test_plain_decoding_is_not_advised_by_rates_without_intervals():
    dear = LatencyModel.from_tables(verify=0.02, draft=0.01)
    ranking = best_tree([0.1, 0.1], dear, max_size=8)
    assert (ranking.best.kind, ranking.advice.use) == ("plain", None)
    assert "Decode plainly" not in ranking.verdict


def test_a_ranking_carries_its_advice(flat):
    ranking = best_tree([0.6, 0.2, 0.1], flat)
    assert ranking.verdict == str(ranking.advice)
    assert any("as if every level were independent" in note for note in ranking.notes)
    noisy = replace(flat, disturbed="3 of 5 rounds were disturbed: profile again")
    assert "times: 3 of 5 rounds were disturbed: profile again" in best_tree([0.6], noisy).notes
    assert not any("disturbed" in note for note in best_tree([0.6], flat).notes)
