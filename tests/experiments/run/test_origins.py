"""Steps record which source drafted each node."""

import pytest
import torch

from treespec import plugins
from treespec.draft import PromptLookup
from treespec.experiments.config.build import build
from treespec.experiments.config.file import validated
from treespec.experiments.run.ours import decode_ours
from treespec.models.load import load_pair
from treespec.plugins import Law
from treespec.stopping import stop_at_tokens


class Two(PromptLookup):
    """Lookup that reports two sources, which drafted its nodes alternately."""

    def __init__(self, wanted, settings):
        super().__init__(wanted.tree.depth)

    def propose(self, coins):
        tree = super().propose(coins)
        names = [("a",), ("a", "b")]
        self.origins = ((), *(names[node % 2] for node in range(1, tree.shape.size)))
        return tree


@pytest.fixture
def two():
    before = plugins.kept()
    plugins.drafter("two", laws={Law.DETERMINISTIC}, trees="budget")(Two)
    yield "two"
    plugins.restore(before)


BUDGET = {"kind": "budget", "depth": 3}


def steps_of(source, model="none", shape=BUDGET, **settings):
    data = {
        "name": "origins",
        "models": {} if model is None else {"draft": model},
        "prompts": {"kind": "embedded", "count": 1},
        "max_new_tokens": 8,
        "samplings": [{"temperature": 0}],
        "methods": [{"kind": "tree", "draft": {"source": source, **settings}, "shape": shape}],
    }
    (method,) = build(validated("test.yaml", data)).methods
    pair = load_pair("embedded", model)
    prompt = torch.tensor(pair.tokenizer.encode("a = 1\na = 1\na = 1\na"))
    stop = stop_at_tokens(())
    return list(decode_ours(pair, method, "T=0", prompt, max_new_tokens=8, stop=stop, seed=0))


def test_a_step_and_its_row_say_it(two):
    steps = steps_of(two)
    assert any(step.shape.size > 2 for step in steps)
    key = {"prompt": 0, "sampling": "T=0", "method": "m", "repeat": 0}
    for i, step in enumerate(steps):
        row = step.row(key, i)
        assert row.parents == list(step.shape.parents)
        assert row.origins == ["", "a + b", "a", "a + b"][: step.shape.size]


def test_a_cascade_says_its_levels():
    """Tokens of the draft model, and tokens that it took from the level below."""
    steps = steps_of("cascade", None, draft={"source": "lookup"})
    key = {"prompt": 0, "sampling": "T=0", "method": "m", "repeat": 0}
    rows = [step.row(key, i) for i, step in enumerate(steps)]
    assert {row.origins[0] for row in rows} == {""}
    assert {level for row in rows for level in row.origins[1:]} == {"level 1", "level 2"}


def test_all_nodes_of_a_source_that_fills_a_budget_are_its_own():
    """Its trees differ from step to step, so each step says its tree."""
    key = {"prompt": 0, "sampling": "T=0", "method": "m", "repeat": 0}
    steps = steps_of("lookup")
    assert any(step.shape.size > 2 for step in steps)
    for i, step in enumerate(steps):
        row = step.row(key, i)
        assert row.parents == list(step.shape.parents)
        assert row.origins == ["", *["lookup"] * (step.shape.size - 1)]


def test_of_a_given_shape_the_method_says_it():
    step = steps_of("early_exit", shape="chain:3", layers=2)[0]
    row = step.row({"prompt": 0, "sampling": "T=0", "method": "m", "repeat": 0}, 0)
    assert (step.origins, row.parents, row.origins) == ((), None, None)
