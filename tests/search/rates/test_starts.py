"""Rates counted where a tree's steps begin are the rates of these steps."""

import numpy as np
import pytest

from treespec import TreeShape
from treespec.search import InvalidLimit, InvalidTrace, Trace, estimate_acceptance, expected_tokens
from treespec.search.rates.replay import replay

pytestmark = pytest.mark.filterwarnings("ignore::treespec.search.errors.SmallSample")


def test_starts_belong_to_traces(make_trace):
    chain = TreeShape.chain(1)
    with pytest.raises(InvalidLimit, match="starts applies to traces only"):
        estimate_acceptance([[(chain, (0, 1))] * 40], starts=chain)
    with pytest.raises(InvalidTrace, match="given texts"):
        estimate_acceptance(make_trace(forced=True), starts=chain)


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


def test_rates_of_every_position_are_not_those_of_where_steps_begin(make_trace):
    """One miss, then four first children, over and over: every step of a chain of 4 emits 5 tokens."""
    ranks = [1, *[0, 0, 0, 0, 1] * 60, 0, 0, 0, 0]
    one = np.ones((len(ranks), 1))
    trace = make_trace(
        offsets=[0, len(ranks)], tokens=np.zeros(len(ranks), int), ranks=np.array(ranks), probs=one,
        accepted=(np.array(ranks) == 0)[:, None].astype(float), width=1, kept=[301], law="deterministic",
        rule="greedy",
    )  # fmt: skip
    chain = TreeShape.chain(4)
    found = {
        "rank": estimate_acceptance(trace),
        "depth": estimate_acceptance(trace, by="depth", depth=4),
        "rank, starts": estimate_acceptance(trace, starts=chain),
        "depth, starts": estimate_acceptance(trace, by="depth", depth=4, starts=chain),
    }
    promised = {name: expected_tokens(chain, rates) for name, rates in found.items()}
    live = replay(trace, chain)
    assert promised["rank"] == pytest.approx(3.36, abs=0.03)
    assert promised["depth"] == pytest.approx(3.0, abs=0.03)
    assert live.accepted[1:].tolist() == [4] * 60
    assert promised["depth, starts"] == pytest.approx(live.tokens_per_step)
    assert promised["rank, starts"] == pytest.approx(live.tokens_per_step, abs=0.05)
    assert found["rank, starts"].about["starts"] == [-1, 0, 1, 2, 3]


def of_ranks(texts, width):
    """A trace without randomness: acceptance is certain."""
    ranks = np.concatenate(texts)
    accepted = (ranks[:, None] == np.arange(width)).astype(float)
    return Trace(
        offsets=np.cumsum([0, *map(len, texts)]), tokens=np.zeros(len(ranks), int), ranks=ranks,
        probs=np.full((len(ranks), width), 0.5), accepted=accepted, law="deterministic", rule="greedy",
        sampling={"temperature": 0.0}, width=width,
    )  # fmt: skip


def random_ranks(rng, width):
    """Three texts in which each rank depends on the one before, so that depths differ."""
    rows = rng.dirichlet([3.0, *[0.6] * width], size=width + 1)
    texts = []
    for _ in range(3):
        ranks = [0]
        for _ in range(int(rng.integers(150, 250))):
            ranks.append(int(rng.choice(width + 1, p=rows[ranks[-1]])))
        texts.append(np.array(ranks))
    return of_ranks(texts, width)


def test_a_step_ends_where_its_tree_does():
    """By hand: 0, 0, 1 accepted, over and over; the walk must not continue along the second child."""
    trace, chain = of_ranks([np.array([1, 1, 0, 1] * 30)], 2), TreeShape.chain(2)
    found = estimate_acceptance(trace, by="depth", depth=2, starts=chain)
    np.testing.assert_allclose(found.rates, [[1 / 3], [0]])
    assert found.trials.tolist() == [[90], [30]]
    assert expected_tokens(chain, found) == pytest.approx(4 / 3, abs=1e-12)
    assert replay(trace, chain).tokens_per_step == pytest.approx(4 / 3, abs=1e-12)


