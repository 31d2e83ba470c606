import json
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search import (
    AcceptanceEstimate,
    InvalidLimit,
    InvalidTrace,
    Records,
    SmallSample,
    estimate_acceptance,
    expected_tokens,
    optimal_tree,
)
from search.intervals import wilson
from search.isotonic import non_increasing
from search.replay import replay
from treespec import TreeShape

pytestmark = pytest.mark.filterwarnings("ignore::search.errors.SmallSample")
RATES = (0.5, 0.2, 0.1)


def by_hand(trace, levels, ranks):
    """Hits, trials and mass by the definition: every start, walked down."""
    cells = [Counter(), Counter(), Counter()]
    for text in range(trace.texts):
        first = trace.offsets[text]
        last = first + trace.kept[text]
        for start in range(first, last):
            for depth in range(levels):
                at = start + depth
                if at >= last:
                    break
                for rank in range(ranks):
                    cells[0][depth, rank] += trace.ranks[at] == rank
                    cells[1][depth, rank] += 1
                    cells[2][depth, rank] += trace.accepted[at, rank]
                if trace.ranks[at] >= ranks:
                    break
    table = [[[c[d, r] for r in range(ranks)] for d in range(levels)] for c in cells]
    return [np.array(x) for x in table]


@pytest.mark.parametrize(("ranks", "beyond"), [(1, 8), (2, 8), (3, 8), (3, 0)])
def test_counts_of_a_trace_equal_the_definition(make_trace, ranks, beyond):
    trace = make_trace(texts=5, beyond=beyond)
    found = estimate_acceptance(trace, by="depth", depth=3, ranks=ranks)
    hits, trials, mass = by_hand(trace, 3, ranks)
    np.testing.assert_array_equal(found.hits, hits)
    np.testing.assert_array_equal(found.trials, trials)
    np.testing.assert_allclose(found.rates, mass / trials)
    pooled = estimate_acceptance(trace, ranks=ranks)
    np.testing.assert_array_equal(pooled.hits, hits[0])  # every kept position is a start once
    np.testing.assert_array_equal(pooled.trials, trace.kept.sum())
    np.testing.assert_allclose(pooled.rates, trace.accepted[trace.inside, :ranks].mean(axis=0))


def test_records_count_what_was_there_to_be_accepted():
    tree = TreeShape.expansion([3, 2])  # nodes 1..3, then 4..9, two below each
    texts = [[(tree, (0, 1, 5)), (tree, (0,))], [(tree, (0, 3)), (TreeShape.chain(1), (0, 1))]]
    found = estimate_acceptance(Records(texts, "iid", "rrs"), by="depth")
    assert found.hits.tolist() == [[2, 0, 1], [0, 1, 0]]
    assert found.trials.tolist() == [[4, 3, 3], [2, 2, 0]]
    np.testing.assert_allclose(found.rates, [[1 / 2, 0, 1 / 3], [0, 1 / 2, 0]])
    assert (found.low[1, 2], found.high[1, 2]) == (0, 1)
    assert any("no trial of depth 1 rank 2" in text for text in found.warnings)
    assert (found.law, found.rule, found.source) == ("iid", "rrs", "on-policy")
    pooled = estimate_acceptance(texts)
    assert pooled.hits.tolist() == [2, 1, 1]
    assert pooled.trials.tolist() == [6, 5, 3]
    assert found.counts.hits.sum(axis=(1, 2)).tolist() == [2, 2]


def test_steps_of_known_rates_give_them_back():
    """Narrow nodes are common, wide ones rare: ranks are not diluted by nodes that lack them."""
    rng, rates, texts = np.random.default_rng(1), [0.5, 0.2, 0.15], []
    trees = [TreeShape.kary(1, 2), TreeShape.kary(1, 2), TreeShape.kary(3, 2)]
    for _ in range(30):
        steps = []
        for _ in range(60):
            shape, path = trees[rng.integers(3)], [0]
            while children := shape.children[path[-1]]:
                rank = rng.choice(4, p=[*rates, 0.15])
                if rank >= len(children):
                    break
                path.append(children[rank])
            steps.append((shape, tuple(path)))
        texts.append(steps)
    found = estimate_acceptance(texts)
    assert (np.abs(found.rates - rates) < 4 * np.sqrt(0.25 / found.trials)).all()
    assert (found.low <= rates).all()
    assert (found.high >= rates).all()


