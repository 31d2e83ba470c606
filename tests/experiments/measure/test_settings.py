"""The same methods under several settings, in turns."""

import json

import pytest

from treespec.errors import LoadError
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure.settings import (
    combinations,
    run_under_settings,
    sentence,
    settings_data,
    settings_finding,
)
from treespec.experiments.report.comparisons import Comparison, Side, trees_and_chains
from treespec.experiments.run import unit as unit_module
from treespec.search.intervals import Interval

TREES = [{"kind": "tree", "shape": {"kind": "chain", "depth": depth}} for depth in (1, 2, 3, 4)] + [
    {"kind": "tree", "shape": {"kind": "expansion", "branching": [2]}}
]


@pytest.fixture
def config(settings):
    changes = {
        "prompts": {"kind": "embedded", "count": 4, "tokens": 8},
        "max_new_tokens": 3,
        "alone": 0,
        "samplings": [{"temperature": 0}],
        "methods": [{"kind": "plain"}, *TREES],
    }
    return Config.model_validate(settings | changes)


def test_every_combination_has_its_keys(config):
    found = combinations(config, ["dtype=float32,float64", "passes=eager,compiled"])
    assert [c.name for c in found][1] == "dtype=float32 passes=compiled"
    models = found[3].config.models
    assert (models.dtype, models.passes, models.draft_passes) == ("float64", "compiled", "compiled")


@pytest.mark.parametrize(
    "given",
    [
        ["speed=1,2"],
        ["dtype=float32"],
        ["dtype=float32,float64,float32"],
        ["dtype=float32,float64"] * 2,
        ["dtype=float32,float64", "models.dtype=float32,float64"],
        ["dtype=a,b"],
    ],
)
def test_settings_that_cannot_be_are_refused(config, given):
    with pytest.raises(ConfigError, match=given[0].partition("=")[0]):
        combinations(config, given)


def test_methods_are_chosen_once_and_run_in_turns(config, loaded_pair, tmp_path, monkeypatch):
    order, real = [], unit_module.Bench.decode

    def watched(bench, method, prompt, sampling, **more):
        order.append((bench.experiment.config.models.dtype, prompt.index, method.name))
        return real(bench, method, prompt, sampling, **more)

    def load(models):
        if models.dtype == "float16":
            raise LoadError("float16 cannot run here")
        return loaded_pair

    monkeypatch.setattr(unit_module.Bench, "decode", watched)
    asked = config, ["dtype=float32,float64,float16"]
    found = run_under_settings(*asked, folder=tmp_path / "under", load=load)
    assert list(found.runs) == ["dtype=float32", "dtype=float64"]
    assert "float16 cannot run here" in found.left_out["dtype=float16"]
    assert len(found.chosen) == 4  # three of four chains, and the tree
    measured = order[-2 * 4 * 6 :]  # plain, its twin and the chosen, on four prompts, twice
    turns = list(dict.fromkeys((dtype, prompt) for dtype, prompt, _ in measured))
    assert [prompt for _, prompt in turns] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert turns[0][0] != turns[2][0]  # another one begins
    ids = [set(of.prompts["prompt"]) for of in found.runs.values()]
    assert ids == [{0, 1, 2, 3}] * 2
    names = {name for of in found.runs.values() for name in of.prompts["method"]}
    assert names == {"plain", *found.chosen}
    started = len(order)
    assert run_under_settings(*asked, folder=tmp_path / "under", load=load).chosen == found.chosen
    assert len(order) == started  # everything was there
    assert "float16 cannot run here" in settings_finding(found).remarks[0]
    answer = settings_data(found)["samplings"][0]["answers"][0]
    assert set(answer["settings"]) == set(found.runs)
    choice = json.loads((tmp_path / "under" / "choice" / "manifest.json").read_text())
    assert choice["config"]["prompts"]["start"] == 11  # behind the texts that are measured


def duel(*bounds):
    question = trees_and_chains(["t"], ["c"])
    sides = Side(question.left, ("t",)), Side(question.right, ("c",))
    return Comparison(question, *sides, Interval(*bounds), Interval(*bounds), 12, 12)


WON, LOST, OPEN = duel(1.2, 1.1, 1.3), duel(0.8, 0.7, 0.9), duel(1.0, 0.9, 1.1)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([WON], "Trees beat chains in the only setting that could run."),
        ([WON, WON], "Trees beat chains in both settings."),
        ([LOST] * 4, "Chains beat trees in all 4 settings."),
        (
            [WON, WON, OPEN],
            "Trees beat chains in 2 of 3 settings; under s2: no winner between trees and chains "
            "(1.00 (0.90–1.10)).",
        ),
        (
            [WON, LOST],
            "Under s0: trees beat chains (1.20 (1.10–1.30)); under s1: chains beat trees "
            "(0.80 (0.70–0.90)).",
        ),
    ],
)
def test_exceptions_are_named(found, said):
    assert sentence({f"s{i}": one for i, one in enumerate(found)}) == said


def test_what_measures_for_itself_is_refused(config, tmp_path):
    until = Config.model_validate(config.model_dump() | {"until": {"half_width": 0.1}})
    with pytest.raises(ConfigError, match="remove `until`"):
        run_under_settings(until, ["dtype=float32,float64"], folder=tmp_path)


def test_whole_texts_are_chosen_on_the_next_ones(config, settings, loaded_pair, tmp_path):
    """Four prompts in a file, of which two are measured; a question of one's own stays."""
    changes = {"prompts": settings["prompts"], "compare": [{"left": "chain 1", "right": "chain *"}]}
    changes["compare"][0]["right"] = "chain 2"
    own = Config.model_validate(config.model_dump() | changes)
    asked = own, ["dtype=float32,float64"]
    found = run_under_settings(*asked, folder=tmp_path / "u", load=lambda models: loaded_pair)
    choice = json.loads((tmp_path / "u" / "choice" / "manifest.json").read_text())
    assert choice["config"]["prompts"]["skip"] == 2
    assert set(found.chosen) >= {"chain 1", "chain 2"}
    assert all(of.manifest["config"]["compare"] for of in found.runs.values())
    every = Config.model_validate(
        own.model_dump() | {"prompts": settings["prompts"] | {"count": 4}}
    )
    with pytest.raises(ConfigError, match="measures all prompts"):
        run_under_settings(every, ["dtype=float32,float64"], folder=tmp_path / "v")