@pytest.mark.parametrize("width", range(2, 9))
def test_by_depth_they_give_the_replay_where_a_depth_has_one_number_of_children(width):
    rng = np.random.default_rng(width)
    shapes = [TreeShape.chain(d) for d in (1, 2, 3)]
    shapes += [TreeShape.kary(k, 2) for k in range(2, min(width, 4) + 1)]
    shapes += [TreeShape.expansion([min(width, 3), 1, 1]), TreeShape.expansion([1, width])]
    for _ in range(4):
        trace = random_ranks(rng, width)
        for shape in shapes:
            found = estimate_acceptance(trace, by="depth", tree=shape, starts=shape)
            tokens = replay(trace, shape).tokens_per_step
            assert expected_tokens(shape, found) == pytest.approx(tokens, abs=1e-12)


def visited(trace, shape):
    """Accepted nodes of the replayed steps that have children, by depth; plain loops."""
    levels = [[] for _ in range(shape.depth)]
    live = replay(trace, shape)
    for text in range(trace.texts):
        at = int(trace.offsets[text])
        for accepted in live.of_text(text).tolist():
            node = 0
            for depth in range(accepted + 1):
                children = shape.children[node]
                if children:
                    levels[depth].append(len(children))
                if depth < accepted:
                    node = children[trace.ranks[at + depth]]
            at += accepted + 1
    return levels


@pytest.mark.parametrize("seed", range(12))
def test_of_any_tree_each_level_counts_the_steps_that_get_there(seed):
    rng = np.random.default_rng(seed)
    width = int(rng.integers(2, 9))
    shape = TreeShape((-1, *(int(rng.integers(max(0, i - width), i)) for i in range(1, 9))))
    trace, widest = random_ranks(rng, width), max(map(len, shape.children))
    found = estimate_acceptance(trace, by="depth", starts=shape)
    assert found.rates.shape[1] == widest
    live, rows = replay(trace, shape), len(found.hits)
    shares = found.hits.sum(axis=1) / found.trials[0, 0]
    np.testing.assert_allclose(shares, live.accepted_by_depth[:rows], atol=1e-12)
    numbers = [
        [sum(k > rank for k in level) for rank in range(widest)] for level in visited(trace, shape)
    ]
    assert found.trials.tolist() == numbers[:rows]
    narrow = estimate_acceptance(trace, by="depth", starts=shape, ranks=1)
    np.testing.assert_array_equal(narrow.rates[:, 0], found.rates[:, 0])  # the tree is the same
    pooled = estimate_acceptance(trace, starts=shape)
    assert pooled.trials.tolist() == np.sum(numbers, axis=0).tolist()


def test_children_that_the_tree_does_not_have_are_not_missed():
    trace = of_ranks([np.tile([1, 0, 2, 0, 0, 1, 0, 2], 60)] * 2, 2)
    found = estimate_acceptance(trace, by="depth", starts=TreeShape.expansion([2, 1]))
    assert found.trials[1, 1] == 0
    assert found.warnings == ()
    wide = estimate_acceptance(trace, by="depth", starts=TreeShape.kary(2, 2))
    assert wide.trials[1, 1] > 0


def test_steps_of_the_root_alone_say_nothing(make_trace):
    with pytest.raises(InvalidLimit, match="starts is the root alone"):
        estimate_acceptance(make_trace(), starts=TreeShape.chain(0))


@pytest.mark.parametrize("beyond", [{"depth": 3}, {"ranks": 2}])
def test_steps_of_a_tree_say_nothing_of_what_it_does_not_have(beyond):
    trace = of_ranks([[0, 1, 0, 1, 1, 0, 2, 0] * 10], 2)
    with pytest.raises(InvalidLimit, match=r"starts is 2 deep and has at most 1 children"):
        estimate_acceptance(trace, by="depth", starts=TreeShape.chain(2), **beyond)
