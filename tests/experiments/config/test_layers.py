"""Sources that are a part of the target, in configs: built, or rejected before the first token."""

import pytest

from treespec.draft import EarlyExit, LayerSkip, Merge
from treespec.draft.skip_set import SkipSet
from treespec.experiments.config.build import build
from treespec.experiments.config.file import validated
from treespec.experiments.errors import ConfigError
from treespec.experiments.run.inputs import require_fits
from treespec.models.load import load_pair
from treespec.models.outline import outline_pair
from treespec.models.variants.sublayers import Sublayer


def experiment(draft, shape="kary:2x3", **more):
    data = {
        "name": "layers",
        "models": {"draft": "none", **more},
        "prompts": {"kind": "embedded", "count": 1},
        "max_new_tokens": 8,
        "samplings": [{"temperature": 0}, {"temperature": 1}],
        "methods": [{"kind": "tree", "draft": draft, "shape": shape}],
    }
    return build(validated("test.yaml", data))


@pytest.fixture(scope="module")
def pair():
    return load_pair("embedded", "none")


@pytest.fixture(scope="module")
def outline():
    return outline_pair("embedded", "none")


def saved(folder, layers=5, target="", skip=("mlp.1", "attention.3")):
    path = folder / f"skip-{layers}-{target[-8:]}.json"
    found = SkipSet(layers=layers, target=target, skip=skip, acceptance=0.5, tokens=9, tried=3)
    found.save(path)
    return str(path)


def test_each_is_made_along_its_shape(pair, tmp_path):
    wanted = {Sublayer(1, "mlp"), Sublayer(3, "attention")}
    for draft, kind, about in (
        ({"source": "early_exit", "layers": 2}, EarlyExit, 2),
        ({"source": "layer_skip", "skip": ["mlp.1", "attention.3"]}, LayerSkip, wanted),
        (
            {"source": "layer_skip", "file": saved(tmp_path, target=pair.target.fingerprint)},
            LayerSkip,
            wanted,
        ),
        ({"source": "layer_skip", "skip": []}, LayerSkip, set()),
    ):
        built = experiment(draft)
        require_fits(built, pair, [])
        (method,) = built.methods
        assert (method.by_pair, method.own_models, method.max_depth) == (False, (), 3)
        drafter = method.drafter(pair, "T=1")
        assert type(drafter) is kind
        assert (drafter.layers if kind is EarlyExit else drafter.skip) == about
        assert [str(c.rule) for c in method.choices.values()] == ["greedy", "rrsw"]
    assert (
        experiment({"source": "early_exit", "layers": 2})
        .methods[0]
        .name.startswith("early_exit layers=2 ")
    )


AT_THE_DOOR = {
    "layers = 6, but the target has 5 layers": {"source": "early_exit", "layers": 6},
    "skip names mlp.5, but the model has 5 layers": {"source": "layer_skip", "skip": ["mlp.5"]},
    "names every sublayer": {
        "source": "layer_skip",
        "skip": [f"{part}.{i}" for i in range(5) for part in ("attention", "mlp")],
    },
    "No such file": {"source": "layer_skip", "file": "none.json"},
}


@pytest.mark.parametrize("said", AT_THE_DOOR)
def test_what_the_target_lacks_is_refused_before_its_weights_are_read(said, outline):
    built = experiment(AT_THE_DOOR[said])
    with pytest.raises(ConfigError, match=said) as refused:
        require_fits(built, outline, [])
    assert str(refused.value).startswith("methods[0].draft: ")


def test_a_file_of_another_model_is_refused(outline, tmp_path):
    built = experiment({"source": "layer_skip", "file": saved(tmp_path, layers=32)})
    with pytest.raises(ConfigError, match="for a model of 32 layers, but the target has 5"):
        require_fits(built, outline, [])


def test_a_file_of_another_model_with_as_many_layers_is_refused(pair, outline, tmp_path):
    """Before the first token; an outline has no weights, so only layers can be compared."""
    for said, target in {
        r"searched for another model \(A of 3 parameters, weights 01\)": "A of 3 parameters, weights 01",
        "does not say which model it was searched for": "",
    }.items():
        built = experiment({"source": "layer_skip", "file": saved(tmp_path, target=target)})
        require_fits(built, outline, [])
        with pytest.raises(ConfigError, match=said) as refused:
            require_fits(built, pair, [])
        assert str(refused.value).startswith(f"methods[0].draft: {tmp_path}")
        assert f"the target is {pair.target.fingerprint}" in str(refused.value)


def test_what_means_nothing_is_refused_by_key():
    for said, draft in {
        "methods[0].draft.layers = 0: must be greater": {"source": "early_exit", "layers": 0},
        "methods[0].draft.layers is missing": {"source": "early_exit"},
        "'mlp' is not a sublayer": {"source": "layer_skip", "skip": ["mlp"]},
        "give skip, such as": {"source": "layer_skip"},
        "and not both": {"source": "layer_skip", "skip": [], "file": "x"},
    }.items():
        with pytest.raises(ConfigError) as refused:
            experiment(draft)
        assert said in str(refused.value)


def test_layers_that_change_nothing_are_no_draft():
    draft = {"source": "early_exit", "layers": 2}
    for enlarge in ("50M", 50_000_000, {"num_hidden_layers": 9}):
        with pytest.raises(ConfigError, match=r"methods\[0\]\.draft: models\.enlarge adds layers"):
            experiment(draft, enlarge=enlarge)
    experiment(draft, enlarge={"hidden_size": 768})


def test_an_architecture_that_cannot_is_refused_with_its_key(pair, monkeypatch):
    from treespec.errors import UnsupportedModel

    def refuse(skip):
        raise UnsupportedModel("x models cannot skip layers")

    monkeypatch.setattr(pair.target, "without", refuse)
    with pytest.raises(ConfigError, match=r"methods\[0\]\.draft: x models cannot"):
        require_fits(experiment({"source": "early_exit", "layers": 2}), pair, [])


def test_within_a_merge(pair, outline, tmp_path):
    """Checked before weights are loaded, and built once they are."""

    def merged(layers):
        sources = [{"source": "early_exit", "layers": layers}, {"source": "lookup"}]
        return experiment(
            {"source": "merge", "sources": sources, "rates": [[[0.8, 0.1]], [[0.5]]]},
            shape={"kind": "budget", "depth": 3, "size": 6, "branching": 2},
        )

    for models in (outline, pair):
        require_fits(merged(2), models, [])
        with pytest.raises(ConfigError, match=r"methods\[0\].*layers = 6, but the target has 5"):
            require_fits(merged(6), models, [])
    assert type(merged(2).methods[0].drafter(pair, "T=1")) is Merge
