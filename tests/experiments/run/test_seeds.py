"""Coins belong to a prompt, not to its place; equal prompts are one sample."""

import json

import polars as pl
import pytest

from treespec.experiments.errors import RunFolderError
from treespec.experiments.report.run import load_run
from treespec.experiments.run.prompts import Prompt, samples_of
from treespec.experiments.run.seeds import keys_of

TEXTS = {"a": "def walk(tree):\n", "b": "import numpy as np\n", "c": "class Node:\n    def "}
SAMPLED = {
    "samplings": [{"temperature": 1.0}],
    "methods": [{"kind": "plain"}, {"kind": "tree", "shape": {"kind": "chain", "depth": 3}}],
}


@pytest.fixture
def texts(start, tmp_path):
    """A function that runs lines of a JSONL file; returns the sampled tokens by prompt id and method."""

    def texts(names, out):
        path = tmp_path / f"{out}.jsonl"
        lines = [{"id": name, "text": TEXTS[name[0]]} for name in names]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        prompts = {"kind": "jsonl", "path": str(path), "field": "text"}
        folder = start({**SAMPLED, "prompts": prompts}, out=out).folder
        rows = pl.read_parquet(folder / "prompts.parquet")
        return {row["prompt_id"] + row["method"]: row["tokens"] for row in rows.to_dicts()}

    return texts


def test_swapped_lines_and_subsets_give_the_same_texts(texts):
    whole = texts(["a", "b", "c"], "whole")
    assert texts(["c", "a", "b"], "swapped") == whole
    part = texts(["b", "c"], "part")
    assert part == {key: whole[key] for key in part}


def test_equal_prompts_have_coins_of_their_own_and_are_one_sample(texts, tmp_path):
    found = texts(["a1", "b", "a2"], "equal")
    assert found["a1plain"] != found["a2plain"]
    run = load_run(tmp_path / "equal")
    assert run.files == {0: 0, 1: 1, 2: 0}
    assert run.measurements["T=1"].samples == 2
    assert "3 prompts, 2 of them different" in run.verdicts["T=1"][0]


def test_keys_depend_on_tokens_and_on_equal_texts_before():
    first, second, other = keys_of([[1, 2], [1, 2], [1, 3]])
    assert keys_of([[1, 3], [1, 2]]) == [other, first]
    assert len({first, second, other}) == 3


def test_samples_join_equal_prompts_and_excerpts_of_a_file():
    def samples(*given):
        return samples_of(
            [Prompt(i, "", None, ids, "", 0, file) for i, (ids, file) in enumerate(given)]
        )

    assert samples(((1,), None), ((2,), None)) is None
    assert samples(((1,), "f"), ((2,), "f"), ((3,), "g")) == [0, 0, 1]
    # b's excerpt equals one of a, and another of b equals one of c: all are one sample
    joined = samples(((1,), "a"), ((1,), "b"), ((2,), "b"), ((2,), "c"), ((3,), "d"))
    assert joined == [0, 0, 0, 0, 1]


def test_a_run_of_the_old_seeding_is_not_resumed(start, texts, tmp_path):
    texts(["a", "b"], "old")
    path = tmp_path / "old" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 3}))
    with pytest.raises(RunFolderError, match="version 3, but only runs of version 4"):
        texts(["a", "b"], "old")
