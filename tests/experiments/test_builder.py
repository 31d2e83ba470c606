import pytest

from experiments.builder import LAWS, SHAPES, build
from experiments.config import Config, Shape
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


def test_every_shape_of_the_config_can_be_built():
    kinds = Shape.__origin__.__args__
    assert set(SHAPES) == set(kinds)
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
