"""The trees that are considered: sizes, depths and widths, and notes on those that are skipped."""

import json

import pytest

from treespec.search import InfeasibleTree, InvalidLimit, LatencyModel, NotMeasured, best_tree
from treespec.search.choice.candidates import candidate_sizes


def test_limits(flat):
    ranking = best_tree([0.6, 0.2, 0.1], flat, sizes=[5, 9], depth=3, branching=2)
    assert {row.size for row in ranking.rows} == {1, 5, 9}
    assert max(row.depth for row in ranking.rows) == 3
    assert max(len(kids) for row in ranking.rows for kids in row.shape.children) == 2
    by_depth = best_tree([[0.6, 0.2], [0.5, 0.2]], flat, max_size=16)
    assert max(row.depth for row in by_depth.rows) == 2
    assert best_tree([0.6], flat, max_size=1).best.kind == "plain"
    assert candidate_sizes(300)[-1] == 300
    assert candidate_sizes(3) == [2, 3]


def test_the_largest_measured_size_is_said():
    flat = LatencyModel.from_tables(verify={1: 0.02, 9: 0.02}, draft=0.0001)
    assert "the most that were measured" in str(best_tree([0.6, 0.2, 0.1], flat))
    assert "the most that were measured" not in str(best_tree([0.6, 0.2, 0.1], flat, max_size=8))


@pytest.mark.parametrize("kind", ["rates", "trace"])
def test_times_of_one_node_are_refused_unless_they_are_asked_for(make_trace, kind):
    acceptance = [0.6, 0.2] if kind == "rates" else make_trace(texts=4, positions=60)
    one = LatencyModel.from_tables(verify={1: 0.020}, draft={1: 0.0005}, law="iid")
    with pytest.raises(
        NotMeasured, match=r"for 1 node only.*profile larger trees \(`treespec profile"
    ):
        best_tree(acceptance, one)
    for limits in ({"max_size": 1}, {"sizes": [1]}, {"depth": 0}):
        found = best_tree(acceptance, one, draws=40, **limits)
        assert found.advice.use is found.plain


def test_a_law_with_times_of_one_node_is_said_beside_another():
    law = {"level_ms": {"1": 0.5, "8": 0.6}}
    laws = {"iid": law, "without_replacement": law | {"accept_ms": {"1": 0.1}}}
    batch = {"verify_ms": {"1": 20, "32": 26}, "laws": laws}
    times = LatencyModel.from_json(json.dumps({"version": 1, "batches": {"1": batch}}))
    ranking = best_tree({"iid": [0.6, 0.2], "without_replacement": [0.6, 0.2]}, times)
    assert {row.law for row in ranking.rows if row.kind != "plain"} == {"iid"}
    assert (
        sum("without_replacement: no tree or chain was considered" in n for n in ranking.notes) == 1
    )


def test_what_is_not_measured_is_passed_over_and_said(flat, measured):
    narrow = LatencyModel.from_tables(verify={1: 0.020, 32: 0.022}, draft={1: 0.0005, 2: 0.0006})
    ranking = best_tree([0.4, 0.3, 0.2], narrow, max_size=16)
    assert any("skipped" in note and "width 3" in note for note in ranking.notes)
    chains = LatencyModel.from_tables(verify={1: 0.020, 32: 0.022}, draft={1: 0.0005})
    assert best_tree([0.5, 0.3], chains).tree is None
    short = LatencyModel.from_tables(verify={1: 0.02, 32: 0.021}, draft=0.0001, accept={1: 0, 4: 0})
    ranking = best_tree([0.9], short)
    assert ranking.best.depth == 3
    assert any("the best has 4 nodes, the most" in note for note in ranking.notes)
    assert "few counts" in str(best_tree(measured([0.6], warnings=("few counts",)), flat))


def test_sizes_that_no_tree_has_are_refused_with_the_largest_one(flat):
    limits = {"depth": 3, "branching": 2}
    for sizes in ([60], [5, 60], [16]):
        with pytest.raises(InfeasibleTree, match=f"sizes has {sizes[-1]}.* has 15 nodes"):
            best_tree([0.6, 0.2], flat, sizes=sizes, **limits)
    assert best_tree([0.6, 0.2], flat, sizes=[15], **limits).tree.size == 15
    chains = LatencyModel.from_tables(verify={1: 0.020, 128: 0.021}, draft={1: 0.0001})
    with pytest.raises(InfeasibleTree, match="no wider level of the draft was measured"):
        best_tree([0.6, 0.2], chains, sizes=[9], depth=7)
    assert best_tree([0.6, 0.2], chains, sizes=[9], depth=8).chain.depth == 8
    # Deeper than the default limit of the depth.
    for rates, times, largest in (([0.9, 0.05], chains, 128), ([0.9], flat, 64)):
        assert best_tree(rates, times, sizes=[largest]).chain.size == largest


def test_a_size_that_one_law_alone_cannot_have_is_said(two_laws):
    ranking = best_tree(
        {"iid": [0.6], "without_replacement": [0.6, 0.2]}, two_laws(), sizes=[16], depth=4
    )
    assert {row.law for row in ranking.rows if row.kind != "plain"} == {"without_replacement"}
    assert any("iid: no tree of depth 4 with 1 children" in note for note in ranking.notes)


def test_a_depth_beyond_the_rates_is_refused(flat):
    with pytest.raises(InvalidLimit, match=r"depth = 3.* for 2 depths"):
        best_tree([[0.6, 0.2], [0.5, 0.2]], flat, max_size=8, depth=3)
