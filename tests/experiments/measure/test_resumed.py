"""What remains of the measurements of a run that is stopped, resumed, refused or started afresh."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError, PromptError, RunFolderError
from treespec.experiments.measure.searched_run import run
from treespec.experiments.report.page import write_report
from treespec.experiments.report.run import load_run
from treespec.experiments.run import preparation


def test_a_resumed_run_takes_what_was_measured(searching, loaded_pair, tmp_path, monkeypatch):
    from treespec.experiments.run import runner

    config = Config.model_validate(searching)
    _stop_at(monkeypatch, runner, "run_unit", config, tmp_path / "run", loaded_pair)
    search = tmp_path / "run" / "search"
    before = {p.name: p.read_bytes() for p in search.iterdir()}
    names = [
        m["name"] for m in json.loads((search.parent / "manifest.json").read_text())["methods"]
    ]
    unable = replace(run.keywords["searching"], measure=None)  # would fail if it were called
    again = run(config, searching=unable, folder=tmp_path / "run", load=lambda models: loaded_pair)
    assert not again.failures
    assert {path.name: path.read_bytes() for path in search.iterdir()} == before
    assert [method.name for method in load_run(again.folder).methods] == names
    assert run(config, folder=tmp_path / "run", load=lambda models: loaded_pair).already_finished
    (search / "latency.json").unlink()
    assert run(config, folder=tmp_path / "run", load=lambda models: loaded_pair).already_finished
    path = tmp_path / "run" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"finished": None}))
    with pytest.raises(RunFolderError, match=r"latency\.json is missing.*--fresh"):
        run(config, folder=tmp_path / "run", load=lambda models: loaded_pair)


@pytest.mark.slow
def test_measuring_goes_on_where_it_was_stopped(searching, loaded_pair, tmp_path, monkeypatch):
    from treespec.experiments.measure import before_run as measured

    config = Config.model_validate(searching)
    _stop_at(monkeypatch, measured, "profile", config, tmp_path / "run", loaded_pair)
    traces = sorted((tmp_path / "run" / "search").glob("trace-*.npz"))
    assert len(traces) == 3
    before = [path.stat().st_mtime_ns for path in traces]
    monkeypatch.setattr(measured, "trace", _stopped)
    result = run(config, folder=tmp_path / "run", load=lambda models: loaded_pair)
    assert not result.failures
    assert [path.stat().st_mtime_ns for path in traces] == before


def _stopped(*arguments, **options):
    raise KeyboardInterrupt


def _stop_at(monkeypatch, module, name, config, folder, pair):
    """Run until this function is called."""
    with monkeypatch.context() as patch:
        patch.setattr(module, name, _stopped)
        with pytest.raises(KeyboardInterrupt):
            run(config, folder=folder, load=lambda models: pair)


@pytest.mark.parametrize("sizes", [pytest.param([1, 2, 4], marks=pytest.mark.slow), [3, 16]])
def test_trees_that_the_search_did_not_time_do_no_harm(searching, loaded_pair, tmp_path, sizes):
    """Their steps are not predicted; all others are, and the report is written."""
    search = searching["search"] | {"sizes": sizes, "repeats": 1}
    config = Config.model_validate(
        searching | {"methods": searching["methods"][:3], "search": search}
    )
    done = run(config, folder=tmp_path / "run", load=lambda models: loaded_pair)
    names = {row.method for row in load_run(done.folder).predictions}
    assert ("2-ary 2" in names) == (max(sizes) >= 7)
    assert {"plain", "chain 2"} <= names
    assert "plain" in write_report(load_run(done.folder)).read_text()


def test_texts_that_are_gone_by_now_stop_no_resumed_run(searching, loaded_pair, tmp_path):
    """Everything that they were needed for is in the folder."""
    texts = tmp_path / "texts.jsonl"
    texts.write_bytes(Path(searching["search"]["prompts"]["path"]).read_bytes())
    search = searching["search"] | {"repeats": 1}
    search["prompts"] = search["prompts"] | {"path": str(texts)}
    config = Config.model_validate(
        searching | {"methods": searching["methods"][:3], "search": search}
    )
    folder = run(config, folder=tmp_path / "run", load=lambda models: loaded_pair).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"finished": None}))
    lines = (folder / "prompts.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "prompts.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
    texts.unlink()
    assert load_run(run(config, folder=folder, load=lambda models: loaded_pair).folder).finished
    with pytest.raises(PromptError, match=r"texts\.jsonl"):
        run(config, folder=folder, fresh=True, load=lambda models: loaded_pair)
    assert load_run(folder).finished  # refused before anything was deleted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"search": None}, r"methods\[3\]\.shape asks for 'measured' values.*no `search`"),
        ({"search": {"prompts": None}}, "search.prompts: the run's prompts are whole texts"),
    ],
)
def test_what_cannot_be_measured_is_refused(searching, loaded_pair, tmp_path, changes, message):
    config = Config.model_validate(searching | changes)
    with pytest.raises(ConfigError, match=message):
        run(config, folder=tmp_path / "run", load=lambda models: loaded_pair)


def test_a_tree_that_was_not_recorded_is_refused_by_name(searching, loaded_pair, tmp_path):
    wide = {"kind": "optimal", "rates": "measured", "size": 9, "depth": 1}
    methods = [{"kind": "plain"}, {"kind": "tree", "shape": wide}]
    config = Config.model_validate(searching | {"methods": methods})
    with pytest.raises(ConfigError, match=r"methods\[1\]\.shape: .*9"):
        run(config, folder=tmp_path / "run", load=lambda models: loaded_pair)
    kept = {path.name for path in (tmp_path / "run" / "search").iterdir()}
    assert "latency.json" in kept  # nothing that was measured is lost


def test_a_fresh_search_that_is_refused_costs_nothing(searching, loaded_pair, tmp_path):
    """Errors that only the new measurement shows come before the finished run is deleted."""
    plain = {"methods": [{"kind": "plain"}], "search": None}
    before = run(
        Config.model_validate(searching | plain),
        folder=tmp_path / "run",
        load=lambda models: loaded_pair,
    ).folder
    files = {path: path.read_bytes() for path in before.rglob("*") if path.is_file()}
    wide = {"kind": "optimal", "rates": "measured", "size": 9, "depth": 1}
    changes = {"methods": [{"kind": "plain"}, {"kind": "tree", "shape": wide}]}
    config = Config.model_validate(searching | changes)
    with pytest.raises(ConfigError, match=r"methods\[1\]\.shape: .*9"):
        run(config, folder=before, load=lambda models: loaded_pair, fresh=True)
    assert {path: path.read_bytes() for path in before.rglob("*") if path.is_file()} == files


def test_a_fresh_search_whose_start_fails_later_costs_nothing(
    searching, brief, loaded_pair, tmp_path, monkeypatch
):
    """If the warm-up fails after measuring and searching, the finished run is still there."""
    methods = [
        m for m in searching["methods"] if m.get("shape", {"kind": "eagle2"})["kind"] == "eagle2"
    ]
    config = Config.model_validate(searching | {"methods": methods, "search": brief})
    folder = run(config, folder=tmp_path / "run", load=lambda models: loaded_pair).folder
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def fails(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(preparation, "_warm_up", fails)
    with pytest.raises(KeyboardInterrupt):
        run(config, folder=folder, load=lambda models: loaded_pair, fresh=True)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files


def test_a_fresh_search_replaces_what_was_measured(searching, brief, loaded_pair, tmp_path):
    """Measurements are taken outside the folder, but the methods name the files inside it."""
    shapes = ("cost_aware", "eagle2")
    methods = [
        m for m in searching["methods"] if m.get("shape", {"kind": "cost_aware"})["kind"] in shapes
    ]
    config = Config.model_validate(searching | {"methods": methods, "search": brief})
    for fresh in (False, True):
        done = run(config, folder=tmp_path / "run", load=lambda models: loaded_pair, fresh=fresh)
        assert not done.failures
        manifest = json.loads((done.folder / "manifest.json").read_text())
        named = [
            m["growth"][key]
            for m in manifest["methods"]
            if m["growth"]
            for key in FILES
            if m["growth"].get(key)
        ]
        assert len(named) == 3
        assert {Path(name).parent for name in named} == {done.folder / "search"}
        assert all(Path(name).is_file() for name in named)
    stamp = (done.folder / "search" / "config.json").stat()
    again = run(config, folder=tmp_path / "run", load=lambda models: loaded_pair)
    assert again.already_finished
    assert (done.folder / "search" / "config.json").stat().st_mtime_ns == stamp.st_mtime_ns


FILES = ("latency", "calibration")
