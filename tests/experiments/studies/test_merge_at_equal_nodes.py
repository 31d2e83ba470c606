"""Which methods the study of merges at equal nodes continues with."""

import polars as pl
import pytest
import typer
import yaml
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.report.run import Run, load_run
from treespec.experiments.studies.merge_at_equal_nodes import contenders, main
from treespec.tree import TreeShape

RATES = {
    "plain": (), "model, chain of 4": (0.9,), "lookup, chain of 4": (0.88,), "jacobi, chain of 4": (0.1,),
    "merge of model, jacobi, tree of 4": (0.9,), "merge of jacobi, tree of 4": (0.9,),
    "jacobi, chain of 8": (0.5,), "model, chain of 8": (0.05,),
    "merge of model, lookup, tree of 8": (0.9,), "merge of model, jacobi, tree of 8": (0.1,),
}  # fmt: skip
"""Acceptance rates by name of the method."""


@pytest.fixture
def before(tmp_path):
    methods = [
        SyntheticMethod("plain", "plain", other_ms=1.0)
        if name == "plain"
        else SyntheticMethod(name, "tree", TreeShape.chain(int(name[-1]) - 1), rates)
        for name, rates in RATES.items()
    ]
    run = load_run(write_run(tmp_path / "run", methods, prompts=8, temperatures=(0.0,)))
    prompts = run.prompts.with_columns(pl.lit("code").alias("category"))
    return Run(run.folder, run.manifest, prompts, run.steps)


def test_the_best_single_sources_of_a_size_and_their_merges_go_on(before):
    methods = [{"kind": "plain"}, *({"name": name} for name in RATES if name != "plain")]
    assert [method["name"] for method in contenders(before, methods)] == [
        *("model, chain of 4", "lookup, chain of 4", "merge of model, jacobi, tree of 4"),
        *("jacobi, chain of 8", "merge of model, jacobi, tree of 8"),
    ]


def test_a_config_of_other_lengths_is_not_run(tmp_path):
    config = {
        "name": "longer", "models": {"target": "embedded"}, "prompts": {"kind": "tasks"},
        "max_new_tokens": 96, "samplings": [{"temperature": 0}], "methods": [{"kind": "plain"}],
    }  # fmt: skip
    (tmp_path / "merge_at_equal_nodes.yaml").write_text(yaml.safe_dump(config), "utf-8")
    with pytest.raises(typer.BadParameter, match="is of 96 tokens; delete it"):
        main(tmp_path, tokens=32)
