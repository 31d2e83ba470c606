"""Datastores that a config names: built once if it allows that, and otherwise missed before models load."""

import json
from io import StringIO
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from treespec.draft import Datastore
from treespec.experiments.config.build import build
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError, RunFolderError
from treespec.experiments.measure.searched_run import run
from treespec.experiments.run import datastores
from treespec.experiments.run.datastores import missing_datastores
from treespec.experiments.run.passes import load_with_passes
from treespec.experiments.run.progress import Reporter
from treespec.experiments.sweep.grid import load_grid
from treespec.experiments.sweep.sweep import ready_jobs, require_models
from treespec.models.load import load_pair

BUDGET = {"kind": "budget", "depth": 2}


SETTINGS = {
    "name": "x",
    "models": {"target": "embedded"},
    "prompts": {"kind": "embedded", "count": 1, "tokens": 16},
    "max_new_tokens": 4,
    "samplings": [{"temperature": 0}],
}


def methods(*drafts, shape=BUDGET):
    trees = [
        {"kind": "tree", "name": f"{i}", "draft": draft, "shape": shape}
        for i, draft in enumerate(drafts)
    ]
    config = Config.model_validate(SETTINGS | {"methods": trees})
    return config, build(config).methods


def retrieval(path, **more):
    return {"source": "retrieval", "datastore": str(path)} | more


@pytest.fixture
def code(tmp_path, monkeypatch):
    file = tmp_path / "code.py"
    file.write_text("for i in range(10):\n    print(i)\n" * 9)
    monkeypatch.setattr(datastores, "installed_code", lambda: [file])
    monkeypatch.chdir(tmp_path)
    return file


def test_a_missing_datastore_is_built_once(code):
    path = Path("runs/store")
    config, built = methods(*2 * [retrieval(path, most_tokens=40)])
    pair, said = load_pair("embedded"), Console(file=StringIO(), width=200)
    load_with_passes(config.models, built, lambda _: pair, Reporter(said))
    assert Datastore(path).about["tokens"] == 41  # and the end of the text
    assert "built runs/store: 41 tokens of 1 files" in said.file.getvalue()
    before = path.stat().st_mtime_ns
    load_with_passes(config.models, built, lambda _: pair, Reporter(None))
    assert path.stat().st_mtime_ns == before


def test_a_datastore_inside_a_merge_is_found(code):
    sources = [{"source": "lookup"}, retrieval("runs/store", most_tokens=7)]
    draft = {"source": "merge", "sources": sources, "budgets": {"lookup": 2, "retrieval": 2}}
    _, built = methods(draft, shape=BUDGET | {"size": 5, "branching": 2})
    assert missing_datastores(built) == {Path("runs/store"): 7}


def test_what_cannot_be_built_is_an_error_before_models_load(code):
    for said, drafts in {
        "method '0': draft.datastore = 'my store': there is no such file. .* build 'my store'": [
            retrieval("my store")
        ],
        "builds one in runs/ only: name it runs/store": [retrieval("sweeps/store", most_tokens=7)],
        "another method builds this file with 7": [
            retrieval("runs/store", most_tokens=most) for most in (7, 8)
        ],
    }.items():
        config, built = methods(*drafts)
        with pytest.raises(ConfigError, match=said):
            load_with_passes(config.models, built, pytest.fail, Reporter(None))
    Path("my store").touch()
    assert missing_datastores(methods(retrieval("my store"))[1]) == {}


def test_a_run_resumed_without_its_datastore_needs_the_same_one_again(code):
    config, _ = methods(retrieval("runs/store", most_tokens=40))
    done = run(config, folder=Path("runs/x")).folder
    manifest = json.loads((done / "manifest.json").read_text())
    (done / "manifest.json").write_text(json.dumps(manifest | {"finished": None}))
    (done / "prompts.parquet").unlink()
    Path("runs/store").unlink()
    run(config, folder=done)  # the packages are the same, and so is what is built of them
    (done / "manifest.json").write_text(json.dumps(manifest | {"finished": None}))
    Path("runs/store").unlink()
    code.write_text("another text\n" * 9)
    with pytest.raises(RunFolderError, match=r"draft\.datastore"):
        run(config, folder=done)


def test_a_sweep_builds_it_once_before_its_jobs(code):
    draft = retrieval("runs/store", most_tokens=40)
    trees = [{"kind": "tree", "draft": draft, "shape": BUDGET}]
    config = SETTINGS | {"methods": trees, "sweep": {"seed": [0, 1]}}
    Path("x.yaml").write_text(yaml.safe_dump(config))
    grid = load_grid(Path("x.yaml"))
    require_models(grid, grid.jobs, ready_jobs(grid), Reporter(None))
    assert Datastore("runs/store").about["tokens"] == 41
