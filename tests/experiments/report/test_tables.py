import csv
import io
import re

import pytest
from run_folders.folders import SyntheticMethod, demo_methods, write_run
from typer.testing import CliRunner

from treespec.experiments.cli.main import app
from treespec.experiments.report.run import load_run
from treespec.experiments.report.table import Cell, Column, Table, interval
from treespec.experiments.report.tables import escaped, report_tables, table_csv, table_latex
from treespec.search.intervals import Interval
from treespec.tree import TreeShape

HOSTILE = 'a,"b"\n& 50 % of_it {x} \\ $1 ~ ^ # <é>'


def table(*rows, **more):
    columns = (
        Column("name", lambda row: row[0], left=True),
        Column("short", lambda row: interval(row[1]), "speed\nup"),
        Column("share", lambda row: row[2]),
        Column("levels", lambda row: Cell("45", "± 3", "30 + 15 · 200")),
    )
    return Table("T=0", columns, rows, **more)


ROWS = (
    (HOSTILE, Interval(1.23456789, 1.1, 1.4), "+3.2%"),
    ("plain", Interval(1.0, 1.0, 1.0), "-4 %"),
    ("one text", Interval(2.0, float("nan"), float("nan")), "–"),
    ("none", None, "0 %"),
)


def test_csv_holds_plain_numbers_and_escaped_names():
    found = list(csv.DictReader(io.StringIO(table_csv(table(*ROWS)))))
    assert [row["name"] for row in found] == [HOSTILE, "plain", "one text", "none"]
    keys = ("speed up", "speed up: low", "speed up: high", "share (%)")
    assert [tuple(row[key] for key in keys) for row in found] == [
        ("1.23456789", "1.1", "1.4", "3.2"),
        ("1.0", "1.0", "1.0", "-4"),
        ("2.0", "", "", ""),
        ("", "", "", "0"),
    ]
    assert {row["levels: note"] for row in found} == {"30 + 15 · 200"}


def test_latex_has_the_same_cells_in_every_row_and_nothing_that_is_a_command():
    lines = table_latex(table(*ROWS, tone=lambda row: "best" * (row[0] == "plain"))).splitlines()
    assert lines[:2] == ["% T=0", r"% \usepackage{booktabs}"]
    assert lines[2:4] == [r"\begin{tabular}{lrrr}", r"\toprule"]
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    rows = [line for line in lines if line.endswith(r" \\")]
    assert len(rows) == 1 + len(ROWS)
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {3}
    assert rows[0].startswith("name & speed up & share")
    assert rows[1].startswith(
        r"a,''b'' \& 50 \% of\_it \{x\} \textbackslash{} \$1 \textasciitilde{} \textasciicircum{} \#"
    )
    assert r"1.23 {\footnotesize 1.10--1.40} & +3.2\%" in rows[1]
    assert r"{\footnotesize $\pm$ 3 (30 + 15 $\cdot$ 200)}" in rows[1]
    assert rows[2].startswith(r"\textbf{plain} & \textbf{1.00}")


def test_a_row_that_begins_with_a_bracket_is_no_argument_of_the_line_before():
    assert escaped("[x]*") == "{[}x{]}{*}"


def test_groups_stand_apart():
    grouped = table(*ROWS, group=lambda row: row[0][0])
    assert table_latex(grouped).count(r"\addlinespace") == 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    methods = [*demo_methods(), SyntheticMethod(HOSTILE, "tree", TreeShape.chain(2), (0.5,))]
    return write_run(tmp_path_factory.mktemp("tables") / "run", methods, spread=0.1, jitter=0.1)


def test_the_command_writes_every_table_twice(folder, tmp_path):
    out = tmp_path / "new" / "tables"
    found = CliRunner().invoke(app, ["report", str(folder), "--tables", str(out)])
    assert found.exit_code == 0, found.output
    names = set(report_tables(load_run(folder)))
    kinds = ("results", "comparisons", "budgets", "explanations", "acceptance", "speedups")
    assert {f"{kind}-{sampling}" for kind in kinds for sampling in ("T=0", "T=1")} <= names
    assert {path.name for path in out.iterdir()} == {
        f"{name}.{end}" for name in names for end in ("csv", "tex")
    }
    assert f"tables: {2 * len(names)} files in {out}" in found.output
    run = load_run(folder)
    rows = list(csv.DictReader(io.StringIO((out / "results-T=0.csv").read_text("utf-8"))))
    assert len(rows) == len(run.methods)
    for row, summary in zip(rows, run.summaries[0].rows, strict=True):
        assert summary.method.name in row["method"]
        assert float(row["tokens per second"]) == summary.tokens_per_second.estimate
        assert float(row["tokens per step: low"]) == summary.tokens_per_step.low
    for path in out.glob("*.csv"):
        widths = {len(row) for row in csv.reader(io.StringIO(path.read_text("utf-8")))}
        assert len(widths) == 1, path
    for path in out.glob("*.tex"):
        text = re.sub(r"\\[\\{}]", "", path.read_text("utf-8"))
        assert text.count("{") == text.count("}"), path


def test_a_file_in_the_place_of_the_folder_is_left_alone(folder, tmp_path):
    (tmp_path / "mine").write_text("mine")
    found = CliRunner().invoke(app, ["report", str(folder), "--tables", str(tmp_path / "mine")])
    assert found.exit_code == 2
    assert "is not a folder" in found.output
    assert (tmp_path / "mine").read_text() == "mine"