@given(st.integers(0, 400), st.integers(1, 400), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_wilson_is_scipys(hits, trials, level):
    from scipy.stats import binomtest

    hits = min(hits, trials)
    right = binomtest(hits, trials).proportion_ci(level, method="wilson")
    low, high = wilson(np.array([float(hits)]), np.array([float(trials)]), level)
    np.testing.assert_allclose([low[0], high[0]], [right.low, right.high], atol=1e-9)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 50)), min_size=1, max_size=9))
def test_isotonic_regression_is_scipys(pairs):
    from scipy.optimize import isotonic_regression

    values, weights = (np.array(x, dtype=float) for x in zip(*pairs, strict=True))
    found = non_increasing(values, weights)
    assert (np.diff(found) <= 1e-12).all()
    if (weights > 0).all():
        right = isotonic_regression(values, weights=weights, increasing=False).x
        np.testing.assert_allclose(found, right, atol=1e-9)
        np.testing.assert_allclose(
            non_increasing(np.stack([values, values]), weights)[1], right, atol=1e-9
        )


def test_monotone_only_if_asked(make_trace):
    trace = make_trace(rates=(0.3, 0.1, 0.25), texts=10)
    assert not estimate_acceptance(trace).monotone
    assert np.diff(estimate_acceptance(trace).rates).max() > 0.1
    found = estimate_acceptance(trace, monotone=True)
    assert found.monotone
    assert (np.diff(found.rates) <= 0).all()
    assert found.rates.sum() == pytest.approx(estimate_acceptance(trace).rates.sum())
    assert (found.low <= found.rates).all()
    assert (found.rates <= found.high).all()


def test_shrinkage_is_pseudo_counts_at_the_rate_of_all_depths(make_trace):
    trace = make_trace(texts=4)
    raw = estimate_acceptance(trace, by="depth", depth=4)
    found = estimate_acceptance(trace, by="depth", depth=4, shrinkage=20)
    mass = raw.rates * raw.trials
    pooled = mass.sum(axis=0) / raw.trials.sum(axis=0)
    np.testing.assert_allclose(found.rates, (mass + 20 * pooled) / (raw.trials + 20))
    assert found.shrinkage == 20
    far = estimate_acceptance(trace, by="depth", depth=4, shrinkage=1e9)
    np.testing.assert_allclose(far.rates, np.tile(pooled, (4, 1)), atol=1e-6)


def test_shrinkage_stands_in_for_what_was_never_seen():
    tree = TreeShape.expansion([2, 1])
    steps = [[(tree, (0, 1, 3)), (tree, (0, 2))]] * 5
    found = estimate_acceptance(steps, by="depth", shrinkage=1.0)
    assert found.trials[1, 1] == 0
    assert found.rates[1, 1] == pytest.approx(0.5)
    assert any("the rate of all depths" in text for text in found.warnings)


def test_intervals_cover_the_rates(make_trace):
    for interval, least in (("wilson", 108), ("bootstrap", 105)):
        covered = np.zeros(3)
        for seed in range(40):
            trace = make_trace(seed, texts=12, positions=50, rates=RATES)
            found = estimate_acceptance(trace, interval=interval)
            covered += (found.low <= RATES) & (found.high >= RATES)
        assert covered.sum() >= least, interval  # of 120


def test_only_the_bootstrap_sees_that_texts_differ(make_trace):
    """Ten easy and ten hard texts: the rate of others like them is much less certain than of one text."""
    easy, hard = ([make_trace(s, texts=1, rates=(r,)) for s in range(10)] for r in (0.9, 0.1))
    chain = TreeShape.chain(1)
    texts = [[(chain, (0, 1)[: 2 - r]) for r in t.ranks] for t in (*easy, *hard)]
    widths = [
        (found := estimate_acceptance(texts, interval=kind)).high[0] - found.low[0]
        for kind in ("wilson", "bootstrap")
    ]
    assert widths[1] > 3 * widths[0]


def test_resamples_spread_as_the_bootstrap_says(make_trace):
    found = estimate_acceptance(make_trace(texts=25), interval="bootstrap", by="depth", depth=2)
    rng = np.random.default_rng(0)
    drawn = np.stack([found.resample(rng) for _ in range(600)])
    assert drawn.shape[1:] == found.rates.shape
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    np.testing.assert_allclose(drawn.mean(axis=0), found.rates, atol=0.01)
    np.testing.assert_allclose(high - low, found.high - found.low, rtol=0.25)
    shaped = estimate_acceptance(make_trace(texts=25), monotone=True)
    assert all((np.diff(shaped.resample(rng)) <= 1e-12).all() for _ in range(50))


