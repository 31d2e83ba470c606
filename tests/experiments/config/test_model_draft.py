"""The draft source of a method, as a choice in its config."""

import json
from types import SimpleNamespace

import pytest

from treespec.draft import ModelDrafter, PromptLookup
from treespec.experiments.config.build import build
from treespec.experiments.config.file import validated
from treespec.experiments.config.model_draft import ModelDraft
from treespec.experiments.config.schema import ModelsConfig
from treespec.experiments.errors import ConfigError
from treespec.experiments.records.manifest import config_data, config_hash, method_data
from treespec.experiments.run.models import model_data, trimmed_of
from treespec.models.load import load_pair
from treespec.tree import Law


def config(*methods, temperature=0.0, **more):
    data = {
        "name": "drafts",
        "prompts": {"kind": "embedded", "count": 1},
        "max_new_tokens": 8,
        "samplings": [{"temperature": temperature}],
        "methods": list(methods),
    }
    return validated("test.yaml", data | more)


def tree(shape, **more):
    return {"kind": "tree", "shape": shape, **more}


LOOKUP = {"draft": {"source": "lookup"}}
CHAIN = {"kind": "chain", "depth": 4}
BUDGET = {"kind": "budget", "depth": 4}


def test_a_method_begins_its_prompts_cold_or_warm():
    """Or neither, if no source can keep what it learned. One warm source makes a merge warm."""
    cold = {"source": "token_recycling"}
    warm = {"source": "suffix_tree", "warm": "past"}
    shape = BUDGET | {"size": 6, "branching": 2}

    def state(draft):
        (method,) = build(config(tree(shape, draft=draft))).methods
        return method.state

    def merged(*sources):
        return state({"source": "merge", "sources": sources, "rates": [[[0.5]]] * len(sources)})

    lookup = LOOKUP["draft"]
    assert [state(draft) for draft in (lookup, cold, warm)] == [None, "cold", "warm"]
    assert [merged(lookup, cold), merged(cold, warm)] == ["cold", "warm"]
    assert merged(lookup, {"source": "model"}) is None
    assert build(config({"kind": "plain"})).methods[0].state is None


def test_the_pair_drafts_where_nothing_is_said():
    method = build(config(tree(CHAIN))).methods[0]
    assert method.config.draft == ModelDraft()
    assert method.by_pair
    assert (method.draft_models, method.own_models) == ((None,), ())
    assert method.name == "chain 4"
    assert config_data(config(tree(CHAIN)))["methods"][0]["draft"] == {
        "source": "model",
        "model": None,
        "frequent": None,
        "texts": None,
    }


def test_lookup_is_a_chain_of_deterministic_children():
    for temperature, rule in ((0.0, "greedy"), (1.0, "onehot")):
        method = build(config(tree(BUDGET, **LOOKUP), temperature=temperature)).methods[0]
        (choice,) = method.choices.values()
        assert (choice.law, str(choice.rule)) == (Law.DETERMINISTIC, rule)
        assert method.name == "lookup chain 4"
        assert (method.shape, method.max_depth, method.by_pair) == (None, 4, False)
        pair = SimpleNamespace(target=None, draft=None)
        drafter = method.drafter(pair, next(iter(method.choices)))
        assert isinstance(drafter, PromptLookup)
        assert drafter.max_depth == 4
        growth = method_data(method)["growth"]
        assert growth == {"kind": "budget", "depth": 4, "branching": 1, "size": None}


def test_settings_of_a_source_are_part_of_the_experiment():
    hashes = {
        config_hash(config(tree(BUDGET, draft=draft)))
        for draft in (
            {"source": "lookup"},
            {"source": "lookup", "ngram": 2},
            {"source": "lookup", "places": 9},
        )
    }
    assert len(hashes) == 3
    same = config(tree(BUDGET, draft={"source": "lookup", "ngram": 3}))
    assert config_hash(same) in hashes


STRINGS = {"draft": {"source": "strings"}}
OTHER = {"models": {"other_tokenizer": True}}

