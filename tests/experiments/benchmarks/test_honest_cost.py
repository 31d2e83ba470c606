"""A tiny run of the benchmark of honest costs, and its counts."""

import pytest

from treespec import plugins
from treespec.experiments.benchmarks import honest_cost as module
from treespec.experiments.benchmarks.honest_cost import Charged, counted


@pytest.fixture(autouse=True)
def _own_sources():
    before = plugins.kept()
    yield
    plugins.restore(before)


def test_a_tiny_run_is_counted_and_saved(loaded_pair, monkeypatch):
    saved, whole = {}, module.config_of

    def small(*settings):
        config = whole(*settings)
        changes = {
            "prompts": config.prompts.model_copy(update={"count": 4, "tokens": 16}),
            "search": config.search.model_copy(update={"max_new_tokens": 4, "repeats": 1}),
            "max_new_tokens": 12,
        }
        return config.model_copy(update=changes)

    monkeypatch.setattr(module, "config_of", small)
    monkeypatch.setattr(module, "load_models", lambda models: loaded_pair)
    monkeypatch.setattr(module, "save", lambda name, figures: saved.update({name: figures}))
    module.main(runs=1)
    (run,) = saved["honest_cost"]["runs"]
    spun = ["growing", "rare"]
    others = ["EAGLE-2", "cost-aware", "assisted"]
    assert [*run.over_totals] == ["short chain", "chain", *spun, *others]
    assert all(0.5 < ratio < 2 for ratio in run.over_totals.values())


def test_medians_are_of_runs_whose_times_were_adjusted():
    runs = [Charged({"tree": ratio}, None, None) for ratio in (0.9, 1.01, 1.02)]
    (row,) = counted([*runs, Charged({"tree": 5.0}, "totals decide", None)])
    assert row == {"method": "tree", "runs": 3, "median": 1.01, "low": 0.9, "high": 1.02}
    assert counted([Charged({"tree": 1.0}, "totals decide", None)]) == []
    assert counted(runs[:2])[0]["median"] == pytest.approx(0.955)
