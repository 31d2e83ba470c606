import polars as pl
import pytest
from rendered import section_html
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.report.categories import category_finding
from treespec.experiments.report.run import Run, load_run
from treespec.tree import TreeShape

METHODS = (
    SyntheticMethod("plain", "plain", other_ms=1.0),
    SyntheticMethod("chain", "tree", TreeShape.chain(3), (0.6,), (1.0, 10.0, 0.1, 0.1)),
)


@pytest.fixture
def run(tmp_path):
    return load_run(write_run(tmp_path / "run", METHODS, prompts=8, temperatures=(0.0,)))


def _with(run, *names):
    category = pl.Series([None if n is None else n for n in names])[run.prompts["prompt"].to_list()]
    return Run(
        run.folder, run.manifest, run.prompts.with_columns(category.alias("category")), run.steps
    )


def test_a_category_counts_its_own_prompts_only(run):
    mixed = _with(run, "code", "code", "code", "prose", "prose", None, None, "prose")
    rows = mixed.categories
    assert [(row.name, row.prompts) for row in rows] == [("code", 3), ("prose", 3)]
    own = run.prompts.filter(pl.col("prompt").is_in([0, 1, 2]))
    speed = {
        m: own.filter(pl.col("method") == m)["new_tokens"].sum()
        / own.filter(pl.col("method") == m)["decode_s"].sum()
        for m in ("plain", "chain")
    }
    assert rows[0].speedups["chain"].estimate == pytest.approx(speed["chain"] / speed["plain"])
    assert "code (3)" in section_html(category_finding(mixed.categories))


def test_one_category_is_none(run):
    assert run.categories == []
    assert section_html(category_finding(_with(run, *["code"] * 8).categories)) == ""
