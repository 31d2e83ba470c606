"""What is checked of an experiment before a model is loaded."""

import pytest

from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError, PromptError
from treespec.experiments.run.session import ready

PLAIN = {"kind": "plain"}
ASSISTED = {"kind": "assisted", "lengths": [2, 4], "thresholds": [0.0], "tune_prompts": 3}
BEST = {"kind": "tree", "shape": {"kind": "best", "max_size": 8}}


def config(**changes):
    data = {
        "name": "tiny",
        "models": {"target": "embedded"},
        "prompts": {"kind": "embedded", "count": 4, "tokens": 8},
        "max_new_tokens": 8,
        "samplings": [{"temperature": 0}],
        "methods": [PLAIN],
    }
    return Config.model_validate(data | changes)


def test_measured_prompts_and_those_for_tuning():
    checked = ready(config(methods=[PLAIN, ASSISTED]), print)
    assert (len(checked.measured), len(checked.spare)) == (4, 3)
    assert [m.name for m in checked.experiment.methods] == ["plain", "assisted"]


@pytest.mark.parametrize(
    ("error", "part", "changes"),
    [
        (PromptError, "missing.txt", {"prompts": {"kind": "text", "path": "missing.txt"}}),
        (
            PromptError,
            "tuning assisted generation needs 3 prompts",
            {"methods": [PLAIN, ASSISTED], "prompts": {"kind": "embedded", "tokens": 8}},
        ),
        (
            ConfigError,
            "whole texts",
            {"methods": [BEST], "search": {}, "prompts": {"kind": "embedded"}},
        ),
        (ConfigError, "has no `search`", {"methods": [BEST]}),
    ],
)
def test_what_a_user_can_mend_is_told_without_a_model(error, part, changes):
    with pytest.raises(error, match=part):
        ready(config(**changes), print)


def test_turns_that_are_not_read_are_told(tmp_path):
    path, notes = tmp_path / "question.jsonl", []
    path.write_text('{"question_id": 1, "turns": ["one two", "three"]}\n' * 4)
    ready(config(prompts={"kind": "spec_bench", "path": str(path), "count": 4}), notes.append)
    assert any(f"{path}, line 1: only the first of its 2 turns" in note for note in notes)


def test_one_process_of_several_logs(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    ready(config(tracker="wandb"), print)  # whether or not it is installed
