import csv
import io
import re

from treespec.experiments.report.table import Cell, Column, Table, interval
from treespec.experiments.report.tables import escaped, table_csv, table_latex
from treespec.search.intervals import Interval

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


def test_no_cell_of_csv_is_a_formula():
    rows = [(name, None, "–") for name in ("=1+1", "+a", "-b", "@c", "\t=d", "＝e")]
    columns = [Column("= speedup", lambda row: row[0]), Column("@x", lambda row: "-1.5")]
    lines = list(csv.reader(io.StringIO(table_csv(Table("", columns, rows)))))
    assert lines[0] == ["speedup", "'@x"]
    assert lines[1:] == [[f"'{row[0]}", "-1.5"] for row in rows]
    shares = Table("", [Column("x", lambda row: row)], ["-3 %", "none"])
    assert "-3 %" in table_csv(shares).splitlines()
