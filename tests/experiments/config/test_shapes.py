"""Trees in configs become shapes and growths, from numbers and from files."""

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from treespec import plugins
from treespec.errors import TreespecError
from treespec.experiments.config.shapes import Shape, tree_of
from treespec.experiments.errors import ConfigError
from treespec.protocols import Growth, MarginalGrowth
from treespec.search import (
    DDTree,
    LatencyModel,
    Top2Gap,
    Trace,
    best_tree,
    estimate_acceptance,
    optimal_tree,
)
from treespec.tree import TreeShape

SHAPE = TypeAdapter(Shape)


def made(**data):
    return tree_of(SHAPE.validate_python(data))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A trace, an estimate, times."""
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    ranks = rng.choice(3, p=[0.6, 0.25, 0.15], size=400)
    probs = np.tile([0.55, 0.3], (400, 1))
    trace = Trace(
        offsets=[0, 200, 400], tokens=ranks, ranks=ranks, probs=probs,
        accepted=np.eye(3)[ranks][:, :2], law="deterministic", rule="greedy",
        sampling={"temperature": 0.0}, width=2, forced=False, about={},
    )  # fmt: skip
    trace.save(folder / "trace.npz")
    (folder / "rates.json").write_text(estimate_acceptance(trace, by="depth", depth=3).to_json())
    latency = LatencyModel.from_tables(verify={1: 0.02, 16: 0.03}, draft={1: 0.001, 8: 0.002})
    latency.save(folder / "latency.json")
    return folder


GROWTHS = {
    "eagle2": {"k": 2, "depth": 3, "size": 6},
    "opt_tree": {"size": 6, "depth": 3},
    "dyspec": {"size": 6, "depth": 3},
    "specexec": {"size": 6, "branching": 2, "depth": 3},
    "equal_growth": {"width": 2, "depth": 3, "size": 6},
    "shared_budget": {"nodes": 6, "branching": 2, "depth": 3},
    "equal_shares": {"nodes": 6, "branching": 2, "depth": 3},
    "margin": {"size": 6, "depth": 3},
    "cost_aware": {"size": 6, "branching": 2, "depth": 3},
}


def test_ddtree_and_delayed_expansion_have_names_in_configs():
    growth = made(kind="ddtree", size=6, depth=3)
    assert isinstance(growth, MarginalGrowth)
    assert growth == DDTree(6, 3)
    assert made(kind="ddtree", size=6, depth=3, branching=2) == DDTree(6, 3, 2)
    shape = SHAPE.validate_python({"kind": "delayed_expansion", "chain": 2, "branching": [3, 1]})
    assert tree_of(shape) == TreeShape.expansion([1, 1, 3, 1])
    assert shape.label == "delayed expansion 2+3x1"
    assert made(kind="top2gap", size=6, depth=3, branching=2) == Top2Gap(6, 3, 2)
    spine = SHAPE.validate_python({"kind": "spine", "depth": 3, "siblings": 2})
    assert tree_of(spine) == TreeShape.spine(3, 2)
    assert (spine.label, spine.nodes) == ("spine 3+2", 10)
    for wrong in (
        {"kind": "delayed_expansion", "chain": 0, "branching": [2]},
        {"kind": "delayed_expansion", "chain": 2, "branching": []},
        {"kind": "delayed_expansion", "chain": 10**8, "branching": [2]},
        {"kind": "delayed_expansion", "chain": 2, "branching": [200, 200]},
        {"kind": "ddtree", "size": 1, "depth": 3},
        {"kind": "ddtree", "size": 6, "depth": 3, "branching": 0},
    ):
        with pytest.raises(ValidationError):
            SHAPE.validate_python(wrong)


@pytest.mark.parametrize("kind", GROWTHS)
def test_every_policy_has_a_name_in_configs(kind, files):
    assert {*GROWTHS, "ddtree", "top2gap"} == {
        name for name, part in plugins.parts("growth").items() if not part.plugged
    }
    data = {"kind": kind, **GROWTHS[kind], "calibration": str(files / "trace.npz")}
    if kind == "cost_aware":
        data["latency"] = str(files / "latency.json")
    growth = made(**data)
    assert isinstance(growth, Growth)
    assert type(growth) is plugins.parts("growth")[kind].make
    assert growth.max_depth == 3
    assert growth.calibration([0.55])[0] == pytest.approx(0.6, abs=0.05)
    shape = SHAPE.validate_python(data)
    assert "6" in shape.label


def test_optimal_takes_an_estimate_or_a_trace(files):
    rates = estimate_acceptance(Trace.load(files / "trace.npz"), by="depth", depth=3)
    wanted = optimal_tree(rates, 6, depth=3)
    assert made(kind="optimal", rates=str(files / "rates.json"), size=6, depth=3) == wanted
    assert made(kind="optimal", rates=str(files / "trace.npz"), size=6, depth=3) == wanted


def test_best_is_what_search_ranks_first(files):
    rates = estimate_acceptance(Trace.load(files / "trace.npz"), by="depth", depth=3)
    latency = LatencyModel.load(files / "latency.json")
    wanted = best_tree(rates, latency, max_size=12, depth=3).best.shape
    files_ = {"acceptance": str(files / "rates.json"), "latency": str(files / "latency.json")}
    assert made(kind="best", **files_, max_size=12, depth=3) == wanted


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "optimal", "rates": "nowhere.json", "size": 4},
        {"kind": "optimal", "rates": "nowhere.npz", "size": 4},
        {"kind": "best", "acceptance": "nowhere.json", "latency": "nowhere.json"},
        {"kind": "cost_aware", "size": 4, "branching": 2, "depth": 2, "latency": "nowhere.json"},
        {"kind": "eagle2", "k": 2, "depth": 2, "size": 4, "calibration": "nowhere.json"},
    ],
)
def test_a_missing_file_is_named(data):
    with pytest.raises((ConfigError, TreespecError), match="nowhere"):
        made(**data)
