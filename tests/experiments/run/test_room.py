"""Caches are reserved for a run's texts before anything is timed."""

from contextlib import contextmanager

import pytest
import torch

from treespec.experiments.config.build import build
from treespec.experiments.config.schema import Config
from treespec.experiments.records.outcome import STAGES
from treespec.experiments.run.observers import StageTimer
from treespec.experiments.run.room import largest_tree, rows_of
from treespec.models import cache

DRAFTS = [
    {"kind": "plain"},
    {"kind": "tree", "shape": {"kind": "expansion", "branching": [2, 2]}},
    {"kind": "tree", "shape": {"kind": "eagle2", "k": 3, "depth": 3, "size": 8}},
    {"kind": "tree", "name": "exit", "shape": {"kind": "chain", "depth": 2},
     "draft": {"source": "early_exit", "layers": 1}},
    {"kind": "tree", "name": "skip", "shape": {"kind": "chain", "depth": 2},
     "draft": {"source": "layer_skip", "skip": ["mlp.0"]}},
]  # fmt: skip


def test_no_cache_grows_while_a_step_is_timed(start, monkeypatch):
    """A cache that grows is copied, and passes captured with it are captured again."""
    stages, grown = [None], []
    stage, grow = StageTimer.stage, cache._Pool.grow

    @contextmanager
    def noted(self, name):
        stages.append(name)
        with stage(self, name):
            yield
        stages.pop()

    def counted(self, capacity, used):
        grown.append(stages[-1])
        grow(self, capacity, used)

    monkeypatch.setattr(cache, "FIRST_CAPACITY", 4)
    monkeypatch.setattr(StageTimer, "stage", noted)
    monkeypatch.setattr(cache._Pool, "grow", counted)
    done = start({"methods": DRAFTS, "max_new_tokens": 12, "alone": 0})
    assert not done.failures
    assert grown.count("prefill") >= 2 * 2 * (len(DRAFTS) + 3)
    assert not set(STAGES) & set(grown)


def test_caches_of_all_that_is_made_of_a_model_have_the_room(loaded_pair):
    model = loaded_pair.target.fresh()
    part = model.without(["mlp.0"])
    model.reserve(320)
    later = model.without(["mlp.1"])
    model.run_by(model.make_runner, model.passes)
    for one in (model, model.fresh(), part, part.fresh(), later):
        one.prefill(torch.arange(3))
        assert one.runner.cache.capacity == 320


@pytest.mark.parametrize(
    ("shape", "nodes"),
    [
        ({"kind": "chain", "depth": 70}, 71),
        ({"kind": "chain", "depth": 3}, 64),
        ({"kind": "eagle2", "k": 10, "depth": 8, "size": 60}, 81),
        ({"kind": "equal_growth", "width": 20, "depth": 5, "size": 64}, 101),
        ({"kind": "opt_tree", "size": 90, "delta": 0.0, "depth": 5}, 90),
        ({"kind": "opt_tree", "size": 4096, "delta": 0.0, "depth": 5}, 1024),
    ],
)
def test_the_largest_tree(shape, nodes, settings):
    tree = {"kind": "tree", "shape": shape}
    config = settings | {"methods": [{"kind": "generate"}, tree], "samplings": [{"temperature": 0}]}
    experiment = build(Config.model_validate(config))
    assert largest_tree(experiment) == nodes
    rows = rows_of(experiment, 100)
    assert rows % 64 == 0
    assert 0 <= rows - (100 + 6 + 2 * nodes) < 64
