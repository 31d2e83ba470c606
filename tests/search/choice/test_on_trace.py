"""Search on a trace: results come from replay on texts that the choice has not seen."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

from treespec import TreeShape
from treespec.experiments.studies.search_advice import stretches
from treespec.search import (
    InvalidTrace,
    LatencyModel,
    best_tree,
    estimate_acceptance,
    replay,
)
from treespec.search.choice import cross_fitting, trace_speed
from treespec.search.choice.candidates import Limits, room_for
from treespec.search.choice.law_speed import Times
from treespec.search.choice.local_moves import Bounds
from treespec.search.choice.ranking import CHOSEN
from treespec.search.choice.trace_speed import TraceSpeed
from treespec.search.rates.draft_rows import DraftRows

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


def test_the_chosen_shapes_are_cross_fitted_and_the_others_are_replays(stretchy):
    ranking = best_tree(stretchy, CHEAP, max_size=16, draws=100)
    share = {}
    for row in ranking.rows:
        found = replay.replay(stretchy, row.shape)
        if row.kind == "plain":
            assert row.tokens_per_step == (1.0, 1.0, 1.0)
            continue
        value = row.tokens_per_step.estimate / found.tokens_per_step
        share.setdefault(row.kind, value)
        assert row.basis == ("cross-fitted" if row in (ranking.tree, ranking.chain) else "replay")
        if row.basis == "replay":
            assert value == pytest.approx(1, abs=1e-12)
        told = ranking.speed(row.shape, "iid")
        assert told.tokens == row.tokens_per_step.estimate
        low, high = row.tokens_per_step[1:]
        assert low < row.tokens_per_step.estimate < high
        assert found.interval().high - found.interval().low == pytest.approx(high - low, rel=0.5)
    assert all(0.9 < one < 1.05 for one in share.values())
    assert any(one != 1 for one in share.values())
    assert CHOSEN in ranking.notes
    assert {row.depth for row in ranking.rows if row.kind == "chain"} == set(range(1, 16))
    data = json.loads(ranking.to_json())
    assert data["advice"]["first"] == ranking.best.kind


@pytest.mark.parametrize("seed", [1, 2])
def test_rows_of_a_kind_stand_in_the_order_of_the_choice_and_not_of_luck(seed):
    trace = stretches(np.random.default_rng(seed), texts=6, positions=60)
    ranking = best_tree(trace, CHEAP, max_size=16, draws=100)
    side = side_of(trace)
    room, every = room_for(side, Limits(max_size=16)), np.ones(6, dtype=bool)
    luckiest = {}
    for kind in ("tree", "chain"):
        chosen = cross_fitting.choose(
            side, Bounds(room.size, room.depth, room.branching), kind, every
        )
        rows = [row for row in ranking.rows if row.kind == kind]
        assert [row.shape for row in rows] == list(chosen)[: len(rows)]
        luckiest[kind] = max(rows, key=lambda row: row.tokens_per_s.estimate)
        assert (ranking.tree if kind == "tree" else ranking.chain).shape == next(iter(chosen))
    assert luckiest["tree"] is not ranking.tree
    assert ranking.best in (ranking.tree, ranking.chain)


def test_any_shape_is_valued_by_its_replay(stretchy):
    ranking = best_tree(stretchy, CHEAP, max_size=8, draws=100)
    wide = TreeShape.expansion([3, 2, 1])
    found = ranking.speed(wide, "iid")
    assert found.tokens == pytest.approx(replay.replay(stretchy, wide).tokens_per_step)
    assert found.seconds == pytest.approx(CHEAP.step_s(wide))
    assert ranking.regret(wide).estimate == pytest.approx(
        1 - found.rate / ranking.best.tokens_per_s.estimate
    )


def test_positions_without_enough_beyond_them_are_left_out_for_all_shapes_and_said():
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
    return TraceSpeed("iid", trace, Times(latency, None, 1, draws, 0, np.random.default_rng(0)))


def test_what_all_shapes_share_in_a_round_is_no_noise_of_their_ratio(stretchy):
    slow = [[30.0 * one] for one in np.exp(0.3 * np.random.default_rng(0).standard_normal(9))]
    law = {"level_ms": [[one[0] / 20] for one in slow]}
    batch = {"verify_ms": {"1": slow, "8": slow}, "laws": {"iid": law}}
    latency = LatencyModel.from_json(json.dumps({"version": 1, "batches": {"1": batch}}))
    drawn = [side_of(stretchy, latency).speed(TreeShape.chain(deep)) for deep in (2, 5)]
    np.testing.assert_allclose(drawn[1].seconds_drawn / drawn[0].seconds_drawn, 1.25 / 1.1)
    assert drawn[0].seconds_drawn.std() > 0.02 * drawn[0].seconds


def test_what_is_chosen_does_not_depend_on_the_texts_left_out(stretchy):
    other = stretches(np.random.default_rng(8), texts=24, positions=120)
    half = np.arange(24) < 12
    both = trace_speed.replace(
        stretchy,
        **{
            name: np.concatenate(
                [getattr(stretchy, name)[: 12 * 136], getattr(other, name)[12 * 136 :]]
            )
            for name in ("tokens", "ranks", "probs", "accepted")
        },
    )
    bounds = Bounds(16, 12, 3)
    for kind in ("tree", "chain"):
        chosen = [
            cross_fitting.choose(side_of(trace), bounds, kind, half) for trace in (stretchy, both)
        ]
        assert chosen[0] == chosen[1]


def test_large_traces_are_chosen_on_in_whole_texts_by_lot_and_valued_on_all(stretchy, monkeypatch):
    monkeypatch.setattr(trace_speed, "MOST_POSITIONS", 1000)
    monkeypatch.setattr(trace_speed, "WHOLE_TEXTS", 7)
    side = side_of(stretchy)
    assert side.sample.texts == 7  # of 136 positions each
    assert len(set(np.diff(side.sampled))) > 1
    for i, text in enumerate(side.sampled):
        (start, end), mine = stretchy.offsets[[text, text + 1]], side.sample.offsets[[i, i + 1]]
        assert (side.sample.ranks[slice(*mine)] == stretchy.ranks[start:end]).all()
    assert (side.sample.text_kept == 120).all()
    assert (side_of(stretchy).sampled == side.sampled).all()
    ranking = best_tree(stretchy, CHEAP, max_size=8, draws=100)
    value = replay.replay(stretchy, ranking.chain.shape).tokens_per_step
    assert ranking.chain.tokens_per_step.estimate == pytest.approx(value, rel=0.1)
    assert ranking.speed(TreeShape.chain(2), "iid").tokens == pytest.approx(
        replay.replay(stretchy, TreeShape.chain(2)).tokens_per_step, rel=0.05
    )


def test_of_long_texts_stretches_are_chosen_on_that_begin_anywhere(stretchy, monkeypatch):
    monkeypatch.setattr(trace_speed, "MOST_POSITIONS", 1000)
    side, begins = side_of(stretchy), []
    assert side.sample.texts == 24
    assert set(np.diff(side.sample.offsets)) == {1000 // 24}
    for i, text in enumerate(side.sampled):
        whole = stretchy.accepted[stretchy.offsets[text] : stretchy.offsets[text + 1]]
        mine = side.sample.accepted[side.sample.offsets[i] : side.sample.offsets[i + 1]]
        places = [at for at in range(96) if (whole[at : at + 41] == mine).all()]
        begins.append(min(places))
        kept = int(side.sample.text_kept[i])
        most = min(41 - 10, 41 - side.deepest + 1)  # a quarter for deep trees
        assert any(kept == min(most, 120 - at) for at in places)
    assert max(begins) > 48  # not the beginnings


def test_all_shapes_are_valued_on_the_same_positions(stretchy):
    """A deep tree is not known at the end of a text, so the others must not be valued there either."""
    short = trace_speed.replace(stretchy, kept=np.full(24, 130))  # six positions beyond the end
    side = side_of(short)
    assert side.deepest == trace_speed.NEARLY_KNOWN_LEVELS
    chains = [TreeShape.chain(deep) for deep in range(1, side.deepest + 1)]
    emitted, steps = side.totals(chains)
    limit = 136 - side.deepest + 1
    assert emitted.min() >= limit
    assert emitted.max() <= limit + side.deepest
    for row, deep in enumerate(chains):
        cut = trace_speed.replace(short, kept=np.full(24, limit))
        assert steps[row].tolist() == replay.replay(cut, deep).steps.tolist()
    sampled, _ = side.sampled_totals(chains)
    assert sampled.max() <= trace_speed.MOST_DRAWS * (limit + side.deepest)
    beyond = TreeShape.chain(side.deepest + 1)
    assert side.totals([beyond])[1][0].tolist() == replay.replay(short, beyond).steps.tolist()
    notes = best_tree(short, CHEAP, draws=40).notes
    assert any("are not known there; record more beyond the ends" in note for note in notes)


def test_nothing_is_left_out_where_enough_was_recorded_beyond_the_ends(stretchy):
    assert side_of(stretchy).valued is stretchy
    narrow = LatencyModel.from_tables(verify={1: 0.02, 6: 0.02}, draft=0.001)
    short = trace_speed.replace(stretchy, kept=np.full(24, 132))
    assert side_of(short, narrow).deepest == 5  # of six nodes
    assert side_of(short, narrow).valued is short


def excerpts_of(trace, times):
    """Each text several times, as if it had several identical excerpts."""
    places = np.repeat(np.arange(trace.texts), times)
    return trace_speed.replace(trace.part(places), files=places)


def test_excerpts_of_a_file_count_as_one_text(stretchy):
    """Copies of texts add no information: not to intervals, folds or smoothing."""
    few = stretchy.part(np.arange(8))
    many, shape = excerpts_of(few, 3), TreeShape.chain(3)
    one, three = side_of(few, draws=2000), side_of(many, draws=2000)
    assert three.texts == 8
    spread = [side.speed(shape).tokens_drawn.std() for side in (one, three)]
    assert spread[1] == pytest.approx(spread[0], rel=1e-9)
    assert replay.replay(many, shape).interval() == pytest.approx(
        replay.replay(few, shape).interval()
    )
    parts = three.parts(4)
    assert (parts.reshape(8, 3) == one.parts(4)[:, None]).all()
    assert sorted(np.bincount(parts).tolist()) == [6, 6, 6, 6]
    notes = best_tree(many, CHEAP, max_size=4, draws=100).notes
    assert "iid: 24 texts are excerpts of 8 files, and count as 8" in notes
    with pytest.raises(InvalidTrace, match=r"1 text \(3 excerpts of one file\)"):
        best_tree(excerpts_of(few.part(np.arange(1)), 3), CHEAP)


def test_parts_are_dealt_by_lot(stretchy):
    """Adjacent files are of one kind."""
    side = side_of(stretchy)
    parts = side.parts(5)
    assert sorted(np.bincount(parts)) == [4, 5, 5, 5, 5]
    assert (parts != np.arange(24) % 5).any()
    assert (parts == side_of(stretchy).parts(5)).all()


def test_choices_are_made_on_several_draws_and_values_on_the_recorded_one(stretchy):
    side, shape = side_of(stretchy), TreeShape.chain(4)
    recorded = replay.replay(stretchy, shape)
    assert side.totals([shape])[0][0].tolist() == recorded.emitted.tolist()
    emitted, steps = (part[0].sum() for part in side.sampled_totals([shape]))
    assert 7 * stretchy.kept.sum() < emitted
    assert emitted / steps == pytest.approx(recorded.tokens_per_step, rel=0.05)
    assert emitted / steps != recorded.tokens_per_step
    ends = side.ends(shape, np.ones(24, dtype=bool))
    assert steps >= ends.sum() > 0.9 * steps
    sure = trace_speed.replace(stretchy, accepted=(stretchy.ranks[:, None] == np.arange(3)) * 1.0)
    assert side_of(sure).sampled_totals([shape])[1][0].tolist() == recorded.steps.tolist()


def test_large_traces_with_rows_of_the_draft_are_searched(make_trace, monkeypatch):
    trace = make_trace(texts=8, positions=60, rates=(0.5, 0.2))
    count = len(trace.tokens)
    rows = DraftRows(
        offsets=np.arange(count + 1), parents=np.full(count, -1), ranks=np.zeros(count, int),
        probs=np.full((count, 2), 0.4), text_ranks=trace.ranks,
    )  # fmt: skip
    monkeypatch.setattr(trace_speed, "MOST_POSITIONS", 160)
    side = side_of(trace_speed.replace(trace, draft_rows=rows))
    assert len(side.sample.tokens) <= 160


def test_groups_of_texts_give_the_intervals_of_texts(stretchy, monkeypatch):
    whole = side_of(stretchy, draws=2000).speed(TreeShape.chain(3))
    monkeypatch.setattr(trace_speed, "MOST_GROUPS", 12)
    parts = side_of(stretchy, draws=2000).speed(TreeShape.chain(3))
    assert parts.tokens == whole.tokens
    assert parts.tokens_drawn.std() == pytest.approx(whole.tokens_drawn.std(), rel=0.3)


def test_traces_of_the_same_prompts_are_resampled_by_the_same_texts(make_trace):
    times = Times(CHEAP, None, 1, 40, 0, np.random.default_rng(0))
    prompts = ("one", "one", "other")
    sides = [
        TraceSpeed("iid", make_trace(i, texts=8, about={"prompts_hash": name}), times)
        for i, name in enumerate(prompts)
    ]
    assert (sides[0].weights == sides[1].weights).all()
    assert (sides[0].weights != sides[2].weights).any()