def test_one_text_is_resampled_as_if_positions_were_independent(make_trace):
    found = estimate_acceptance(make_trace(texts=1, positions=400))
    drawn = np.stack([found.resample(np.random.default_rng(i)) for i in range(400)])
    spread = np.sqrt(found.rates * (1 - found.rates) / found.trials)
    np.testing.assert_allclose(drawn.std(axis=0), spread, rtol=0.2)
    assert any("only one text" in text for text in found.warnings)
    with pytest.raises(InvalidLimit, match="there is only one text"):
        estimate_acceptance(make_trace(texts=1), interval="bootstrap")


def test_an_estimate_is_taken_for_its_rates(make_trace):
    found = estimate_acceptance(make_trace(texts=30))
    assert expected_tokens(TreeShape.chain(1), found) == 1 + found.rates[0]
    assert optimal_tree(found, 9).size == 9
    levels = estimate_acceptance(make_trace(texts=30), by="depth", depth=3)
    assert np.asarray(levels).shape == (3, 3)
    assert optimal_tree(levels, 9).depth <= 3


def test_sources_are_told_apart(make_trace):
    assert estimate_acceptance(make_trace()).source == "on-policy"
    assert estimate_acceptance(make_trace(forced=True)).source == "teacher-forced"


def test_rates_that_sum_to_more_than_one_are_scaled_and_said_so():
    wide, narrow = TreeShape.expansion([2]), TreeShape.expansion([1])
    found = estimate_acceptance([[(narrow, (0, 1))] * 40 + [(wide, (0, 2))] * 40])
    np.testing.assert_allclose(found.rates, [0.5 / 1.5, 1 / 1.5])
    assert any("summed to 1.500" in text for text in found.warnings)


def test_a_sample_too_small_for_a_tree_is_warned_of_with_numbers(make_trace):
    trace, tree = make_trace(texts=2, positions=40, rates=RATES), TreeShape.kary(2, 4)
    with pytest.warns(
        SmallSample, match=r"fewer than 30 trials of depth \d rank 0 \(\d+\)"
    ) as caught:
        found = estimate_acceptance(trace, by="depth", tree=tree)
    assert found.rates.shape == (4, 2)
    assert {str(w.message) for w in caught} == set(found.warnings)
    with pytest.warns(
        SmallSample, match=r"intervals of up to 0\.\d\d to each side .* rank 0 \(\d+\)"
    ):
        estimate_acceptance(trace, tree=TreeShape.kary(2, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimate_acceptance(
            make_trace(texts=40, positions=400), by="depth", tree=TreeShape.kary(2, 2)
        )


def test_rules_whose_rates_depend_on_the_number_of_children_say_so():
    steps = [[(TreeShape.chain(1), (0, 1))] * 40] * 2
    found = estimate_acceptance(Records(steps, "iid", "kseq"))
    assert any("'kseq'" in text for text in found.warnings)
    assert not any(
        "'rrs'" in text for text in estimate_acceptance(Records(steps, "iid", "rrs")).warnings
    )


@pytest.mark.parametrize("by", ["rank", "depth"])
@pytest.mark.parametrize("interval", ["wilson", "bootstrap"])
def test_json_round_trip(make_trace, by, interval):
    found = estimate_acceptance(
        make_trace(texts=6), by=by, interval=interval, monotone=True, seed=3
    )
    text = found.to_json()
    again = AcceptanceEstimate.from_json(text)
    for name in ("rates", "low", "high", "hits", "trials"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
        np.testing.assert_allclose(json.loads(text)[name], getattr(found, name), atol=1e-6)
    for name in ("by", "law", "rule", "source", "level", "monotone", "shrinkage", "warnings"):
        assert getattr(again, name) == getattr(found, name)
    assert again.to_json() == text
    assert max(map(len, text.splitlines()[:20])) < 2000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "tree"}, "an estimate of acceptance is an object"),
        ({"version": 2}, "version 2"),
        ({"level": "high"}, '"level" must be of type float'),
        ({"level": 2.0}, "level = 2.0"),
        ({"by": "node"}, '"by" must be'),
        ({"interval": "guess"}, "interval = 'guess'"),
        ({"shrinkage": float("nan")}, "holds NaN"),
        ({"by": "depth", "shrinkage": -5.0}, "shrinkage = -5.0"),
        ({"shrinkage": 5.0}, "shrinkage = 5 draws"),
        ({"seed": -1}, "seed = -1"),
        ({"sampling": "T=1"}, '"sampling" must be an object'),
        ({"about": []}, '"about" must be an object'),
        ({"texts": {k: [[[1], [1]]] for k in ("hits", "trials", "mass")}}, "must hold one level"),
        ({"level": float("inf")}, "holds Infinity"),
        ({"warnings": "none"}, '"warnings" must be a list'),
        ({"texts": None}, '"texts" must hold numbers'),
        ({"texts": {"hits": [[[2]]], "trials": [[[1]]], "mass": [[[1]]]}}, "more hits than trials"),
        ({"texts": {"hits": [[[1]]], "trials": [[[1, 1]]], "mass": [[[1]]]}}, "differ in shape"),
        ({"texts": {"hits": [[[0.5]]], "trials": [[[1]]], "mass": [[[1]]]}}, "whole numbers"),
        ({"texts": {"hits": [[[-1]]], "trials": [[[1]]], "mass": [[[1]]]}}, "at least 0"),
    ],
)
def test_bad_json_is_refused(make_trace, change, words):
    data = json.loads(estimate_acceptance(make_trace()).to_json())
    with pytest.raises((InvalidTrace, InvalidLimit), match=words):
        AcceptanceEstimate.from_json(json.dumps(data | change))
    with pytest.raises(InvalidTrace, match="not JSON"):
        AcceptanceEstimate.from_json("{")


