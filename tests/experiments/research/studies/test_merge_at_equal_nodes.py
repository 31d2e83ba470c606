"""Which methods the study of merges at equal nodes continues with."""

import json

import polars as pl
import pytest
import typer
import yaml
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.report.run import Run, load_run
from treespec.experiments.research.studies.merge_at_equal_nodes import (
    _kept_in_run,
    contenders,
    main,
)
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


def test_the_best_single_sources_of_a_size_and_their_merges_go_on(before, tmp_path):
    methods = [{"kind": "plain"}, *({"name": name} for name in RATES if name != "plain")]
    kept = _kept_in_run(before)
    assert [method["name"] for method in contenders(kept, methods)] == [
        *("model, chain of 4", "lookup, chain of 4", "merge of model, jacobi, tree of 4"),
        *("jacobi, chain of 8", "merge of model, jacobi, tree of 8"),
    ]


def test_another_config_or_no_finished_run_is_refused(before, tmp_path):
    with pytest.raises(typer.BadParameter, match=r"run studies\.sources_by_size first"):
        main(tmp_path / "nothing")
    (tmp_path / "sources_by_size.yaml").write_text(yaml.safe_dump({"methods": [{"kind": "plain"}]}))
    (tmp_path / "merge_at_equal_nodes.yaml").write_text(yaml.safe_dump({"max_new_tokens": 96}))
    with pytest.raises(
        typer.BadParameter, match="has other methods or another number of tokens: delete it"
    ):
        main(tmp_path)
    manifest = json.loads((before.folder / "manifest.json").read_text())
    (before.folder / "manifest.json").write_text(json.dumps(manifest | {"finished": None}))
    with pytest.raises(
        typer.BadParameter, match=r"is not finished: continue studies\.sources_by_size"
    ):
        main(tmp_path)
