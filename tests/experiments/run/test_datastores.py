"""Datastores that a config names: built once if it allows that, and otherwise missed before models load."""

import re
from pathlib import Path

import pytest

from treespec.draft import Datastore
from treespec.experiments.config.build import build
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError
from treespec.experiments.run import passes
from treespec.experiments.run.datastores import missing_datastores
from treespec.experiments.run.passes import load_with_passes
from treespec.experiments.run.progress import Reporter
from treespec.models.load import load_pair

BUDGET = {"kind": "budget", "depth": 2}


def methods(*drafts, shape=BUDGET):
    config = {
        "name": "x",
        "models": {"target": "embedded"},
        "prompts": {"kind": "embedded"},
        "max_new_tokens": 4,
        "samplings": [{"temperature": 0}],
        "methods": [
            {"kind": "tree", "name": f"{i}", "draft": draft, "shape": shape}
            for i, draft in enumerate(drafts)
        ],
    }
    config = Config.model_validate(config)
    return config, build(config).methods


def retrieval(path, **more):
    return {"source": "retrieval", "datastore": str(path)} | more


@pytest.fixture
def code(tmp_path, monkeypatch):
    file = tmp_path / "code.py"
    file.write_text("for i in range(10):\n    print(i)\n" * 9)
    monkeypatch.setattr(passes, "installed_code", lambda: [file])


def test_a_missing_datastore_is_built_once(tmp_path, code):
    path = tmp_path / "new" / "store"
    config, built = methods(retrieval(path, most_tokens=40), retrieval(path, most_tokens=40))
    pair = load_pair("embedded")
    load_with_passes(config.models, built, lambda _: pair, Reporter(None))
    assert Datastore(path).about["tokens"] == 41  # and the end of the text
    before = path.stat().st_mtime_ns
    load_with_passes(config.models, built, lambda _: pair, Reporter(None))
    assert path.stat().st_mtime_ns == before


def test_a_datastore_inside_a_merge_is_found(tmp_path):
    sources = [{"source": "lookup"}, retrieval(tmp_path / "store", most_tokens=7)]
    draft = {"source": "merge", "sources": sources, "budgets": {"lookup": 2, "retrieval": 2}}
    _, built = methods(draft, shape=BUDGET | {"size": 5, "branching": 2})
    assert missing_datastores(built) == {tmp_path / "store": 7}


def test_a_missing_datastore_is_an_error_before_models_load(tmp_path):
    config, built = methods(retrieval(tmp_path / "my store"))
    said = re.escape(f"0: datastore = '{tmp_path}/my store': there is no such file") + ".*build '"
    with pytest.raises(ConfigError, match=said):
        load_with_passes(config.models, built, pytest.fail, Reporter(None))
    Path(tmp_path / "my store").touch()
    assert missing_datastores(built) == {}