CHAIN = TreeShape.chain(1)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([], "nothing to count"),
        ([[]], "nothing to count"),
        ([[(TreeShape.chain(0), (0,))]], "nothing to count"),
        ([[(CHAIN, (0, 2))]], r"texts\[0\]\[0\]: \[0, 2\] is no path"),
        ([[(CHAIN, (0,)), (CHAIN, (1,))]], r"texts\[0\]\[1\]: \[1\] is no path"),
        ([[(CHAIN, ())]], "the path is empty"),
        ([[CHAIN]], r"texts\[0\] is no list of steps"),
        ([7], r"texts\[0\] is no list of steps"),
        (7, "int is neither a Trace nor Records"),
        (Path("t.npz"), r"t.npz' is a path.*Trace.load"),
        ("t.npz", r"t.npz' is a path.*Trace.load"),
    ],
)
def test_bad_records_are_refused(texts, words):
    with pytest.raises(InvalidTrace, match=words):
        estimate_acceptance(texts)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"by": "node"}, "by = 'node'"),
        ({"depth": 2}, "depth = 2 belongs to by='depth'"),
        ({"by": "depth", "depth": 0}, "depth = 0"),
        ({"by": "depth", "depth": True}, "depth = True"),
        ({"ranks": 1.5}, "ranks = 1.5"),
        ({"seed": -1}, "seed = -1"),
        ({"shrinkage": "much"}, "shrinkage = 'much'"),
        ({"starts": TreeShape.expansion([4])}, "a node with 4 children"),
        ({"ranks": 4}, "the trace holds 3 children"),
        ({"tree": TreeShape.expansion([4])}, "ranks = 4, but the trace holds 3"),
        ({"by": "depth", "depth": 99}, "nothing was recorded of depth"),
        ({"by": "depth", "tree": TreeShape.chain(99)}, "nothing was recorded of depth"),
        ({"by": "depth", "depth": 1, "tree": TreeShape.chain(2)}, "the tree needs 2"),
        ({"ranks": 1, "tree": TreeShape.kary(2, 2)}, "the tree needs 2"),
        ({"level": 1.0}, "level = 1.0"),
        ({"interval": "exact"}, "interval = 'exact'"),
        ({"shrinkage": 1.0}, "shrinkage = 1 draws"),
        ({"by": "depth", "shrinkage": -1.0}, "shrinkage = -1.0"),
        ({"by": "depth", "shrinkage": float("nan")}, "shrinkage = nan"),
    ],
)
def test_bad_settings_are_refused(make_trace, settings, words):
    with pytest.raises((InvalidLimit, InvalidTrace), match=words):
        estimate_acceptance(make_trace(), **settings)


