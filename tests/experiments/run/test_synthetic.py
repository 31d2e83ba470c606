"""Runs with synthetic acceptance: lengths and tokens per step are as given, and no text is trusted."""

import polars as pl
import pytest

from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError
from treespec.experiments.lossless.check import check_lossless
from treespec.experiments.measure.searched_run import run
from treespec.experiments.report.run import load_run
from treespec.experiments.report.verdict import sentences
from treespec.experiments.run.one_text import decode_one
from treespec.search import expected_tokens
from treespec.tree import TreeShape

RATES = [[0.5, 0.3], [0.4, 0.2]]
SHAPES = {"chain:2": TreeShape.chain(2), "expansion:2x2": TreeShape.expansion([2, 2])}
METHODS = [
    {"kind": "generate"},
    {"kind": "plain"},
    *(
        {"kind": "tree", "draft": {"source": "synthetic", "rates": RATES}, "shape": s}
        for s in SHAPES
    ),
]
COMPARE = [{"left": {"source": "synthetic"}, "right": "plain"}]


@pytest.fixture(scope="module", params=[1, 2], ids="batch of {}".format)
def found(request, settings, loaded_pair, tmp_path_factory):
    prompts = settings["prompts"] | {"count": 4}
    changes = {"methods": METHODS, "prompts": prompts, "batch": request.param, "repeats": 3}
    config = settings | changes | {"max_new_tokens": 60, "compare": COMPARE}
    path = tmp_path_factory.mktemp("synthetic") / "run"
    return load_run(
        run(Config.model_validate(config), folder=path, load=lambda _: loaded_pair).folder
    )


def test_lengths_and_tokens_per_step_are_as_given(found):
    rows = found.prompts.filter(pl.col("method").str.starts_with("synthetic"))
    assert rows["error"].null_count() == len(rows) == 2 * 2 * 4 * 3
    assert (rows["tokens"].list.len() == 60).all()
    for name, shape in SHAPES.items():
        kind = name.split(":")[0]
        steps = found.steps.filter(
            pl.col("method").str.starts_with("synthetic") & pl.col("method").str.contains(kind)
        )
        emitted = steps["accepted"].cast(pl.Float64) + 1
        error = emitted.std() / len(emitted) ** 0.5
        assert abs(emitted.mean() - expected_tokens(shape, RATES)) < 5 * error


def test_no_text_is_compared_with_another(found):
    greedy = found.prompts.filter(sampling="T=0")
    compared = greedy.group_by("method").agg(pl.col("equal_to_plain").null_count(), pl.len())
    for method, null, rows in compared.iter_rows():
        assert (null == rows) == method.startswith("synthetic"), method
    verdict = " ".join(
        line for lines in sentences(found, found.measurements).values() for line in lines
    )
    caution = (
        "Caution: texts are meaningless: acceptance of synthetic 0.5,0.3;0.4,0.2 chain 2, synthetic"
    )
    assert verdict.count(caution) == 1
    assert "departs from plain decoding" not in verdict
    assert "Synthetic" in verdict or "synthetic" in verdict
    assert not any(method.lossless for method in found.methods if method.synthetic)
    assert "(lossy)" not in " ".join(method.label + method.mark for method in found.methods)


def test_a_stop_token_does_not_end_a_text_without_a_meaning(settings, loaded_pair, tmp_path):
    methods = [{"kind": "plain"}, METHODS[2]]
    changes = {"methods": methods, "stop_strings": ["e", "a", " ", "t"], "max_new_tokens": 30}
    config = Config.model_validate(settings | changes)
    done = load_run(run(config, folder=tmp_path / "run", load=lambda _: loaded_pair).folder)
    lengths = done.prompts.with_columns(pl.col("tokens").list.len())
    assert (lengths.filter(method="plain")["tokens"] < 30).any()
    assert (lengths.filter(pl.col("method") != "plain")["tokens"] == 30).all()


def test_it_cannot_be_checked_for_losslessness(settings, loaded_pair):
    config = Config.model_validate(settings | {"methods": METHODS})
    with pytest.raises(ConfigError, match=r"the texts of synthetic .* are meaningless"):
        check_lossless(config, load=lambda _: loaded_pair)


def test_a_single_text_is_said_to_be_meaningless(settings, loaded_pair):
    prompts = {"kind": "text", "path": "-"}
    changes = {"methods": [METHODS[3]], "prompts": prompts, "samplings": [{"temperature": 0}]}
    said = []
    config = Config.model_validate(settings | changes)
    text = decode_one(config, "def f", say=said.append, load=lambda _: loaded_pair)
    assert len(text.tokens) == settings["max_new_tokens"]
    assert "the text is meaningless: acceptance is given by rates" in said
