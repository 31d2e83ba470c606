"""Merges and cascades in configs: how they are built, and what is rejected before a model is loaded."""

from types import SimpleNamespace

import pytest
import torch

from treespec import TorchCoins
from treespec.draft import Cascade, Merge, ModelDrafter, PromptLookup, TokenRecycling
from treespec.errors import InvalidArgument
from treespec.experiments.config.build import build
from treespec.experiments.config.file import validated
from treespec.experiments.errors import ConfigError
from treespec.testing import TabularModel, random_table
from treespec.tree import Law, TreeShape

SMALL = {"kind": "budget", "depth": 4, "size": 12, "branching": 3}
CHAIN = {"kind": "budget", "depth": 4}
RATES = [[[0.7, 0.2]], [[0.4]]]
MERGE = {"source": "merge", "sources": [{"source": "model"}, {"source": "lookup"}], "rates": RATES}
TEXTS = MERGE | {"sources": [{"source": "token_recycling"}, {"source": "lookup"}]}
CASCADE = {"source": "cascade", "draft": {"source": "lookup"}}


def config(draft, shape=SMALL, temperature=1.0, models=None, **more):
    data = {
        "name": "combined",
        "prompts": {"kind": "embedded", "count": 1},
        "max_new_tokens": 8,
        "samplings": [{"temperature": temperature}],
        "methods": [{"kind": "tree", "draft": draft, "shape": shape, **more}],
    }
    return validated("test.yaml", data | ({"models": models} if models else {}))


def method(*args, **more):
    (built,) = build(config(*args, **more)).methods
    return built


def pair():
    target, draft, other = (TabularModel(random_table(3, seed), 3) for seed in range(3))
    return SimpleNamespace(target=target, draft=draft, others={"other": other})


def choice(built):
    (found,) = built.choices.values()
    return found.law, str(found.rule)


def test_law_and_rule_of_a_merge_fit_its_sources():
    assert choice(method(MERGE)) == (Law.WITHOUT_REPLACEMENT, "rrsw")
    assert choice(method(MERGE, rule="rrs")) == (Law.IID, "rrs")
    assert choice(method(MERGE, rule="traversal")) == (Law.WITHOUT_REPLACEMENT, "traversal")
    assert choice(method(MERGE, rule="onehot")) == (Law.DETERMINISTIC, "onehot")
    assert choice(method(MERGE, temperature=0.0)) == (Law.DETERMINISTIC, "greedy")
    assert choice(method(TEXTS)) == (Law.DETERMINISTIC, "onehot")


def test_a_merge_is_made_of_its_sources_with_their_rates():
    built = method(MERGE)
    assert built.name == "merge of model, lookup budget 12"
    assert (built.draft_models, built.own_models, built.by_pair) == ((None,), (), False)
    drafter = built.drafter(pair(), "T=1")
    assert isinstance(drafter, Merge)
    assert [type(source) for source in drafter.sources.values()] == [ModelDrafter, PromptLookup]
    assert drafter.sources["model"].law is Law.WITHOUT_REPLACEMENT
    assert drafter.layout.rates == {"model": ((0.7, 0.2),), "lookup": ((0.4,),)}
    assert drafter.layout.room == (12, 4, 3)
    texts = method(TEXTS).drafter(pair(), "T=1")
    assert [type(source) for source in texts.sources.values()] == [TokenRecycling, PromptLookup]


def test_a_model_with_deterministic_children_offers_its_best_tree():
    """Of 12 nodes by these rates: the drawn children of the same merge come one by one instead."""
    drafter = method(MERGE, temperature=0.0).drafter(pair(), "T=0")
    assert not drafter.layout.drawing
    tree = drafter.sources["model"].growth
    assert (tree.shape.size, tree.shape.depth) == (12, 4)
    assert not tree.shape.is_chain
    assert set(method(MERGE).drafter(pair(), "T=1").layout.drawing) == {"model"}


def test_rates_of_each_setting_by_its_name():
    warm = [[[0.5, 0.3]], [[0.3]]]
    rates = {"T=0": RATES, "T=1": warm, "T=0.5, top_p=0.9": [[[0.6]], [[0.2]]]}
    data = config(MERGE | {"rates": rates}).model_dump(mode="json")
    data["samplings"] = [
        {"temperature": 0}, {"temperature": 1}, {"temperature": 0.5, "top_p": 0.9}
    ]  # fmt: skip
    built = build(validated("test.yaml", data)).methods[0]
    found = {name: built.drafter(pair(), name).layout.rates["model"] for name in rates}
    assert found == {
        "T=0": ((0.7, 0.2),), "T=1": ((0.5, 0.3),), "T=0.5, top_p=0.9": ((0.6,),)
    }  # fmt: skip
    # The manifest holds the config, and with it what each setting went by.
    assert data["methods"][0]["draft"]["rates"]["T=1"] == warm