def test_records_that_do_not_reach_are_refused():
    steps = [[(TreeShape.kary(2, 2), (0, 1))] * 3]
    for settings, words in (
        ({"by": "depth", "depth": 3}, "depth = 3, but the recorded steps reach 2"),
        ({"ranks": 3}, "ranks = 3, but the recorded steps reach 2"),
        ({"tree": TreeShape.expansion([3])}, "ranks = 3"),
        ({"by": "depth", "tree": TreeShape.chain(4)}, "depth = 4"),
    ):
        with pytest.raises(InvalidTrace, match=words):
            estimate_acceptance(steps, **settings)


def pairs_of(rates, texts, steps, seed):
    """Steps of a tree with two children, accepted with these rates."""
    rng, shape = np.random.default_rng(seed), TreeShape.expansion([2])
    outcomes = [(0, 1), (0, 2), (0,)]
    drawn = rng.choice(3, size=(texts, steps), p=[*rates, 1 - sum(rates)])
    return [[(shape, outcomes[i]) for i in row] for row in drawn]


def test_upper_bounds_of_siblings_may_sum_to_more_than_one():
    """Not all siblings are at their upper bounds at once: scaling bounds would make them too low."""
    shape = TreeShape.expansion([2])
    found = estimate_acceptance([[(shape, (0, 1))] * 45 + [(shape, (0, 2))] * 5])
    np.testing.assert_allclose(found.high, [0.957, 0.214], atol=1e-3)
    np.testing.assert_allclose(found.low, [0.786, 0.043], atol=1e-3)
    for settings in ({"monotone": True}, {"by": "depth", "shrinkage": 1e-9}):
        again = estimate_acceptance([[(shape, (0, 1))] * 45 + [(shape, (0, 2))] * 5], **settings)
        np.testing.assert_allclose(np.ravel(again.high), found.high, atol=1e-6)


def test_bounds_cover_rates_that_almost_sum_to_one():
    rates, rounds, covered = (0.9, 0.08), 200, np.zeros(2)
    for seed in range(rounds):
        found = estimate_acceptance(pairs_of(rates, 1, 60, seed))
        covered += (found.low <= rates) & (found.high >= rates)
    assert (covered / rounds > 0.92).all()


def test_bounds_are_around_the_rate_and_not_around_the_hits():
    """The coins fell to 20 hits where 30 were to be expected."""
    data = json.loads(estimate_acceptance([[(CHAIN, (0, 1))] * 40]).to_json())
    data["texts"] = {"hits": [[[20]]], "trials": [[[100]]], "mass": [[[30.0]]]}
    found = AcceptanceEstimate.from_json(json.dumps(data))
    assert found.rates.tolist() == [0.3]
    low, high = wilson(np.array([30.0]), np.array([100.0]))
    assert (found.low[0], found.high[0]) == pytest.approx((low[0], high[0]))


def test_children_of_one_position_are_resampled_together():
    """At most one of them is accepted, so that with rates that sum to nearly 1 the sum hardly moves."""
    found = estimate_acceptance(pairs_of((0.6, 0.38), 1, 400, 0))
    drawn = np.stack([found.resample(np.random.default_rng(i)) for i in range(400)])
    assert (drawn.sum(axis=1) <= 1).all()
    share = found.rates.sum()
    expected = np.sqrt(share * (1 - share) / 400)
    assert drawn.sum(axis=1).std() == pytest.approx(expected, rel=0.2)
    np.testing.assert_allclose(drawn.mean(axis=0), found.rates, atol=0.01)
    uneven = [[(TreeShape.expansion([3]), (0, 3))] * 10 + [(CHAIN, (0, 1))] * 30]
    mixed = estimate_acceptance(uneven)
    again = mixed.resample(np.random.default_rng(0))
    assert again.shape == mixed.rates.shape
    assert again[1] == 0


def test_rare_children_that_the_tree_has_are_warned_of(make_trace):
    """All ranks of a trace have the same trials, and intervals of small rates are narrow."""
    rates = [0.5, 0.2] + [0.004] * 30
    trace = make_trace(texts=5, positions=80, rates=rates, kept=None)
    wide = TreeShape.expansion([32])
    with pytest.warns(
        SmallSample, match=r"fewer than 5 expected hits of rank 2 \(\d\.\d+\).* more"
    ):
        estimate_acceptance(trace, tree=wide)
    for tree in (TreeShape.expansion([2]), None):
        found = estimate_acceptance(trace, tree=tree)
        assert not any("expected hits" in text for text in found.warnings)


