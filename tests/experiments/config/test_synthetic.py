"""Synthetic acceptance in configs: what it drafts with, what it refuses, and what it is called."""

from types import SimpleNamespace

import pytest

from treespec.draft import ModelDrafter, PromptLookup
from treespec.draft.undrafted import Undrafted
from treespec.experiments.config.build import build
from treespec.experiments.config.file import validated
from treespec.experiments.errors import ConfigError
from treespec.testing import TabularModel, random_table
from treespec.tree import Law
from treespec.verify.synthetic_acceptance import SyntheticAcceptance

RATES = [[0.7, 0.1], [0.6]]
BUDGET = {"kind": "budget", "depth": 4}


def built(shape="expansion:2x1", temperature=1.0, models=None, more=None, **draft):
    method = {"kind": "tree", "shape": shape, "draft": {"source": "synthetic"} | draft}
    data = {
        "name": "synthetic",
        "prompts": {"kind": "embedded", "count": 1},
        "max_new_tokens": 8,
        "samplings": [{"temperature": temperature}],
        "methods": [method | (more or {})],
    }
    given = validated("test.yaml", data | ({"models": models} if models else {}))
    return build(given).methods[0]


def drafter(method):
    target, draft = (TabularModel(random_table(3, seed), 3) for seed in (0, 1))
    (setting,) = method.choices
    return method.drafter(SimpleNamespace(target=target, draft=draft, others={}), setting)


def test_it_drafts_by_its_source_and_accepts_by_its_rates():
    method = built(rates=RATES)
    (choice,) = method.choices.values()
    assert isinstance(choice.rule, SyntheticAcceptance)
    assert choice.rule.rates == ((0.7, 0.1), (0.6,))
    assert choice.law is Law.WITHOUT_REPLACEMENT
    assert method.synthetic
    assert not method.lossless
    assert method.name == "synthetic 0.7,0.1;0.6 expansion 2x1"
    assert (method.by_pair, method.draft_models) == (False, (None,))
    assert isinstance(drafter(method), ModelDrafter)
    eagle = built({"kind": "eagle2", "k": 2, "depth": 2, "size": 4}, 0.0, rates=RATES)
    assert isinstance(drafter(eagle), ModelDrafter)
    lookup = built(BUDGET, rates=RATES, draft={"source": "lookup"})
    assert isinstance(drafter(lookup), PromptLookup)
    assert lookup.name == "synthetic 0.7,0.1;0.6 over lookup chain 4"
    assert lookup.draft_models == ()
    assert built(rates=RATES, more={"name": "tree A"}).name == "tree A (synthetic)"


def test_without_a_source_tokens_cost_nothing():
    method = built(rates=RATES, draft=None, models={"draft": "none"})
    assert isinstance(drafter(method), Undrafted)
    assert method.name == "synthetic 0.7,0.1;0.6, undrafted, expansion 2x1"
    assert method.choices["T=1"].law is Law.DETERMINISTIC


@pytest.mark.parametrize(
    ("message", "given"),
    [
        (r"rates\[0\] = \[0.7, 0.4\] sums to 1.1, but at most one child", {"rates": [[0.7, 0.4]]}),
        ("rates", {"rates": []}),
        ("rates", {"rates": [[1.5]]}),
        ("'rrsw' compares tokens, but the rates of a synthetic draft decide",
         {"rates": RATES, "more": {"rule": "rrsw"}}),
        ("rule 'synthetic' has no setting 'lenience'",
         {"rates": RATES, "more": {"settings": {"lenience": 0.5}}}),
        ("'eagle2' grows by a draft's probabilities, but methods.0..draft.draft is null",
         {"rates": RATES, "draft": None,
          "shape": {"kind": "eagle2", "k": 2, "depth": 2, "size": 4}}),
        ("a budget is for sources that bring their own continuations",
         {"rates": RATES, "draft": None, "shape": BUDGET}),
        ("'model' drafts a given tree", {"rates": RATES, "shape": BUDGET}),
        ("'lookup' brings its own continuations", {"rates": RATES, "draft": {"source": "lookup"}}),
        ("needs a draft model.*`draft: null` in a synthetic draft is for tokens that cost nothing",
         {"rates": RATES, "models": {"draft": "none"}}),
        ("budgets: 3 . 3 nodes and the root are 7, but shape.size is 4",
         {"rates": RATES, "shape": BUDGET | {"size": 4, "branching": 2},
          "draft": {"source": "merge", "sources": [{"source": "lookup"}, {"source": "jacobi"}],
                    "budgets": {"lookup": 3, "jacobi": 3}}}),
        ("synthetic", {"rates": RATES, "draft": {"source": "synthetic", "rates": RATES}}),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(message, given):
    with pytest.raises(ConfigError, match=message):
        built(**given)


@pytest.mark.parametrize("kind", ["merge", "cascade"])
def test_no_other_source_drafts_with_it(kind):
    inner = {"source": "synthetic", "rates": RATES}
    draft = {"source": "cascade", "draft": inner}
    if kind == "merge":
        draft = {
            "source": "merge",
            "sources": [inner, {"source": "lookup"}],
            "rates": [[[0.5]]] * 2,
        }
    method = {"kind": "tree", "shape": BUDGET | {"size": 6, "branching": 2}, "draft": draft}
    data = {
        "name": "synthetic",
        "prompts": {"kind": "embedded", "count": 1},
        "max_new_tokens": 8,
        "samplings": [{"temperature": 1}],
        "methods": [method],
    }
    with pytest.raises(ConfigError, match="synthetic"):
        validated("test.yaml", data)
