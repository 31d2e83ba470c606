"""Tables of runs that decode prompts in batches."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from treespec.experiments.config.schema import Config
from treespec.experiments.measure.searched_run import run
from treespec.experiments.report.measurements import ROUNDS, _shared, measure
from treespec.experiments.report.results import footnotes
from treespec.experiments.report.run import load_run
from treespec.experiments.report.summary import result_table, summarise

METHODS = [{"kind": "generate"}, {"kind": "plain"}, {"kind": "tree", "shape": "chain:3"}]


@pytest.fixture(scope="module")
def found(settings, loaded_pair, tmp_path_factory):
    """Four prompts in batches of two. Read only."""
    changes = {"batch": 2, "methods": METHODS, "samplings": [{"temperature": 0}], "alone": 0}
    changes["prompts"] = settings["prompts"] | {"count": 4}
    path = tmp_path_factory.mktemp("batches") / "run"
    config = Config.model_validate(settings | changes)
    return load_run(run(config, folder=path, load=lambda models: loaded_pair).folder)


def test_batches_are_the_samples(found):
    data = found.measurements["T=0"]
    assert (len(data.prompts), data.samples, found.counted) == (4, 2, "batches")
    assert data.files == (0, 0, 1, 1)
    assert any("in 2 batches of 2" in line for line in found.verdicts["T=0"])
    assert any(note.startswith("Batches of 2") for note in footnotes(found, found.summaries))


def test_speeds_are_those_of_the_batch_and_of_a_text(found):
    row = found.summaries[0].row("chain 3")
    rows = found.prompts.filter(method="chain 3")
    steps = found.steps.filter(method="chain 3")
    rounds = steps.select(pl.col("prompt") // 2, "step").n_unique()
    assert found.measurements["T=0"].total("chain 3", ROUNDS) == pytest.approx(rounds)
    assert row.batch.texts == pytest.approx(len(steps) / rounds)
    assert row.batch.nodes == pytest.approx(4 * len(steps) / rounds)
    wasted = steps["size"].sum() - steps["kept"].sum()
    assert row.batch.wasted == pytest.approx(wasted / rounds)
    whole, one = row.tokens_per_second.estimate, row.batch.text_tokens_per_second.estimate
    assert whole / one == pytest.approx(rows["rounds_s"].sum() / rows["decode_s"].sum())
    assert 1 < whole / one <= 2 * (1 + 1e-9)  # all rounds may have held both texts
    # a step of the batch: what all its texts take together
    seconds = found.measurements["T=0"].total("chain 3", "decode_s")
    assert row.step_ms == pytest.approx(1e3 * seconds / rounds)
    assert sum(row.stage_ms.values()) == pytest.approx(row.step_ms)
    heads = [column.name for column in result_table(found.summaries[0]).columns]
    assert "nodes per pass" in heads
    generate = found.summaries[0].row("generate").batch
    assert (generate.nodes, generate.wasted) == (generate.texts, 0)


def test_a_round_is_one_measurement(found):
    rounds = found.all_rounds.filter(method="plain")
    steps = found.all_steps.filter(method="plain")
    assert len(rounds) < len(steps)
    assert set(rounds["prompt"]) == {0, 2}
    assert rounds["step_s"].sum() == pytest.approx(steps["step_s"].sum())
    assert rounds.filter(texts=2)["size"].to_list() == [2] * len(rounds.filter(texts=2))


def test_a_batch_with_a_failed_text_is_not_compared(found):
    first = (pl.col("prompt") == 1) & (pl.col("method") == "plain")
    error = pl.when(first).then(pl.lit("failed")).otherwise(pl.col("error")).alias("error")
    data = measure(replace(found, all_prompts=found.all_prompts.with_columns(error)), "T=0")
    assert data.prompts == (2, 3)
    assert summarise(found, data).prompts == 2


def test_a_batch_shares_an_amount_as_it_was_recorded():
    recorded = np.array([1.0, 3.0, 5.0, 0.0, 0.0])
    shared = _shared(np.array([8.0, 10.0, 2.0]), recorded, np.array([0, 0, 1, 2, 2]))
    assert shared.tolist() == [2.0, 6.0, 10.0, 1.0, 1.0]
    alone = np.array([0.1, 0.7, -0.3])
    assert _shared(alone, np.array([3.0, 0.0, 9.0]), np.arange(3)).tolist() == alone.tolist()
