from types import SimpleNamespace

import pytest

from treespec.draft import ModelDrafter, NoDrafter
from treespec.experiments.config.build import LAWS, build
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError
from treespec.testing import TabularModel, random_table
from treespec.tree import Law, TreeShape


def experiment(*methods, temperatures=(0, 1)):
    return build(
        Config.model_validate(
            {
                "name": "x",
                "prompts": {"kind": "embedded"},
                "max_new_tokens": 4,
                "samplings": [{"temperature": t} for t in temperatures],
                "methods": list(methods),
            }
        )
    )


def tree(kind, law=None, rule=None, **shape):
    return {"kind": "tree", "shape": {"kind": kind, **shape}, "law": law, "rule": rule}


@pytest.mark.parametrize(
    ("method", "name", "shape"),
    [
        (tree("chain", depth=4), "chain 4", TreeShape.chain(4)),
        (tree("kary", branching=2, depth=3), "2-ary 3", TreeShape.kary(2, 3)),
        (tree("expansion", branching=[3, 2, 1]), "expansion 3x2x1", TreeShape.expansion([3, 2, 1])),
        (
            tree("independent_chains", width=4, depth=3),
            "4 chains x 3",
            TreeShape.independent_chains(4, 3),
        ),
        (tree("parents", parents=[-1, 0, 1]), "tree of 3", TreeShape.chain(2)),
        (tree("paths", paths=[[0], [1], [0, 0]]), "tree of 4", TreeShape((-1, 0, 0, 1))),
        (tree("chain", depth=2, rule="naive"), "chain 2 (naive)", TreeShape.chain(2)),
    ],
)
def test_names_and_shapes(method, name, shape):
    (built,) = experiment(method).methods
    assert (built.name, built.shape) == (name, shape)


@pytest.mark.parametrize(
    ("method", "cold", "hot"),
    [
        (tree("chain", depth=2), ("deterministic", "greedy"), ("iid", "chain")),
        (
            tree("kary", branching=2, depth=2),
            ("deterministic", "greedy"),
            ("without_replacement", "rrsw"),
        ),
        (tree("kary", branching=2, depth=2, law="iid"), ("iid", "greedy"), ("iid", "rrs")),
        (
            tree("kary", branching=2, depth=2, law="deterministic"),
            ("deterministic", "greedy"),
            ("deterministic", "onehot"),
        ),
        (tree("kary", branching=2, depth=2, rule="rrs"), ("iid", "rrs"), ("iid", "rrs")),
        (
            tree("kary", branching=2, depth=2, rule="naive"),
            ("deterministic", "naive"),
            ("without_replacement", "naive"),
        ),
        ({"kind": "plain"}, ("deterministic", "greedy"), ("deterministic", "naive")),
    ],
)
def test_law_and_rule_by_temperature(method, cold, hot):
    (built,) = experiment(method).methods
    for name, expected in (("T=0", cold), ("T=1", hot)):
        choice = built.choices[name]
        assert (str(choice.law), str(choice.rule)) == expected
    assert built.lossless


@pytest.mark.parametrize(
    ("rule", "law"),
    [
        ("kseq", "iid"),
        ("canonical", "iid"),
        ("gbv", "iid"),
        ("traversal", "without_replacement"),
        ("greedy_multidraft", "top_then_sample"),
        ("spechub", "hub"),
    ],
)
def test_a_rule_brings_its_law_and_a_law_its_rule(rule, law):
    shape = {"width": 2, "depth": 2}
    (built,) = experiment(tree("independent_chains", rule=rule, **shape), temperatures=(1,)).methods
    assert str(built.choices["T=1"].law) == law
    if law in ("top_then_sample", "hub"):
        (built,) = experiment(tree("chain", law=law, depth=2), temperatures=(1,)).methods
        assert str(built.choices["T=1"].rule) == rule


def test_lossy_rules_say_so_and_take_settings():
    method = tree("chain", depth=2, rule="lenient") | {"settings": {"lenience": 0.25}}
    (built,) = experiment(method, temperatures=(1,)).methods
    assert built.name == "chain 2 (lenient) (lossy)"
    assert not built.lossless
    assert built.choices["T=1"].rule.settings == {"lenience": 0.25}


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (tree("kary", branching=3, depth=1, rule="spechub"), "3 children.*'hub' gives one or two"),
        (tree("kary", branching=2, depth=2, rule="gbv"), "'gbv' needs paths of one length"),
        (tree("kary", branching=2, depth=2, rule="block"), "'block' needs a chain"),
        (
            tree("chain", depth=2, rule="kseq", law="hub"),
            "'kseq' does not cover children of law hub",
        ),
        (
            tree("chain", depth=2, rule="kseq") | {"settings": {"lenience": 0.5}},
            "'kseq' has no setting 'lenience'",
        ),
    ],
)
def test_what_a_rule_does_not_cover_is_refused_at_the_door(method, message):
    with pytest.raises(ConfigError, match=message):
        experiment(method, temperatures=(1,))


def test_every_law_has_a_name():
    assert set(LAWS.values()) == set(Law)


def test_sampling_names():
    config = {"temperature": 0.8, "top_p": 0.9, "top_k": 40}
    built = build(
        Config.model_validate(
            {
                "name": "x",
                "prompts": {"kind": "embedded"},
                "max_new_tokens": 4,
                "samplings": [config],
                "methods": [{"kind": "plain"}],
            }
        )
    )
    assert list(built.samplings) == ["T=0.8, top_k=40, top_p=0.9"]


def test_a_method_brings_its_drafter():
    """`NoDrafter` for plain decoding; else a drafter of the method's tree by the setting's law."""
    model = TabularModel(random_table(4, 0), 4)
    pair = SimpleNamespace(target=model, draft=model)
    plain, drafting = experiment({"kind": "plain"}, tree("kary", branching=2, depth=1)).methods
    laws = {"T=0": Law.DETERMINISTIC, "T=1": Law.WITHOUT_REPLACEMENT}
    for name, law in laws.items():
        assert isinstance(plain.drafter(pair, name), NoDrafter)
        drafter = drafting.drafter(pair, name)
        assert isinstance(drafter, ModelDrafter)
        assert (drafter.law, drafter.sampling) == (law, drafting.choices[name].sampling)
        assert drafter.sampling.greedy == (name == "T=0")
        assert drafter.growth.shape == drafting.shape
