import pytest

from treespec.experiments.config.build import build
from treespec.experiments.config.questions import Picked, label_of_side, picked
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError

METHOD = Picked("lookup [3] chain 4", "chain", "lookup", ["chain", "greedy"])


@pytest.mark.parametrize(
    ("side", "holds"),
    [
        ("lookup *", True),
        ("lookup [3] chain ?", True),
        ("lookup", False),
        ("chain", True),
        ("tree", False),
        ({"source": "lookup"}, True),
        ({"source": "look*", "group": "tree"}, False),
        ({"rule": "greedy", "name": None}, True),
    ],
)
def test_sides_pick_by_pattern_group_or_part(side, holds):
    assert picked(side, METHOD) is holds


def test_labels_are_the_patterns():
    assert label_of_side({"source": "lookup", "rule": None}) == "lookup"
    assert label_of_side({"name": "a *", "group": "tree"}) == "name a *, group tree"
    assert label_of_side("a *") == "a *"


def config(*questions):
    tree = {"kind": "tree", "shape": {"kind": "budget", "depth": 3}, "draft": {"source": "lookup"}}
    return Config.model_validate(
        {
            "name": "asked",
            "prompts": {"kind": "embedded", "count": 2},
            "max_new_tokens": 4,
            "samplings": [{"temperature": 0}],
            "methods": [{"kind": "plain"}, tree | {"name": "one"}, tree | {"name": "other"}],
            "compare": [
                dict(zip(("left", "right"), question, strict=True)) for question in questions
            ],
        }
    )


def test_questions_that_can_be_answered_pass():
    build(config(("one", "other"), ({"source": "lookup"}, "plain")))


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (
            ("one", "two"),
            r"compare\[0\].right = 'two' picks none of the methods: plain, one, other",
        ),
        (("o*", "one"), r"compare\[0\]: one is on both sides"),
        (({"source": "suffix"}, "one"), r"compare\[0\].left = .*suffix.* picks none"),
    ],
)
def test_others_are_refused_at_the_door(question, said):
    with pytest.raises(ConfigError, match=said):
        build(config(question))


def test_a_side_that_names_nothing_is_refused():
    with pytest.raises(ValueError, match="names nothing"):
        config(({}, "one"))
