import pytest
import yaml

from treespec.experiments.config.build import build
from treespec.experiments.config.file import load_config, override
from treespec.experiments.config.files import shipped
from treespec.experiments.errors import ConfigError
from treespec.experiments.sweep.grid import load_grid

BASE = """
name: x
prompts: {kind: embedded, count: 2}
max_new_tokens: 8
samplings: [{temperature: 0}]
methods:
  - {kind: generate}
  - {kind: tree, shape: {kind: kary, branching: 2, depth: 2}}
"""


@pytest.fixture
def write(tmp_path):
    def write(text=BASE, **changes):
        path = tmp_path / "exp.yaml"
        path.write_text(text if not changes else yaml.safe_dump(yaml.safe_load(text) | changes))
        return path

    return write


def complaint(path, *overrides):
    with pytest.raises(ConfigError) as caught:
        build(load_config(path, overrides))
    return str(caught.value)


def test_every_shipped_config_is_valid():
    assert {"smoke", "tree_vs_chain"} <= set(shipped())
    for name, path in shipped().items():
        if "\nsweep:" in path.read_text(encoding="utf-8"):
            assert load_grid(name).jobs  # which builds each of them
        else:
            assert build(load_config(name)).methods


def test_a_misspelt_key_gives_file_path_and_nearest_key(write):
    text = complaint(write(), "methods[1].shape={kind: kary, branchng: 2, depth: 2}")
    assert ": methods[1].shape.branchng: unknown key" in text
    assert "did you mean 'branching'?" in text
    assert len(text.splitlines()) == 1
    assert "max_new_tokens'?" in complaint(write(), "max_new_tokns=3")
    assert "models.enlarg: unknown key; did you mean 'enlarge'?" in complaint(
        write(), "models.enlarg=3"
    )


@pytest.mark.parametrize(
    "text", ["models.grow=50M", "models={grow: 50M}", "models.grow.hidden_size=9"]
)
def test_a_key_that_has_another_name_now_says_so(write, text):
    said = "models.grow: unknown key; models.grow is now models.enlarge"
    assert complaint(write(), text) == f"override {text!r}: {said}"
    path = write(models={"grow": "50M"})
    assert complaint(path) == f"{path}: {said}"


def test_what_an_override_made_wrong_is_not_blamed_on_the_file(write):
    for wrong, blamed in {
        "methods.1.shape=chian:4": "override 'methods.1.shape=chian:4': methods[1].shape",
        "prompts.cuont=2": "override 'prompts.cuont=2': prompts.cuont: unknown key; did you mean 'count'",
        "promts.count=2": "override 'promts.count=2': promts: unknown key; did you mean 'prompts'",
        "methods[1]={kind: tree, shpe: chain:4}": "override 'methods[1]={kind: tree, shpe: ",
    }.items():
        assert complaint(write(), wrong).startswith(blamed)
    said = complaint(write(), "methods.1={kind: tree}", "methods.1.name=a")  # both are parts of it
    assert "override 'methods.1={kind: tree}'" in said
    path = write(max_new_tokens=0)
    with pytest.raises(ConfigError, match=r"exp\.yaml: max_new_tokens = 0"):
        load_config(path, ["seed=3"])


