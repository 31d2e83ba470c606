import json

import pytest

from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError
from treespec.experiments.run.ranks import folder_of_rank, rank


@pytest.fixture
def config(settings):
    def make(**changes):
        methods = [{"kind": "plain"}, {"kind": "assisted", "lengths": [2], "thresholds": [0.0]}]
        models = settings["models"] | {"tensor_parallel": True}
        return Config.model_validate(settings | {"models": models, "methods": methods} | changes)

    return make


@pytest.fixture
def second(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")


def test_outside_of_torchrun(config, tmp_path, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("RANK", "3")
    assert rank() == 0
    assert folder_of_rank(config(), tmp_path) == tmp_path


@pytest.mark.usefixtures("second")
def test_the_second_process_writes_a_copy_that_knows_what_is_finished(config, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("manifest.json", "prompts.jsonl", "steps.jsonl", "report.html"):
        (folder / name).write_text(name)
    copy = folder_of_rank(config(), folder)
    assert copy != folder
    assert sorted(path.name for path in copy.iterdir()) == [
        "manifest.json",
        "prompts.jsonl",
        "steps.jsonl",
    ]
    (copy / "manifest.json").write_text(json.dumps({}))
    assert (folder / "manifest.json").read_text() == "manifest.json"
    assert list(folder_of_rank(config(), tmp_path / "new").iterdir()) == []


@pytest.mark.usefixtures("second")
def test_ordinary_runs_are_left_alone(config, tmp_path, settings):
    assert folder_of_rank(Config.model_validate(settings), tmp_path) == tmp_path


def test_what_the_clock_would_choose_is_refused(config, tmp_path):
    tuned = [{"kind": "assisted", "lengths": [2, 4]}]
    with pytest.raises(ConfigError, match="several lengths"):
        folder_of_rank(config(methods=tuned), tmp_path)
    with pytest.raises(ConfigError, match="search"):
        folder_of_rank(config(search={}), tmp_path)
