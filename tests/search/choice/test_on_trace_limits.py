"""Search on incomplete traces, and on traces and times of several laws."""

import json

import numpy as np
import pytest

from treespec.search import (
    InvalidTrace,
    LatencyModel,
    best_tree,
    replay,
)

CHEAP = LatencyModel.from_tables(verify={1: 0.020, 32: 0.026}, draft={1: 0.0006, 16: 0.0008})


@pytest.mark.parametrize(
    "rule", ["kseq", "canonical", "optimal_transport", "spechub", "greedy_multidraft"]
)
def test_rules_that_look_at_all_siblings_are_refused_unless_there_is_one(make_trace, rule):
    """Trees that replay refuses are not ranked."""
    wide = make_trace(texts=8, positions=80, rates=(0.5, 0.2), rule=rule)
    with pytest.raises(InvalidTrace, match=rf"rule '{rule}'.* 2 .*--width 1.*rrs"):
        best_tree(wide, CHEAP, draws=40)
    narrow = make_trace(texts=8, positions=80, rates=(0.5,), rule=rule)
    ranking = best_tree(narrow, CHEAP, max_size=8, draws=40)
    assert {row.kind for row in ranking.rows} == {"chain", "plain"}
    for row in ranking.rows[:3]:
        if row.basis == "replay":
            value = replay.replay(narrow, row.shape).tokens_per_step
            assert row.tokens_per_step.estimate == pytest.approx(value)


def test_trees_whose_levels_were_not_measured_are_passed_over_and_named(stretchy):
    short = LatencyModel.from_tables(
        verify={1: 0.02, 32: 0.026}, draft={1: 0.001, 2: 0.0011}, accept=0.0
    )
    ranking = best_tree(stretchy, short, max_size=16, draws=40)
    assert any("of the shapes were skipped because a time" in note for note in ranking.notes)
    assert not any("skipped" in n for n in best_tree(stretchy, CHEAP, max_size=8).notes)


def test_what_a_trace_has_too_little_of_is_not_used_and_named(make_trace):
    trace = make_trace(texts=8, positions=40, rates=(0.5, 0.2, 0.002))
    ranking = best_tree(trace, CHEAP, draws=100)
    assert any("levels from depth" in note for note in ranking.notes)
    shallow = best_tree(trace, CHEAP, draws=100, depth=2)  # levels that nobody asks for
    assert not any("levels from depth" in note for note in shallow.notes)
    deep = max(row.depth for row in ranking.rows)
    assert deep < 16
    assert best_tree(trace, CHEAP, depth=40, branching=9, draws=100).rows[0].depth <= deep


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"texts": 1}, "of 1 file .*record at least 2"),
        ({"forced": True}, "of given texts.*without --follow"),
        (
            {"texts": 3, "positions": 4, "beyond": 0},
            "positions, but a tree needs at least 30",
        ),
    ],
)
def test_traces_that_no_shape_can_be_chosen_on(make_trace, more, words):
    with pytest.raises(InvalidTrace, match=words):
        best_tree(make_trace(**more), CHEAP)


@pytest.mark.parametrize("limits", [{"max_size": 1}, {"depth": 0}, {"sizes": [1]}])
def test_without_room_there_is_plain_decoding(stretchy, limits):
    ranking = best_tree(stretchy, CHEAP, draws=40, **limits)
    assert [row.kind for row in ranking.rows] == ["plain"]
    assert ranking.advice.use is ranking.plain


def test_only_chains_where_nodes_have_one_child_or_no_wide_level_was_measured(stretchy):
    narrow = LatencyModel.from_tables(verify={1: 0.02, 8: 0.022}, draft={1: 0.001})
    for latency, limits in ((CHEAP, {"branching": 1, "max_size": 8}), (narrow, {})):
        ranking = best_tree(stretchy, latency, draws=40, **limits)
        assert {row.kind for row in ranking.rows} == {"chain", "plain"}
        assert ranking.tree is None
    assert any("chains only" in note for note in ranking.notes)


def test_chains_of_another_law_are_ranked_by_themselves(make_trace, two_laws):
    drawn = make_trace(texts=8, positions=80, law="without_replacement", rule="rrsw")
    ranking = best_tree(
        {"without_replacement": drawn}, two_laws(), chains={"iid": drawn}, max_size=8, draws=40
    )
    kinds = {(row.kind, row.law) for row in ranking.rows}
    assert kinds == {
        ("tree", "without_replacement"),
        ("chain", "iid"),
        ("plain", "without_replacement"),
    }


def test_chains_of_a_trace_are_drawn_as_runs_draw_them(make_trace, two_laws):
    """Chains are drawn independently if that was timed under the same settings; the trace serves both."""
    options = {"max_size": 8, "draws": 40}
    drawn = make_trace(texts=8, positions=80, law="without_replacement", rule="rrsw")
    usual, named = (
        best_tree(drawn, two_laws(), **options, **more) for more in ({}, {"chains": {"iid": drawn}})
    )
    assert usual.to_json() == named.to_json()
    alone = LatencyModel.from_tables(verify={1: 1.0, 8: 1.2}, draft=0.05, law="without_replacement")
    other = make_trace(texts=8, positions=80, law="without_replacement", rule="naive")
    for trace, times, more in (
        (drawn, two_laws(), {"laws": ["without_replacement"]}),
        (drawn, alone, {}),
        (other, two_laws(), {}),
    ):
        ranking = best_tree(trace, times, **options, **more)
        assert ranking.chain.law == "without_replacement"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"sampling": "T=0"}, "were timed under T=0, and acceptance was recorded under T=1"),
        (
            {"rule": "naive"},
            "were timed with rule naive, and acceptance was recorded with rule rrs",
        ),
        ({"rule": "chain"}, None),  # on one child these are one rule
        ({"sampling": "T=1", "rule": "rrs"}, None),
    ],
)
def test_times_of_other_steps_are_told(stretches, said, told):
    trace = stretches(np.random.default_rng(0), 8, 60)
    data = json.loads(
        LatencyModel.from_tables(verify={1: 20.0, 8: 22.0}, draft=1.0, law="iid").to_json()
    )
    data["batches"]["1"]["laws"]["iid"] |= said
    times = LatencyModel.from_json(json.dumps(data))
    ranking = best_tree(trace, times, draws=40, laws=["iid"])
    cautions = [note for note in ranking.notes if "acceptance was recorded" in note]
    assert len(cautions) == (told is not None)
    assert told is None or told in cautions[0]
