"""A tiny run of the benchmark of verdicts, quiet and beside bursts, and which verdicts agree."""

from treespec.experiments.benchmarks import same_verdicts as module
from treespec.experiments.benchmarks.same_verdicts import Named, agreed
from treespec.experiments.config.file import load_config
from treespec.search.intervals import Interval

TINY = [
    "models.enlarge=null",
    "prompts.count=4",
    "prompts.tokens=16",
    "max_new_tokens=8",
    "alone=0",
    "methods=[{kind: plain}, {kind: tree, shape: 'chain:2'}, {kind: tree, shape: 'kary:2x2'}]",
]


def test_a_tiny_run_is_listed_and_saved(loaded_pair, monkeypatch):
    saved = {}
    monkeypatch.setattr(module, "load_models", lambda models: loaded_pair)
    monkeypatch.setattr(module, "save", lambda name, figures: saved.update({name: figures}))
    module.main(TINY, runs=1)
    listed = saved["same_verdicts"]["comparisons"]
    assert [entry["sides"][1] for entry in listed] == ["the best chain", "plain decoding (plain)"]
    for entry in listed:
        assert [(run["beside"], run["run"]) for run in entry["runs"]] == [
            ("quiet", 0),
            ("bursts", 0),
        ]


def test_no_winner_contradicts_nobody():
    def named(*winners):
        return [Named(("a", "b"), winner, Interval(1, 1, 1), 0, "quiet") for winner in winners]

    assert agreed(named("a", None, "a")) == agreed(named(None)) == {("a", "b"): True}
    assert agreed(named("a", None, "b")) == {("a", "b"): False}


def test_the_small_budget_is_one_of_speed():
    config = load_config("speed", module.SMALL)
    assert (config.models.enlarge, config.prompts.count, config.max_new_tokens) == ("50M", 8, 32)
    assert config.methods[2].kind == "assisted"
