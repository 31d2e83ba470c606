"""Plug-ins: registering parts by name, and loading plug-in files."""

import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from treespec import plugin_files, plugins
from treespec.errors import InvalidPlugin
from treespec.experiments.config import schema as _schema  # noqa: F401  (registers our parts)
from treespec.experiments.config import shapes as _ours
from treespec.verify import RULES

FOUR = Path(__file__).parents[1] / "helpers" / "plugins" / "four_parts.py"


@pytest.fixture(autouse=True)
def _as_before():
    yield
    plugin_files.load()


def written(folder, name, text):
    path = folder / name
    path.write_text("from treespec import plugins\n" + text)
    return path


def load(*paths):
    plugin_files.load(plugin_files.read(paths))


def test_ours_are_listed_like_those_of_plug_ins():
    assert list(plugins.parts("rule")) == list(RULES)
    assert list(plugins.parts("source")) == [
        "model", "early_exit", "layer_skip", "lookup", "documents", "suffix_tree", "suffix_automaton",
        "retrieval", "token_recycling", "lookahead", "jacobi", "cascade", "merge",
    ]  # fmt: skip
    assert "eagle2" in plugins.parts("growth")
    load(FOUR)
    for kind, name in (("rule", "mine"), ("source", "repeat"), ("growth", "twins")):
        part = plugins.parts(kind)[name]
        assert part.plugged
        assert part.origin == str(FOUR)
        assert part.about
        assert list(plugins.parts(kind))[-1] == name
    assert plugins.parts("metric")["distinct"].about == "distinct draft tokens per step"
    plugin_files.load()
    assert "mine" not in plugins.parts("rule")
    assert not plugins.parts("metric")


def test_a_file_is_one_module_wherever_it_lies(tmp_path):
    (tmp_path / "copies").mkdir()
    copy = tmp_path / "copies" / FOUR.name
    copy.write_bytes(FOUR.read_bytes())
    load(FOUR)
    rule = plugins.parts("rule")["mine"].make
    load(copy)
    assert plugins.parts("rule")["mine"].make is rule
    (file,) = plugin_files.in_use()
    assert file.module in sys.modules
    assert file.sha256[:16] in file.module
    assert pickle.loads(pickle.dumps(rule)) is rule
    assert str(rule) == "mine"
    load(FOUR, copy)  # the same file twice is one
    assert len(plugin_files.in_use()) == 1


BROKEN = {
    "line 3 cannot be imported": "\n1 / 0\n",
    "line 2 cannot be imported: invalid syntax": "def (:\n",
    "cannot be imported: it ends the program": "raise SystemExit(0)\n",
    "registers nothing": "x = 1\n",
    "registers the source 'lookup', which is one of treespec's own": (
        "@plugins.drafter('lookup')\ndef make(wanted, settings): ...\n"
    ),
    "registers the metric 'm', which is registered by": (
        "plugins.metric('m', 'one')(len)\nplugins.metric('m', 'two')(len)\n"
    ),
    "settings must be a class": "@plugins.drafter('x', settings=dict)\ndef make(w, s): ...\n",
    "must be one of any, budget, chain": (
        "@plugins.drafter('x', trees='bush')\ndef make(w, s): ...\n"
    ),
    "drafter 'x': laws": "@plugins.drafter('x', laws=['lawless'])\ndef make(w, s): ...\n",
    "not an acceptance rule": "@plugins.rule('x')\ndef rule(tree, probs, coins): ...\n",
    "registers the rule 'chain', which is one of treespec's own": (
        "from treespec.verify import rrs\nplugins.rule('chain')(rrs)\n"
    ),
    "a setting may not be called 'kind'": (
        "class S(plugins.Settings):\n    kind: int = 1\n"
        "@plugins.growth('x', settings=S)\nclass G: ...\n"
    ),
    "something that cannot be called": "plugins.growth('x')(3)\n",
}


