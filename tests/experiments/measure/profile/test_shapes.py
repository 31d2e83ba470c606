"""What is measured is enough to time every tree up to the largest size; without a model."""

import random

import pytest

from treespec import Law, Sampling, TreeShape
from treespec.experiments.config.build import build
from treespec.experiments.config.schema import Config
from treespec.experiments.measure.profile.plan import (
    Setting,
    completed,
    settings_of,
    shapes_for,
)
from treespec.experiments.measure.profile.profile import model_of_rounds
from treespec.experiments.measure.profile.timed_steps import _measure_place
from treespec.search.latency.step_parts import levels_of
from treespec.testing import plane_trees
from treespec.verify import RULES

CALL, PASS, NODE = 0.002, 0.05, 0.001
"""Seconds of one choice of children, of a draft pass, and of one node more in anything."""


class Priced:
    """The loop of `profile_pair`, whose steps have prices."""

    def __init__(self, setting, prefix):
        self.setting, self.prefix = setting, prefix

    def step(self, shape):
        stages = dict.fromkeys(("verify", "commit", "accept"), NODE * shape.size)
        levels = [self.level(level) for level in levels_of(shape)]
        draft = sum(levels) + NODE * shape.size
        whole = sum(stages.values()) + draft
        return {"draft": draft, "rest": 0.0, "levels": levels, "whole": whole, **stages}

    def level(self, level):
        """A pass, and what choosing takes: once for each further child of any, or of each group."""
        together = self.setting.law is Law.DETERMINISTIC
        calls = max(level) if together else sum(level)
        return PASS + NODE * sum(level.values()) + CALL * calls


def profiled(law, rule, sizes):
    """The times that a profile of these sizes measures, and what steps really take."""
    shapes, missing = shapes_for(completed(sizes), lambda shape: True)
    assert not missing
    setting = Setting(Sampling(1.0), law, RULES[rule], "T=1", shapes)
    loop, samples = Priced(setting, 16), {}
    _measure_place(loop, Priced(setting, 16), random.Random(0), samples)
    return model_of_rounds([samples], [setting], {}), loop


def some_trees(largest):
    """All trees up to seven nodes, and beyond that the fullest, the most uneven and random ones."""
    yield from (shape for size in range(2, min(largest, 7) + 1) for shape in plane_trees(size))
    rng = random.Random(largest)
    for size in range(8, largest + 1):
        wide = (size - 2) // 2  # a level in which one node of many has two children
        yield TreeShape((-1, *[0] * wide, *range(1, wide + 1), *[1] * (size - 1 - 2 * wide)))
        both = (size - 1) // 3
        pairs = [node for node in range(1, both + 1) for _ in range(2)]
        yield TreeShape((-1, *[0] * both, *pairs, *[0] * (size - 1 - 3 * both))).breadth_first()
        for reach in (2, 4, size):
            yield TreeShape((-1, *(rng.randrange(max(0, i - reach), i) for i in range(1, size))))


@pytest.mark.parametrize("sizes", [[1, 4, 16], [1], [4], [7], [6, 10], [1, 16, 40]])
@pytest.mark.parametrize(
    ("law", "rule"), [(Law.DETERMINISTIC, "onehot"), (Law.WITHOUT_REPLACEMENT, "rrsw")]
)
def test_every_tree_up_to_the_largest_size_is_timed(law, rule, sizes):
    model, loop = profiled(law, rule, sizes)
    assert model.largest(law=str(law)) == max(5, *sizes)
    for shape in some_trees(max(5, *sizes)):
        predicted = model.step_s(shape, law=str(law))
        assert predicted == pytest.approx(loop.step(shape)["whole"], rel=1e-3), shape


def test_sizes_are_completed():
    assert completed([1, 4, 16]) == [1, 2, 3, 4, 5, 16]
    assert completed([]) == [2, 3, 5]
    assert completed((5, 8)) == [2, 3, 5, 8]


def test_sizes_that_do_not_fit_are_said():
    class Draft:
        vocab_size = 8

    class Pair:
        draft = Draft()

    config = Config.model_validate(
        {
            "name": "x",
            "prompts": {"kind": "embedded", "count": 1, "tokens": 8},
            "max_new_tokens": 8,
            "samplings": [{"temperature": 1}],
            "methods": [{"kind": "plain"}],
        }
    )
    notes = []
    settings_of(build(config), Pair(), completed([40]), 1000, notes)
    assert "law without_replacement: no tree of sizes 40 fits" in notes
    assert not any("law iid" in note for note in notes)  # chains alone, whatever the size