APART = {key: value for key, value in MERGE.items() if key != "rates"} | {
    "budgets": {"model": 6, "lookup": 5}
}


def test_each_source_of_a_merge_may_have_a_budget():
    built = method(APART)
    assert built.name == "merge of model 6, lookup 5 budget 12"
    assert choice(built) == (Law.WITHOUT_REPLACEMENT, "rrsw")
    drafter = built.drafter(pair(), "T=1")
    assert drafter.layout.budgets == {"model": 6, "lookup": 5}
    model, lookup = drafter.sources.values()
    assert model.growth.shape == TreeShape.chain(4)  # nothing is known of its children
    limits = lookup.limits
    assert (limits.size, limits.depth, limits.branching) == (6, 4, 3)
    assert choice(method(APART, temperature=0.0)) == (Law.DETERMINISTIC, "greedy")
    few = method(APART | {"budgets": {"model": 2, "lookup": 3}}).drafter(pair(), "T=1")
    assert [source.max_depth for source in few.sources.values()] == [2, 3]


def test_rates_lay_out_the_tree_of_a_model_that_has_a_budget():
    rates = [[[0.6, 0.3], [0.5, 0.4, 0.0]], [[0.4]]]
    model = method(APART | {"rates": rates}).drafter(pair(), "T=1").sources["model"]
    # .6 .3, then .3 .24 below the first and .15 below the second, .15 by the rates of the last depth.
    shape = model.growth.shape
    assert {shape.rank_path(node) for node in range(1, shape.size)} == {
        (0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)
    }  # fmt: skip
    for rates, depth in (([[0.6], [0.0]], 1), ([[0.0]], 0), ([[]], 0), ([[], [0.4]], 0)):
        few = method(APART | {"rates": [rates, [[0.4]]]}).drafter(pair(), "T=1")
        assert few.sources["model"].max_depth == depth
        few.prefill(torch.tensor([0, 1, 2]))
        assert few.propose(TorchCoins(0)).shape.size == 1 + depth  # nothing to look up


def test_a_budget_that_is_too_small_for_its_source_is_named():
    """The whole tree has room, so nothing in it needs to change."""
    sources = [{"source": "lookahead"}, {"source": "lookup"}]
    draft = {"source": "merge", "sources": sources, "budgets": {"lookahead": 20, "lookup": 2}}
    room = {"kind": "budget", "depth": 9, "size": 60, "branching": 11}
    with pytest.raises(InvalidArgument) as refused:
        method(draft, room).drafter(pair(), "T=1")
    said = str(refused.value)
    assert "budgets.lookahead = 20, which is a size of 21 with the root: lookahead with" in said
    assert "size: 56" in said
    fits = method(draft | {"budgets": {"lookahead": 55, "lookup": 2}}, room)
    assert fits.drafter(pair(), "T=1").layout.budgets["lookahead"] == 55


def test_a_source_that_stands_twice_has_two_budgets():
    sources = [{"source": "model"}, {"source": "model", "model": "other"}, {"source": "lookup"}]
    budgets = {"model": 2, "model'": 3, "lookup": 4}
    drafter = method(APART | {"sources": sources, "budgets": budgets}).drafter(pair(), "T=1")
    assert drafter.layout.budgets == budgets
    assert [source.max_depth for source in drafter.sources.values()] == [2, 3, 4]


def test_one_source_twice_and_a_cascade_among_them():
    sources = [
        {"source": "model"},
        {"source": "model", "model": "other"},
        CASCADE | {"models": ["third"]},
    ]
    built = method(MERGE | {"sources": sources, "rates": [*RATES, [[0.5]]]})
    assert built.own_models == ("other", "third")
    models = pair()
    models.others["third"] = models.draft
    drafter = built.drafter(models, "T=1")
    assert list(drafter.sources) == ["model", "model'", "cascade"]


def test_a_cascade_is_made_from_its_end():
    built = method(CASCADE, CHAIN)
    assert built.name == "cascade over lookup chain 4"
    assert choice(built) == (Law.WITHOUT_REPLACEMENT, "rrsw")
    drafter = built.drafter(pair(), "T=1")
    assert isinstance(drafter, Cascade)
    assert isinstance(drafter.drafter, PromptLookup)
    assert (str(drafter.rule), drafter.max_depth) == ("onehot", 4)
    two = CASCADE | {"models": [None, "other"], "depth": 2}
    drafter = method(two, CHAIN).drafter(pair(), "T=1")
    assert [drafter.max_depth, drafter.drafter.max_depth] == [4, 2]
    assert [str(drafter.rule), str(drafter.drafter.rule)] == ["rrsw", "onehot"]
    below = CASCADE | {"draft": {"source": "model", "model": "other"}, "rule": "rrs"}
    drafter = method(below, CHAIN, rule="rrs").drafter(pair(), "T=1")
    assert (drafter.law, drafter.drafter.law, str(drafter.rule)) == (Law.IID, Law.IID, "rrs")


