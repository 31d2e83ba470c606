"""Search on a trace: results come from replay on texts that the choice has not seen."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

from treespec import TreeShape
from treespec.search import (
    InvalidTrace,
    LatencyModel,
    best_tree,
    estimate_acceptance,
    replay,
)
from treespec.search.choice import trace_speed
from treespec.search.choice.ranking import CHOSEN
from treespec.search.choice.trace_speed import TraceSpeed
from treespec.search.latency.latency import Times
from treespec.testing import plane_trees

CHEAP = LatencyModel.from_tables(verify={1: 0.020, 32: 0.026}, draft={1: 0.0006, 16: 0.0008})
STEEP = LatencyModel.from_tables(verify={1: 0.0287, 32: 0.0628}, draft=0.0017)


def test_the_long_chain_that_rates_advise_is_refuted_by_replay_and_not_advised(stretchy):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rates = estimate_acceptance(stretchy, by="depth")
        first = estimate_acceptance(stretchy, by="depth", ranks=1)
    old, new = best_tree(rates, STEEP, chains=first).best, best_tree(stretchy, STEEP).best
    told, kept = old.tokens_per_step.estimate, replay.replay(stretchy, old.shape).tokens_per_step
    assert old.shape.depth >= 10
    assert told > 1.5 * kept
    assert new.shape.depth < old.shape.depth
    value = replay.replay(stretchy, new.shape).tokens_per_step
    assert new.tokens_per_step.estimate == pytest.approx(value, rel=0.06)
    assert value / STEEP.step_s(new.shape) > kept / STEEP.step_s(old.shape)


def test_positions_without_enough_beyond_them_are_left_out_for_all_shapes_and_said(stretches):
    trace = stretches(np.random.default_rng(5), texts=24, positions=60, stay=0.95, beyond=4)
    ranking = best_tree(trace, CHEAP, draws=100)
    (note,) = (note for note in ranking.notes if "were left out" in note)
    deepest = int(note.partition("of depth ")[2].split()[0])
    kept = 60 + 4 - deepest + 1
    assert 51 <= kept < 60
    assert note.startswith(f"iid: {24 * (60 - kept)} of 1440 positions, at the ends of texts")
    cut = replace(trace, kept=np.full(24, kept))
    valued = [row for row in ranking.rows if row.basis == "replay"]
    assert {row.kind for row in valued} == {"tree", "chain"}
    for row in valued:
        found, whole = row.tokens_per_step.estimate, replay.replay(trace, row.shape)
        assert found == pytest.approx(replay.replay(cut, row.shape).tokens_per_step)
        assert found == pytest.approx(whole.tokens_per_step, rel=0.05)
    enough = stretches(np.random.default_rng(5), texts=24, positions=60, stay=0.95, beyond=40)
    assert not any("left out" in note for note in best_tree(enough, CHEAP, draws=40).notes)


def side_of(trace, latency=CHEAP, draws=100):
    return TraceSpeed("iid", trace, Times(latency, None, 1, draws, 0))


def test_what_all_shapes_share_in_a_round_is_no_noise_of_their_ratio(stretchy):
    slow = [[30.0 * one] for one in np.exp(0.3 * np.random.default_rng(0).standard_normal(9))]
    law = {"level_ms": [[one[0] / 20] for one in slow]}
    batch = {"verify_ms": {"1": slow, "8": slow}, "laws": {"iid": law}}
    latency = LatencyModel.from_json(json.dumps({"version": 1, "batches": {"1": batch}}))
    drawn = [side_of(stretchy, latency).speed(TreeShape.chain(deep)) for deep in (2, 5)]
    np.testing.assert_allclose(drawn[1].seconds_drawn / drawn[0].seconds_drawn, 1.25 / 1.1)
    assert drawn[0].seconds_drawn.std() > 0.02 * drawn[0].seconds


def part(trace, texts, files=None):
    """The trace of some texts, in this order."""
    at = np.concatenate([np.arange(*trace.offsets[text : text + 2]) for text in texts])
    names = ("tokens", "ranks", "probs", "accepted")
    return replace(
        trace,
        offsets=np.cumsum([0, *np.diff(trace.offsets)[texts]]),
        kept=trace.text_kept[texts],
        files=files,
        **{name: getattr(trace, name)[at] for name in names},
    )


def test_the_chosen_shapes_are_valued_on_other_texts_and_the_others_by_replay(stretchy):
    ranking = best_tree(stretchy, CHEAP, max_size=16, draws=100)
    share = {}
    for row in ranking.rows:
        found = replay.replay(stretchy, row.shape)
        if row.kind == "plain":
            assert row.tokens_per_step == pytest.approx((1.0, 1.0, 1.0))
            continue
        value = row.tokens_per_step.estimate / found.tokens_per_step
        share.setdefault(row.kind, value)
        chosen = row in (ranking.tree, ranking.chain)
        assert row.basis == ("other texts" if chosen else "replay")
        if not chosen:
            assert value == pytest.approx(1, abs=1e-12)
        low, high = row.tokens_per_step[1:]
        assert found.interval().high - found.interval().low == pytest.approx(high - low, rel=0.5)
    assert all(0.9 < one < 1.05 for one in share.values())
    assert any(one != 1 for one in share.values())
    assert CHOSEN in ranking.notes
    assert {row.depth for row in ranking.rows if row.kind == "chain"} == set(range(1, 16))
    for kind in ("tree", "chain"):  # the first is the luckiest on all texts
        shapes = [row.shape for row in ranking.rows if row.kind == kind]
        speeds = [replay.replay(stretchy, s).tokens_per_step / CHEAP.step_s(s) for s in shapes]
        assert speeds[0] == max(speeds)


@pytest.mark.parametrize("seed", range(6))
def test_the_choice_is_nearly_the_best_of_all_small_trees(stretches, seed):
    """By replay of the same texts, of all trees of up to seven nodes with at most three children."""
    rng = np.random.default_rng(seed)
    trace = stretches(rng, 12, 64, rng.uniform(0.8, 0.97))
    ms = 20 * (1 + np.cumsum(rng.exponential(0.04, 3)))
    times = LatencyModel.from_tables(
        verify=dict(zip((1, 3, 7), (1e-3 * ms).tolist(), strict=True)), draft=0.001
    )
    best = best_tree(trace, times, draws=40).best

    def speed(shape):
        return replay.replay(trace, shape).tokens_per_step / times.step_s(shape)

    trees = [
        tree
        for size in range(2, 8)
        for tree in plane_trees(size)
        if max(map(len, tree.children)) <= 3
    ]
    assert speed(best.shape) >= 0.97 * max(1 / times.plain_s(), *map(speed, trees))


def test_all_shapes_are_valued_on_the_same_positions(stretchy):
    """A deep tree is not known at the end of a text, so the others must not be valued there either."""
    short = replace(stretchy, kept=np.full(24, 130))  # six positions beyond the end
    side = side_of(short)
    assert side.deepest == trace_speed.NEARLY_KNOWN_LEVELS
    chains = [TreeShape.chain(deep) for deep in range(1, side.deepest + 1)]
    limit = 136 - side.deepest + 1
    cut = replace(short, kept=np.full(24, limit))
    for shape, totals in side.totals(chains).items():
        assert totals.emitted.tolist() == replay.replay(cut, shape).emitted.tolist()
    beyond = TreeShape.chain(side.deepest + 1)
    own = replay.replay(short, beyond).tokens_per_step
    assert side.speed(beyond).tokens == pytest.approx(own)
    assert side_of(stretchy).valued is stretchy
    narrow = LatencyModel.from_tables(verify={1: 0.02, 6: 0.02}, draft=0.001)
    shorter = replace(stretchy, kept=np.full(24, 132))
    assert side_of(shorter, narrow).deepest == 5  # of six nodes
    assert side_of(shorter, narrow).valued is shorter


def test_excerpts_of_a_file_count_as_one_text(stretchy):
    """Copies of texts add no information: neither to intervals nor to the value of the choice."""
    few = part(stretchy, np.arange(8))
    places = np.repeat(np.arange(8), 3)
    many = part(few, places, places)
    for left, right in zip(
        *(best_tree(t, CHEAP, max_size=8).rows for t in (few, many)), strict=True
    ):
        assert left.shape == right.shape
        assert left.tokens_per_s == pytest.approx(right.tokens_per_s)
    notes = best_tree(many, CHEAP, max_size=4, draws=100).notes
    assert "iid: 24 texts are excerpts of 8 files, and count as 8" in notes
    with pytest.raises(InvalidTrace, match=r"1 file \(3\)"):
        best_tree(part(few, [0, 0, 0], [0, 0, 0]), CHEAP)


def test_few_texts_and_equal_ones_advise_nothing(stretches):
    """Whatever the intervals: three texts may agree by chance, equal ones say nothing of others."""
    trace = stretches(np.random.default_rng(5), texts=24, positions=120, stay=1.0)
    dear = LatencyModel.from_tables(verify={1: 0.020, 8: 0.0202, 32: 0.021}, draft=0.0001)
    three, equal, many = (
        best_tree(part(trace, texts), dear, max_size=8, draws=100)
        for texts in ([0, 1, 2], [0] * 24, np.arange(24))
    )
    assert three.advice.use is None
    assert "too few to advise a shape: there are 3" in three.verdict
    assert equal.best.speedup.low == pytest.approx(equal.best.speedup.high)
    assert equal.advice.use is None
    assert "all 24 are equal" in equal.verdict
    assert many.advice.use is many.best


def test_the_order_of_texts_does_not_matter(stretchy):
    order = np.random.default_rng(0).permutation(24)
    rows = [best_tree(t, CHEAP, max_size=8).rows for t in (stretchy, part(stretchy, order))]
    for left, right in zip(*rows, strict=True):
        assert left.shape == right.shape
        assert left.tokens_per_s.estimate == pytest.approx(right.tokens_per_s.estimate)
