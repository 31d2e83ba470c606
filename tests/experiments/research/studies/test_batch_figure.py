"""The figure of a sweep over batch sizes."""

import polars as pl
import pytest

from treespec.experiments.errors import SweepError
from treespec.experiments.report.figure_style import drawing
from treespec.experiments.research.studies.batch_figure import BATCH, batch_figure, draw

METHODS = ("plain", 1, 1.0), ("chain", 3, 1.5), ("chain", 5, 1.4), ("tree", 9, 1.6)


def summary(batches=(1, 2, 4)):
    rows = [
        {
            BATCH: batch, "sampling": "T=0", "method": f"{group} {size}", "group": group,
            "lossless": True, "speedup": speedup / batch, "speedup_low": 0.9 * speedup / batch,
            "speedup_high": 1.1 * speedup / batch, "tokens_per_second": 100.0 * speedup,
            "nodes": float(size * batch), "verify_ms": 2.0 + size * batch,
        }
        for batch in batches
        for group, size, speedup in METHODS
    ]  # fmt: skip
    return pl.DataFrame(rows)


def test_the_fastest_of_each_group_is_drawn_at_every_batch_size():
    with drawing():
        figure = batch_figure(summary(), "T=0")
    above, below = figure.axes
    chain, tree = (container.lines[0] for container in above.containers)
    assert list(chain.get_ydata()) == pytest.approx([1.5, 0.75, 0.375])
    assert list(tree.get_ydata()) == pytest.approx([1.6, 0.8, 0.4])
    assert list(chain.get_xdata()) == pytest.approx([1, 2, 4], rel=0.05)
    nodes = [list(container.lines[0].get_xdata()) for container in below.containers]
    assert nodes == [[1, 2, 4], [3, 6, 12], [9, 18, 36]]


def test_a_sweep_without_batches_is_refused():
    with pytest.raises(SweepError, match="no axis `batch`"):
        batch_figure(summary().drop(BATCH), "T=0")
    with pytest.raises(SweepError, match="no chain or tree"):
        batch_figure(summary().filter(group="plain"), "T=0")


def test_it_is_written_beside_the_summary(tmp_path):
    summary().write_parquet(tmp_path / "summary.parquet")
    draw(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "summary.parquet",
        "batch.svg",
        "batch.png",
    }