def test_an_unknown_kind_lists_the_kinds(write):
    text = complaint(write(), "methods[1].shape.kind=karry")
    assert "methods[1].shape.kind: unknown kind 'karry'; did you mean 'kary'?" in text
    assert "chain" in text
    assert "independent_chains" in text
    assert "prompts.kind: unknown kind 'web'" in complaint(write(), "prompts.kind=web")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ("max_new_tokens=0", ["max_new_tokens = 0", "greater than or equal to 1"]),
        ("max_new_tokens=-5", ["max_new_tokens = -5"]),
        ("max_new_tokens=true", ["max_new_tokens = True", "integer"]),
        ("max_new_tokens=2.5", ["max_new_tokens = 2.5", "integer"]),
        ("samplings[0].temperature=-1", ["samplings[0].temperature = -1", "greater than or equal"]),
        ("samplings[0].temperature=.nan", ["samplings[0].temperature = nan"]),
        ("samplings[0].top_p=0", ["samplings[0].top_p = 0", "greater than 0"]),
        ("samplings[0].top_p=1.5", ["samplings[0].top_p = 1.5", "less than or equal to 1"]),
        ("samplings=[]", ["samplings", "at least 1 item"]),
        ("methods=[]", ["methods"]),
        ("methods[1].shape.depth=0", ["methods[1].shape.depth = 0"]),
        ("methods[1].shape={kind: chain}", ["methods[1].shape.depth is missing"]),
        ("methods[1].shape=3", ["methods[1].shape", "3"]),
        ("models.dtype=int8", ["models.dtype = 'int8'", "'bfloat16'"]),
        ("prompts.count=0", ["prompts.count = 0"]),
        (
            "methods[1].shape={kind: parents, parents: [-1, 2, 0]}",
            ["methods[1].shape", "parents[1] = 2", "0..0"],
        ),
        (
            "methods[1].shape={kind: parents, parents: [-1, a]}",
            ["methods[1].shape.parents[1] = 'a'", "integer"],
        ),
        (
            "methods[1].shape={kind: paths, paths: [[0, 0]]}",
            ["methods[1].shape", "(0,) is missing"],
        ),
        ("methods[1].law=idd", ["methods[1].law: unknown 'idd'; did you mean 'iid'?"]),
        ("methods[1].rule=rsw", ["methods[1].rule: unknown 'rsw'", "rrsw", "known:"]),
        ("methods[0]={kind: plain, name: 2-ary 2}", ["methods[1]", "'2-ary 2'", "name"]),
        ("samplings=[{temperature: 0}, {temperature: 0.0}]", ["samplings[1]", "T=0 appears twice"]),
    ],
)
def test_wrong_values_name_path_value_and_what_is_allowed(write, change, parts):
    text = complaint(write(), change)
    assert text.startswith((f"override {change!r}", "methods", "samplings")), text
    for part in parts:
        assert part in text


def test_rules_that_do_not_cover_the_law_are_refused(write):
    hot = "samplings=[{temperature: 1}]"
    text = complaint(write(), hot, "methods[1].law=deterministic", "methods[1].rule=rrs")
    assert "methods[1]: rule 'rrs' does not cover children of law deterministic" in text
    assert "needs a chain" in complaint(write(), hot, "methods[1].rule=chain")
    assert "'greedy' needs temperature 0" in complaint(write(), hot, "methods[1].rule=greedy")


def test_overrides_reach_everywhere():
    data = yaml.safe_load(BASE)
    changed = override(data, "methods.1.shape.depth=5")
    assert changed["methods"][1]["shape"]["depth"] == 5
    assert data["methods"][1]["shape"]["depth"] == 2
    assert override(data, "methods[1].shape.depth=5") == changed
    assert override(data, "models.target=a=b")["models"] == {"target": "a=b"}
    assert override(data, "samplings=[{temperature: 0.5}]")["samplings"] == [{"temperature": 0.5}]
    assert override(data, "prompts.count=")["prompts"]["count"] is None


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("seed", "write key=value"),
        ("=3", "write key=value"),
        ("methods.9.kind=plain", "methods is a list of 2"),
        ("methods.first=3", "'first' is not an index"),
        ("name.first=3", "name is 'x' and has no key 'first'"),
        ("seed=[1", "is not YAML"),
    ],
)
def test_bad_overrides(text, part):
    with pytest.raises(ConfigError, match="override") as caught:
        override(yaml.safe_load(BASE), text)
    assert part in str(caught.value)


def test_files_that_are_no_config(write, tmp_path):
    assert "did you mean 'tree_vs_chain'?" in complaint("tree_vs_chains")
    assert "appears twice" in complaint(write(BASE + "name: y\n"))
    assert "not YAML" in complaint(write("name: [x"))
    with pytest.raises(ConfigError, match=r"override .*key 'a' appears twice"):
        override({}, "x={a: 1, a: 2}")
    assert "a config is a mapping" in complaint(write("- 3\n"))
    assert "is a folder" in complaint(tmp_path)
    (tmp_path / "latin.yaml").write_bytes("name: Übung".encode("latin-1"))
    assert "not UTF-8" in complaint(tmp_path / "latin.yaml")


def test_several_problems_are_told_in_one_go(write):
    text = complaint(write(), "max_new_tokens=0", "samplings[0].temperature=-1")
    assert len(text.splitlines()) == 2