REFUSED = {
    "methods[0].draft.source: unknown source 'lokup'; did you mean 'lookup'?": (
        tree(BUDGET, draft={"source": "lokup"}), {}
    ),
    "methods[0].draft.ngrams: unknown key; did you mean 'ngram'? (keys here: source, ngram, places)": (
        tree(BUDGET, draft={"source": "lookup", "ngrams": 2}), {}
    ),
    "methods[0].draft.ngram = 0: must be greater than or equal to 1": (
        tree(BUDGET, draft={"source": "lookup", "ngram": 0}), {}
    ),
    "methods[0].draft: a mapping with a 'source' is needed": (tree(BUDGET, draft={"ngram": 0}), {}),
    "takes limits instead of 'chain': {kind: budget, depth: 4}": (tree(CHAIN, **LOOKUP), {}),
    "'model' drafts a given tree: give a shape": (tree(BUDGET), {}),
    "methods[0].shape.branching = 2: the draft source 'jacobi' drafts chains": (
        tree(BUDGET | {"branching": 2, "size": 8}, draft={"source": "jacobi"}), {}
    ),
    "shortest = 3 is more than longest = 2": (
        tree(BUDGET, draft={"source": "retrieval", "datastore": "x", "shortest": 3, "longest": 2}), {}
    ),
    "methods[0].draft.files is missing": (tree(BUDGET, draft={"source": "documents"}), {}),
    "methods[0].law: the draft source 'lookup' does not support iid; it supports deterministic": (
        tree(BUDGET, law="iid", **LOOKUP), {}
    ),
    "needs a size: its nodes": (tree(BUDGET | {"branching": 2}, **LOOKUP), {}),
    "needs a draft model, but models.draft is 'none'": (tree(CHAIN), {"models": {"draft": "none"}}),
    "assisted generation needs a draft model": (
        {"kind": "assisted"}, {"models": {"draft": "none"}}
    ),
    "search measures models.draft, which is 'none'": (
        tree(BUDGET, **LOOKUP), {"models": {"draft": "none"}, "search": {}}
    ),
    "methods[0].draft: source = strings drafts with a model of another tokenizer, which "
    "models.other_tokenizer = false refuses: set": (tree(CHAIN, **STRINGS), {}),
    "methods[0].shape: the draft source 'strings' fills fixed shapes, and 'dyspec' grows": (
        tree({"kind": "dyspec", "size": 8, "depth": 3}, **STRINGS), OTHER
    ),
    "methods[0].draft.draft: source = strings drafts for the target": (
        tree(BUDGET, draft={"source": "cascade", **STRINGS}), OTHER
    ),
    "these are measured for models.draft": (
        tree({"kind": "optimal", "rates": "measured", "size": 4}, draft={"source": "model", "model": "x"}),
        {"search": {}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_drafted_is_refused_by_name(said):
    method, more = REFUSED[said]
    with pytest.raises(ConfigError) as refused:
        build(config(method, **more))
    assert said in str(refused.value)


def test_a_pair_without_a_draft_and_methods_with_their_own():
    pair = load_pair("embedded", "none")
    assert pair.models == [pair.target]
    own = {"source": "model", "model": "embedded"}
    method = build(config(tree(CHAIN, draft=own), models={"draft": "none"})).methods[0]
    assert (method.own_models, method.by_pair) == (("embedded",), False)
    assert method.name == "model model=embedded chain 4"
    from treespec.experiments.run.models import load_own_drafts, model_data

    models = config(tree(CHAIN, draft=own), models={"draft": "none"}).models
    loaded = load_own_drafts(models, pair, [method])
    assert isinstance(method.drafter(loaded, "T=0"), ModelDrafter)
    data = model_data(models, loaded)
    assert data["draft"]["parameters"] == 0
    assert data["others"]["embedded"]["parameters"] < data["target"]["parameters"]


def test_a_manifest_has_the_hashes_of_files_that_sources_read(tmp_path):
    """So that a run whose files have changed is not resumed."""
    from treespec.experiments.records.changes import drafted

    named = {key: tmp_path / key for key in ("a", "b", "store")}
    for path in named.values():
        path.write_text(path.name)

    def data(**draft):
        (method,) = build(config(tree(BUDGET, draft=draft))).methods
        return method_data(method)

    texts = {"source": "documents", "files": [str(named["a"]), str(named["b"])]}
    before = data(**texts)
    assert set(before["files"]) == {"draft.files[0]", "draft.files[1]"}
    assert all(len(digest) == 64 for digest in before["files"].values())
    named["b"].write_text("changed")
    after = data(**texts)
    assert drafted(before, before) == drafted(before, json.loads(json.dumps(before)))
    assert drafted(before, after) != drafted(after, before)
    store = data(source="retrieval", datastore=str(named["store"]))
    warm = data(source="suffix_tree", warm=str(named["a"]))
    assert (set(store["files"]), set(warm["files"])) == ({"draft.datastore"}, {"draft.warm"})
    assert warm["files"]["draft.warm"] == before["files"]["draft.files[0]"]
    skip = {"source": "layer_skip", "file": str(named["a"])}
    (method,) = build(config(tree(CHAIN, draft=skip))).methods
    assert set(method_data(method)["files"]) == {"draft.file"}
    assert data(source="lookup")["files"] is None
    assert data(source="suffix_tree", warm=str(tmp_path / "none"))["files"] == {"draft.warm": None}


def test_trimmed_drafts_are_in_the_manifest(loaded_pair, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("def walk(tree):\n    return tree\n")
    draft = {"source": "model", "frequent": 16, "texts": [str(texts)]}
    methods = build(config(tree(CHAIN), tree(CHAIN, draft=draft))).methods
    assert set(method_data(methods[1])["files"]) == {"draft.texts[0]"}
    trimmed = trimmed_of(methods, loaded_pair)
    ((name, model),) = trimmed.items()
    assert "frequent=16" in name
    assert len(model.tokens) == 16
    parts = model_data(ModelsConfig(), loaded_pair, trimmed)["parts"]
    assert parts[name]["passes"]["kind"] == "eager"
