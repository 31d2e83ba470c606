import pytest
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.report.point_figures import scaling_figure
from treespec.experiments.report.run import load_run
from treespec.tree import TreeShape


def _method(name, shape):
    return SyntheticMethod(name, "tree", shape, (0.6, 0.2), (1.0, 10.0, 0.1, 0.1))


def _run(folder, methods):
    return load_run(write_run(folder, methods, prompts=6, temperatures=(0.0,)))


CHAINS = [_method(f"chain {d}", TreeShape.chain(d)) for d in (1, 3, 7, 15)]
APART = [_method(f"{k} chains", TreeShape.independent_chains(k, 3)) for k in (2, 4, 8, 16)]
TREES = [_method(f"2-ary {d}", TreeShape.kary(2, d)) for d in (2, 3, 4, 5)]


def test_families_are_told_by_their_shape_and_sorted_by_nodes(tmp_path):
    found = _run(tmp_path / "run", [*TREES[::-1], *CHAINS, *APART]).scaling["T=0"]
    assert {name: [p.nodes for p in points] for name, points in found.items()} == {
        "trees": [7, 15, 31, 63],
        "independent chains": [7, 13, 25, 49],
        "one chain": [2, 4, 8, 16],
    }
    assert all(p.tokens.low <= p.tokens.estimate <= p.tokens.high for p in found["trees"])


def test_the_best_tree_of_a_size_counts_unless_it_was_searched_for_another_setting(tmp_path):
    poor = SyntheticMethod("poor", "tree", TreeShape.expansion([6]), (0.1,), (1.0, 10.0, 0.1, 0.1))
    other = SyntheticMethod(
        "optimal 7 for T=1", "tree", TreeShape.kary(2, 2), (0.99,), (1, 1, 0, 0)
    )
    run = _run(tmp_path / "run", [*TREES, poor, other])
    rows = run.prompts.filter(run.prompts["method"] == "2-ary 2")
    found = {point.nodes: point.tokens.estimate for point in run.scaling["T=0"]["trees"]}
    assert found[7] == pytest.approx(rows["new_tokens"].sum() / rows["steps"].sum())


def test_no_curve_of_fewer_than_four_sizes(tmp_path):
    run = _run(tmp_path / "run", [*TREES[:3], *CHAINS[:3]])
    assert run.scaling["T=0"] == {}
    assert scaling_figure(run.scaling) is None
