"""Spelled shapes mean the same on the command line, in configs and in overrides."""

from typing import get_args

import pytest
import yaml
from pydantic import TypeAdapter

from treespec import plugins
from treespec.experiments.config.build import build
from treespec.experiments.config.file import load_config
from treespec.experiments.config.shapes import AnyShape, Shape, label_of_shape, tree_of
from treespec.experiments.config.spellings import SPELLINGS, examples, examples_near
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure.replays import read_shapes
from treespec.experiments.records.manifest import config_hash

SHAPE = TypeAdapter(Shape)

MEANT = {
    "chain:4": {"kind": "chain", "depth": 4},
    "kary:2x3": {"kind": "kary", "branching": 2, "depth": 3},
    "chains:2x4": {"kind": "independent_chains", "width": 2, "depth": 4},
    "independent_chains:2x4": {"kind": "independent_chains", "width": 2, "depth": 4},
    "expansion:3x2x1": {"kind": "expansion", "branching": [3, 2, 1]},
    "optimal:16": {"kind": "optimal", "rates": "measured", "size": 16},
}


@pytest.mark.parametrize("text", MEANT)
def test_a_spelling_is_its_mapping(text):
    assert SHAPE.validate_python(text) == SHAPE.validate_python(MEANT[text])


def test_both_ways_make_the_same_config():
    short = load_config("smoke", ["methods.3.shape=expansion:3x2x1", "methods.6.shape=chain:4"])
    long = load_config(
        "smoke", ["methods.3.shape={kind: expansion, branching: [3, 2, 1]}", "methods.6.shape=chain:4"]
    )  # fmt: skip
    assert short == long
    assert config_hash(short) == config_hash(long)
    assert load_config("smoke", ["methods.3.shape=kary:2x3", "methods.3.shape.depth=5"]).methods[
        3
    ].shape == SHAPE.validate_python("kary:2x5")


def test_in_a_file_and_in_flow_style(tmp_path):
    path = tmp_path / "short.yaml"
    path.write_text(
        "name: short\nprompts: {kind: embedded, count: 1}\nmax_new_tokens: 2\n"
        "samplings: [{temperature: 0}]\nmethods:\n- {kind: tree, shape: kary:2x3}\n"
        "- kind: tree\n  shape: chain:4\n"
    )
    assert [method.name for method in build(load_config(path)).methods] == ["2-ary 3", "chain 4"]


@pytest.mark.parametrize("text", [t for t in MEANT if not t.startswith("optimal")])
def test_the_command_line_reads_the_same_trees(text):
    shape = SHAPE.validate_python(text)
    assert read_shapes(text)[text] == tree_of(shape)


def test_what_must_be_searched_is_no_tree_to_replay():
    with pytest.raises(ConfigError, match=r"'optimal:16' is not a tree .it needs acceptance rates"):
        read_shapes("optimal:16")


def test_a_searched_tree_asks_for_a_search():
    with pytest.raises(ConfigError, match="add `search: "):
        build(load_config("smoke", ["methods.3.shape=optimal:16"]))
    assert build(load_config("smoke", ["methods.3.shape=optimal:16", "search={}"]))


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("kary:2", ["takes 2 numbers (branching x depth), not 1", "or kary:2x3"]),
        ("kary:2xx", ["whole numbers separated by x", "{kind: kary, branching: 2, depth: 3}"]),
        ("karry:2x3", ["not a spelling of a shape", "or kary:2x3"]),
        ("eagle2:4x6", ["not a spelling of a shape", "{kind: eagle2, k: 4, depth: 6, size: 16}"]),
        ("kary:2x9999", ["16,384 nodes", "kary:2x3"]),
        ("nonsense", ["chain:4", "kary:2x3", "expansion:3x2x1"]),
        ("{kind: chain}", ["depth is missing", "{kind: chain, depth: 4} or chain:4"]),
        ("{kind: eagle}", ["{kind: eagle2, k: 4, depth: 6, size: 16}"]),
        ("{depth: 4}", ["a mapping with a 'kind'", "chain:4"]),
        ("3", ["kary:2x3"]),
    ],
)
def test_a_wrong_shape_is_answered_with_an_example(given, parts):
    with pytest.raises(ConfigError) as caught:
        load_config("smoke", [f"methods.3.shape={given}"])
    assert "methods[3].shape" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    for part in parts:
        assert part in str(caught.value)


def test_every_kind_has_an_example_that_is_one():
    shapes = get_args(get_args(AnyShape)[0])
    kinds = {get_args(shape.model_fields["kind"].annotation)[0] for shape in shapes}
    growths = {name for name, part in plugins.parts("growth").items() if not part.plugged}
    assert set(examples()) == (kinds | growths) - {"budget"}
    for kind, text in examples().items():
        shape = SHAPE.validate_python(yaml.safe_load(text))
        assert shape.kind == kind
        assert label_of_shape(shape)
        assert text in examples_near({"kind": kind})
    for text, _ in SPELLINGS.values():
        assert SHAPE.validate_python(text)
