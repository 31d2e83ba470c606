"""Plug-ins: registering parts by name, and loading plug-in files."""

import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from treespec import plugin_files, plugins
from treespec.errors import InvalidPlugin
from treespec.experiments.config import schema as _schema  # noqa: F401  (registers our sources)
from treespec.experiments.config import shapes
from treespec.experiments.config.file import load_config
from treespec.experiments.errors import ConfigError
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
        "model", "strings", "early_exit", "layer_skip", "lookup", "documents", "suffix_tree",
        "suffix_automaton", "retrieval", "token_recycling", "lookahead", "jacobi", "medusa", "block",
        "eagle", "eagle3", "mtp", "cascade", "merge", "synthetic",
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
    del sys.modules[file.module]
    load(FOUR)  # again, since rules are pickled by the name of their module
    rule = plugins.parts("rule")["mine"].make
    assert pickle.loads(pickle.dumps(rule)) is rule
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
    "a setting may not be called 'source'": (
        "class S(plugins.Settings):\n    source: int = 1\n"
        "@plugins.drafter('x', settings=S)\ndef make(w, s): ...\n"
    ),
    "must be one line of at most 100 characters": (
        """plugins.metric("'x'" + 98 * 'y', 'one')(len)\n"""
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


def test_another_part_of_the_same_name_is_a_new_version(tmp_path):
    """What was built of the parts, such as the schema of configs, is then built again."""
    load(written(tmp_path, "one.py", "plugins.metric('a', 'one')(len)\n"))
    before = plugins.kept()
    load(written(tmp_path, "two.py", "plugins.metric('a', 'two')(len)\n"))
    version = plugins.version()
    plugins.restore(plugins.kept())
    assert plugins.version() == version
    plugins.restore(before)
    assert plugins.version() > version


def test_who_interrupts_a_file_interrupts_the_program(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        load(written(tmp_path, "long.py", "raise KeyboardInterrupt\n"))


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
    (info / "entry_points.txt").write_text("[treespec.plugins]\na = elsewhere\nb = elsewhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = plugins.kept()
    try:
        plugin_files.load()
        assert plugins.parts("metric")["installed"].plugged
        assert [each.module for each in plugin_files.installed()].count("elsewhere") == 1
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
        shapes._growth(Named(), 1)


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


def test_a_growth_cannot_have_the_name_of_a_shape(tmp_path):
    kinds = {
        get_args(shape.model_fields["kind"].annotation)[0]
        for shape in get_args(get_args(shapes.AnyShape)[0])
    }
    assert kinds == set(plugins.SHAPES)
    file = written(tmp_path, "mine.py", "@plugins.growth('budget')\nclass Grown: ...\n")
    with pytest.raises(InvalidPlugin, match="'budget', which is a shape"):
        load(file)


def test_an_error_that_cannot_be_printed_is_named(tmp_path):
    mute = "class Mute({}):\n    def __str__(self): raise ValueError\n\nraise Mute\n"
    for base in ("ValueError", "plugins.InvalidPlugin"):
        with pytest.raises(InvalidPlugin, match="Mute, whose message cannot be printed"):
            load(written(tmp_path, f"{base[:5]}.py", mute.format(base)))


def test_a_setting_whose_check_fails_at_failing_is_named(tmp_path):
    load(
        written(
            tmp_path,
            "checks.py",
            "from pydantic import field_validator\n\n"
            "class Mute(ValueError):\n    def __str__(self): raise KeyError('odd')\n\n"
            "class S(plugins.Settings):\n    n: int = 3\n"
            "    @field_validator('n')\n    @classmethod\n    def check(cls, n): raise Mute\n\n"
            "@plugins.growth('checked', settings=S)\nclass Checked: ...\n",
        )
    )
    methods = "methods=[{kind: tree, shape: {kind: checked, n: 1}}]"
    with pytest.raises(ConfigError, match="the check of a setting"):
        load_config("smoke", [methods])


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
