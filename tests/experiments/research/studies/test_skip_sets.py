"""A tiny run of the study of skip sets."""

import pytest

from treespec.experiments.research.benchmarks import results_file
from treespec.experiments.research.studies import skip_sets as module


def test_a_searched_set_beside_random_ones(loaded_pair, monkeypatch):
    saved = {}
    for name, value in {
        "SEARCHED": 2, "JUDGED": 2, "DECODED": 1, "TOKENS": 16, "NEW": 6,
    }.items():  # fmt: skip
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "load_pair", lambda *names, **more: loaded_pair)
    monkeypatch.setattr(results_file, "save", lambda name, figures: saved.update({name: figures}))
    module.main(size=2, random=3)
    found = saved["skip_sets"]
    assert found["searched"]["set"] == ", ".join(found["search"]["skip"])
    assert len({row["set"] for row in found["random"]}) == 3
    assert all(row["set"].count(",") == 1 for row in found["random"])
    assert found["searched"]["acceptance"] > min(row["acceptance"] for row in found["random"])
    searched, best, middle = module.summary(found)
    assert searched["tokens_per_step"] == found["searched"]["tokens_per_step"] >= 1
    assert best["acceptance"] == max(row["acceptance"] for row in found["random"])
    assert middle["tokens_per_second"] == pytest.approx(
        sorted(row["tokens_per_second"] for row in found["random"])[1]
    )


def test_texts_of_the_search_are_not_those_that_are_judged(loaded_pair):
    searched = module.texts(loaded_pair, module.FROM, slice(module.SEARCHED))
    judged = module.texts(loaded_pair, 0, slice(module.SEARCHED, module.SEARCHED + module.JUDGED))
    assert len(searched) == module.SEARCHED
    assert len(judged) == module.JUDGED
    assert not {tuple(text) for text in searched} & {tuple(text) for text in judged}
    assert {len(text) for text in searched + judged} == {module.TOKENS}
