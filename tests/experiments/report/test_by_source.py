"""Acceptance by source, counted from steps that name the sources of their nodes."""

import json

import pytest
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.rows import StepRow, read_lines, write_lines
from treespec.experiments.report.acceptance import sources_of
from treespec.experiments.report.run import load_run, report_data
from treespec.experiments.report.tables import report_tables
from treespec.tree import TreeShape

SHAPE = TreeShape.from_parents([-1, 0, 0, 1, 1])
ORIGINS = ["", "model", "lookup + model", "lookup", "model"]
METHODS = [
    SyntheticMethod("plain", "plain"),
    SyntheticMethod("merged", "tree", SHAPE, (0.5, 0.2)),
    SyntheticMethod("alone", "tree", SHAPE, (0.5, 0.2)),
]


def written(folder, **changed):
    """A run in which one method has two sources."""
    write_run(folder, METHODS, prompts=4, finished=False)
    more = {"parents": list(SHAPE.parents), "origins": ORIGINS} | changed
    rows = [
        row.model_copy(update=more) if row.method == "merged" else row
        for row in read_lines(folder / "steps.jsonl", StepRow)
    ]
    write_lines(folder / "steps.jsonl", rows)
    return load_run(folder), [row for row in rows if row.method == "merged"]


def test_counts_are_those_of_the_steps(tmp_path):
    run, rows = written(tmp_path / "run")
    for sampling in ("T=0", "T=1"):
        paths = [tuple(row.path_ranks) for row in rows if row.sampling == sampling]
        came = [path for path in paths if path[:1] == (0,)]  # to node 1, which has children
        both = [path for path in paths if path]
        found = {(s.source, s.depth): s for s in sources_of(run) if s.sampling == sampling}
        assert {s.method for s in found.values()} == {"merged"}
        assert set(found) == {(source, depth) for source in ("model", "lookup") for depth in (1, 2)}
        model, lookup = found["model", 1], found["lookup", 1]
        assert model.tries == lookup.tries == len(paths)
        assert (model.drafted, lookup.drafted) == (2 * len(paths), len(paths))
        assert model.share.estimate == pytest.approx(len(both) / len(paths))
        assert sum(model.by_rank) == pytest.approx(model.share.estimate)
        second = sum(path[0] == 1 for path in both) / len(paths)
        assert lookup.by_rank == pytest.approx((0, second))
        assert lookup.share.estimate == pytest.approx(second)
        for source, rank in (("lookup", 0), ("model", 1)):
            level = found[source, 2]
            assert (level.tries, level.drafted) == (len(came), len(paths))
            hits = sum(path[1:] == (rank,) for path in came)
            assert level.share.estimate == pytest.approx(hits / len(came))
            assert level.share.low < level.share.estimate < level.share.high


def test_it_is_a_table_of_the_report_and_data(tmp_path):
    run, _ = written(tmp_path / "run")
    table = report_tables(run)["sources-T=0"]
    assert [cells[0].text + ": " + cells[1].text for cells in table.rows] == [
        "merged: lookup",
        "merged: model",
    ]
    level = next(
        s for s in sources_of(run) if (s.sampling, s.source, s.depth) == ("T=0", "model", 1)
    )
    cell = table.rows[1][2]
    assert cell.text == f"{100 * level.share.estimate:.0f} %"
    assert cell.below.endswith(f" · {level.tries}")
    data = report_data(run, None)["samplings"][0]["sources"]
    assert [(row["source"], row["depth"]) for row in data] == [
        ("lookup", 1), ("lookup", 2), ("model", 1), ("model", 2),
    ]  # fmt: skip
    assert "Acceptance by source" in run.findings["sources"].title


def test_depths_that_no_path_reached_are_left_out(tmp_path):
    """A source may fill its budget with a chain of which little is accepted."""
    deep = [*SHAPE.parents, 2, 5, 6, 7]
    names = ["", *["lookup"] * (len(deep) - 1)]
    run, _ = written(tmp_path / "run", parents=deep, origins=names)
    assert {level.depth for level in sources_of(run)} == {1, 2}
    (table, _) = run.findings["sources"].tables
    assert [column.head for column in table.columns] == [
        "method", "source", "depth 1", "depth 2",
    ]  # fmt: skip


def test_methods_with_given_shapes_say_nothing_of_it(tmp_path):
    write_run(tmp_path / "run", METHODS, prompts=2)
    run = load_run(tmp_path / "run")
    assert sources_of(run) == []
    assert run.findings["sources"] is None


@pytest.mark.parametrize(
    "changed",
    [{"parents": [0]}, {"origins": [""]}, {"parents": None}, {"path_ranks": [7]}],
    ids=str,
)
def test_damaged_trees_are_refused(tmp_path, changed):
    run, _ = written(tmp_path / "run", **changed)
    with pytest.raises(RunFolderError, match="a step of 'merged' on prompt 0"):
        _ = sources_of(run)


def test_both_columns_come_back_from_parquet(tmp_path):
    from treespec.experiments.records.rows import to_frame

    _, rows = written(tmp_path / "run")
    frame = to_frame(rows, StepRow)
    assert frame["origins"][0].to_list() == ORIGINS
    assert frame["parents"][0].to_list() == list(SHAPE.parents)
    assert json.loads(rows[0].model_dump_json())["origins"] == ORIGINS