REFUSED = {
    "'kseq' does not cover mixed trees": ((MERGE, SMALL), {"rule": "kseq"}),
    "rule 'onehot'": ((MERGE, SMALL), {"rule": "onehot", "law": "iid"}),
    "the draft source 'merge' does not support iid; it supports deterministic": (
        (TEXTS, SMALL), {"law": "iid"}
    ),
    "takes limits instead of 'chain'": ((MERGE, {"kind": "chain", "depth": 3}), {}),
    "give one for each, in their order": ((MERGE | {"rates": [*RATES, [[0.1]]]}, SMALL), {}),
    "methods[0].draft.sources[1].source: unknown source 'merge'": (
        (MERGE | {"sources": [{"source": "lookup"}, MERGE]}, SMALL), {}
    ),
    "methods[0].draft.draft.source: unknown source 'cascade'": ((CASCADE | {"draft": CASCADE}, CHAIN), {}),
    "the cascade contains itself: models.draft and models.draft are the same model": (
        (CASCADE | {"draft": {"source": "model"}}, CHAIN), {}
    ),
    "the cascade contains itself: models.draft and 'embedded' are the same model": (
        (CASCADE | {"models": [None, "embedded"]}, CHAIN), {}
    ),
    "the cascade contains itself: 'other' and models.draft are the same model": (
        (CASCADE | {"models": ["other"], "draft": {"source": "model"}}, CHAIN),
        {"models": {"draft": "other"}},
    ),
    "draft source 'cascade' drafts chains": ((CASCADE, SMALL), {}),
    "{source: cascade} needs a draft model": ((CASCADE, CHAIN), {"models": {"draft": "none"}}),
    "{source: merge} needs a draft model": ((MERGE, SMALL), {"models": {"draft": "none"}}),
    "methods[0].draft.rates has none for 'T=1' (there: 'T=0', 'T=1.0')": (
        (MERGE | {"rates": {"T=0": RATES, "T=1.0": RATES}}, SMALL), {}
    ),
    "rates['T=1'] has 3 entries for 2 sources": (
        (MERGE | {"rates": {"T=1": [*RATES, [[0.1]]]}}, SMALL), {}
    ),
    "budgets: there is no source 'modle'; did you mean 'model'? (the sources are model, lookup)": (
        (APART | {"budgets": {"modle": 1, "lookup": 5}}, SMALL), {}
    ),
    "budgets: 'lookup' has none": ((APART | {"budgets": {"model": 1}}, SMALL), {}),
    "budgets: 6 + 6 nodes and the root are 13, but shape.size is 12: lower a budget, or": (
        (APART | {"budgets": {"model": 6, "lookup": 6}}, SMALL), {}
    ),
    "a merge needs rates, by which its sources share a tree, or budgets, nodes for each: budgets: {": (
        (APART | {"budgets": None}, SMALL), {}
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_combined_is_refused(said):
    args, more = REFUSED[said]
    with pytest.raises(ConfigError) as refused:
        build(config(*args, **more))
    assert said in str(refused.value)


def test_ddtree_is_refused_by_sources_that_give_no_distributions():
    """A draft model's chain gives a distribution per position; a text gives none."""
    ddtree = {"kind": "ddtree", "size": 8, "depth": 3}
    built = method({"source": "model"}, ddtree)
    assert choice(built) == (Law.DETERMINISTIC, "onehot")
    assert built.name == "DDTree 8"
    drafter = built.drafter(pair(), "T=1")
    drafter.prefill(torch.tensor([0, 1, 2]))
    assert drafter.propose(TorchCoins(0)).shape.size == 8
    method({"source": "early_exit", "layers": 2}, ddtree)
    for source in ("lookup", "token_recycling", "lookahead", "jacobi", "merge", "cascade"):
        draft = {"merge": MERGE, "cascade": CASCADE}.get(source, {"source": source})
        with pytest.raises(ConfigError) as refused:
            method(draft, ddtree)
        said = str(refused.value)
        assert (
            f"'ddtree' needs a distribution for each position, and the draft source '{source}'"
            in said
        )
        assert "(model, early_exit, layer_skip, medusa, block" in said


def test_a_merge_without_a_budget_to_share_is_refused():
    with pytest.raises(InvalidArgument, match="a merge needs a budget with a size and a branching"):
        method(MERGE, CHAIN).drafter(pair(), "T=1")


def test_rules_of_a_cascade_that_do_not_fit_are_refused():
    for rule, said in (("kseq", "made for children of law iid"), ("nosuch", "no acceptance rule")):
        with pytest.raises(InvalidArgument, match=said):
            method(CASCADE | {"rule": rule}, CHAIN).drafter(pair(), "T=1")