def test_an_estimate_remembers_settings_and_origin(make_trace):
    sampling = {"temperature": 0.7, "top_k": None, "top_p": 0.9, "min_p": None}
    trace = make_trace(texts=4, sampling=sampling, about={"models": {"draft": "a"}, "seed": 3})
    found = estimate_acceptance(trace, starts=TreeShape.chain(2))
    again = AcceptanceEstimate.from_json(found.to_json())
    for one in (found, again):
        assert one.sampling == sampling
        assert one.about == {"models": {"draft": "a"}, "seed": 3, "starts": [-1, 0, 1]}
    assert "starts" not in trace.about
    steps = [[(CHAIN, (0, 1))] * 40] * 2
    records = estimate_acceptance(Records(steps, sampling=sampling, about={"run": "r"}))
    assert (records.sampling, records.about) == (sampling, {"run": "r"})
    data = json.loads(found.to_json())
    del data["sampling"], data["about"]  # as written before there were these
    old = AcceptanceEstimate.from_json(json.dumps(data))
    assert (old.sampling, old.about) == ({}, {})
    np.testing.assert_array_equal(old.rates, found.rates)
    odd = estimate_acceptance(make_trace(about={"model": object()}))
    with pytest.raises(InvalidTrace, match='"about" is no plain data'):
        odd.to_json()


def test_starts_belong_to_traces(make_trace):
    with pytest.raises(InvalidLimit, match="starts belongs to traces"):
        estimate_acceptance([[(CHAIN, (0, 1))] * 40], starts=CHAIN)
    with pytest.raises(InvalidTrace, match="given texts"):
        estimate_acceptance(make_trace(forced=True), starts=CHAIN)


def test_rates_of_where_steps_start_are_those_of_the_steps(make_trace):
    """Counted by hand from the replayed steps, whose last one in a text may reach beyond its end."""
    trace, chain = make_trace(texts=6, positions=60, rates=(0.6,)), TreeShape.chain(3)
    found = estimate_acceptance(trace, by="depth", depth=3, starts=chain)
    hits, trials = np.zeros(3), np.zeros(3)
    replayed = replay(trace, chain)
    for text in range(trace.texts):
        left = int(trace.kept[text])
        for accepted in replayed.of_text(text):
            for depth in range(min(accepted + 1, 3, left)):
                trials[depth] += 1
                hits[depth] += depth < accepted
            left -= accepted + 1
    np.testing.assert_array_equal(found.trials[:, 0], trials)
    np.testing.assert_array_equal(found.hits[:, 0], hits)
    pooled = estimate_acceptance(trace, starts=chain)
    assert (pooled.hits[0], pooled.trials[0]) == (hits.sum(), trials.sum())


WHOLE_TREE = ("block", "traversal", "gbv")


@pytest.mark.parametrize("rule", WHOLE_TREE)
def test_rules_that_look_at_the_whole_tree_say_so(rule):
    steps = [[(TreeShape.chain(1), (0, 1))] * 40] * 2
    found = estimate_acceptance(Records(steps, "iid", rule))
    assert any(f"'{rule}'" in text and "recorded" in text for text in found.warnings)


@pytest.mark.parametrize("rule", ["kseq", "canonical", "optimal_transport", "traversal", "gbv"])
def test_nodes_of_different_width_are_not_pooled_where_rates_depend_on_it(rule):
    """A root of 3 children above nodes of 1: by rank these are one count, by depth they are not."""
    shape = TreeShape.expansion([3, 1])
    texts = [[(shape, (0, 1, 4))] * 40] * 2
    with pytest.raises(InvalidTrace, match=rf"'{rule}'.* nodes with 1, 3 of them.*by='depth'"):
        estimate_acceptance(Records(texts, "iid", rule))
    assert estimate_acceptance(Records(texts, "iid", rule), by="depth").rates.shape == (2, 3)
    uneven = TreeShape((-1, 0, 0, 1, 2, 2))
    texts = [[(uneven, (0, 1, 3)), (uneven, (0, 2, 4))] * 40]
    with pytest.raises(InvalidTrace, match=r"nodes at depth 1 with 1, 2 of them"):
        estimate_acceptance(Records(texts, "iid", rule), by="depth")
    estimate_acceptance(Records(texts, "iid", "rrs"), by="depth")


def test_numbers_of_numpy_are_numbers(make_trace):
    found = estimate_acceptance(
        make_trace(), by="depth", depth=np.int64(2), ranks=np.int64(3), seed=np.int64(1)
    )
    assert found.rates.shape == (2, 3)
    assert AcceptanceEstimate.from_json(found.to_json()).seed == 1
