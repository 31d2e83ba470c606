from dataclasses import replace

import numpy as np
import pytest
from run_folders.measured import measurements

from treespec.experiments.report.ranking import ranking, ranking_finding, source_ranking


def run(samples=24, noise=0.02):
    rng = np.random.default_rng(0)
    times = {"g": 3.0, "c1": 2.0, "c2": 1.99, "t1": 1.2, "t2": 1.0}
    data = measurements({n: s * np.exp(rng.normal(0, noise, samples)) for n, s in times.items()})
    sources = {"c1": "lookup", "c2": "suffix", "t1": "model", "t2": "model", "g": None}
    return replace(data, methods=tuple(replace(m, source=sources[m.name]) for m in data.methods))


def test_places_are_shared_by_those_that_cannot_be_told_apart():
    found = {row.name: row for row in ranking(run())}
    assert next(iter(found)) == "t2"
    assert [found[name].places for name in ("t2", "t1", "c1", "c2", "g")] == [
        "1",
        "2",
        "3–4",
        "3–4",
        "5",
    ]
    assert found["t1"].ratio.estimate == pytest.approx(1 / 1.2, rel=0.02)
    assert found["t1"].ratio.high < 1


def test_sources_are_ranked_by_the_method_chosen_of_each():
    found = source_ranking(run())
    assert found[0].name == "model"
    assert [row.places for row in found] == ["1", "2–3", "2–3"]


def test_few_prompts_have_no_places():
    assert {row.places for row in ranking(run(8))} == {"1–5"}
    assert ranking(run(3)) == []


def test_shown_as_tables():
    tables = ranking_finding({"T=0": run()}).tables
    assert [table.subject for table in tables] == ["T=0, methods", "T=0, sources"]
    assert len(tables[0].rows) == 5


def test_no_order_of_methods_changes_a_rank():
    data = run(noise=0.3)
    turned = replace(data, methods=data.methods[::-1])
    assert source_ranking(turned) == source_ranking(data)
    assert ranking(turned) == ranking(data)


@pytest.mark.parametrize("boundary", [5e7, float("inf")])
def test_an_early_look_ranks_nothing_and_does_not_fail(boundary):
    rows = source_ranking(replace(run(), boundary=boundary))
    assert {row.places for row in rows} == {"1–3"}