@pytest.mark.parametrize("said", BROKEN)
@pytest.mark.usefixtures("without_shape_checks")
def test_a_file_that_cannot_be_taken_changes_nothing(said, tmp_path):
    load(FOUR)
    path = written(tmp_path, "broken.py", BROKEN[said])
    before = plugins.kept()
    with pytest.raises(InvalidPlugin) as refused:
        load(path)
    assert said in str(refused.value)
    assert "broken.py" in str(refused.value) or "'x'" in str(refused.value)
    assert plugins.kept() == before
    assert not any("broken" in name for name in sys.modules if name.startswith("treespec_plugin"))


def test_files_that_are_none(tmp_path):
    with pytest.raises(InvalidPlugin, match=r"nowhere\.py"):
        load(tmp_path / "nowhere.py")
    with pytest.raises(InvalidPlugin, match="must be a Python file"):
        load(tmp_path)
    (tmp_path / "other").mkdir()
    one = written(tmp_path, "same.py", "plugins.metric('a', 'a')(len)\n")
    two = written(tmp_path / "other", "same.py", "plugins.metric('b', 'b')(len)\n")
    with pytest.raises(InvalidPlugin, match=r"two plug-ins are called same\.py"):
        load(one, two)


def test_two_files_may_not_share_a_name(tmp_path):
    one = written(tmp_path, "one.py", "plugins.metric('a', 'a')(len)\n")
    two = written(tmp_path, "two.py", "plugins.metric('a', 'b')(len)\n")
    with pytest.raises(InvalidPlugin, match=r"two\.py registers the metric 'a', .*one\.py"):
        load(one, two)
    load(two)  # alone it is fine


def test_installed_plug_ins_are_loaded_by_their_entry_point(tmp_path, monkeypatch):
    package = tmp_path / "elsewhere.py"
    package.write_text("from treespec import plugins\nplugins.metric('installed', 'one')(len)\n")
    info = tmp_path / "elsewhere-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[treespec.plugins]\nelsewhere = elsewhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = plugins.kept()
    try:
        plugin_files.load()
        assert plugins.parts("metric")["installed"].plugged
    finally:
        plugins.restore(before)


def test_a_growth_that_does_not_take_its_settings_is_named(tmp_path):
    path = written(
        tmp_path, "bare.py",
        "class S(plugins.Settings):\n    n: int = 3\n\n"
        "@plugins.growth('bare', settings=S)\nclass Bare:\n    'Takes nothing.'\n",
    )  # fmt: skip
    load(path)
    with pytest.raises(InvalidPlugin, match=r"growth 'bare' of .*bare.py: .*takes no arguments"):
        _ours._growth(Named())


class Named:
    """The settings of a shape, as pydantic returns them."""

    kind = "bare"

    def __iter__(self):
        return iter([("kind", "bare"), ("n", 3)])


def test_a_default_of_the_wrong_type_is_refused(tmp_path):
    path = written(
        tmp_path, "wrong.py",
        "class S(plugins.Settings):\n    n: int = 'three'\n\n"
        "@plugins.growth('wrong', settings=S)\nclass Wrong:\n    'Wrong.'\n",
    )  # fmt: skip
    load(path)
    with pytest.raises(ValidationError, match="valid integer"):
        plugins.parts("growth")["wrong"].settings()


def test_a_part_that_is_replaced_under_its_name_is_a_new_version():
    """Else a config would be validated by the settings of the part before."""
    load(FOUR)
    state, before = plugins.kept(), plugins.version()
    plugins.restore(state)
    assert plugins.version() == before
    plugins.restore(state | {("rule", "mine"): replace(state["rule", "mine"], about="another")})
    assert plugins.version() == before + 1


def test_a_part_with_settings_of_ours_is_not_ours(tmp_path):
    """It would not be proved, and would stay when its file is dropped."""
    code = (
        "from treespec.experiments.config.sources import LookupDraft\n"
        "@plugins.drafter('mine', settings=LookupDraft)\ndef make(w, s): ...\n"
    )
    load(written(tmp_path, "reuses.py", code))
    assert plugins.parts("source")["mine"].plugged
    plugin_files.load()
    assert "mine" not in plugins.parts("source")
