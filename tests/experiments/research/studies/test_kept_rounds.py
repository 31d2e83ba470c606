import polars as pl

from treespec.experiments.research.studies.kept_rounds import RECORDED, figures_of, ratios


def test_two_recorded_runs_beside_bursts():
    """By totals, the ratio of identical chains is far less certain."""
    recorded = pl.read_parquet(RECORDED).cast({"at_s": pl.Float64, "step_s": pl.Float64})
    runs = [recorded.filter(kind="bursts", run=run).sort("at_s") for run in (0, 1)]
    found = {way: figures_of([ratios(run, way) for run in runs]) for way in ("totals", "slowdown")}
    assert found["slowdown"]["half_width"] < found["totals"]["half_width"]
    assert found["slowdown"]["found_slower"] == 2
