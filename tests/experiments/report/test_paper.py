"""What `treespec report --tables` writes: tables, figures of a column, and the papers to cite."""

import csv
import io
import re

import pytest
from rich.console import Console
from run_folders.folders import SyntheticMethod, demo_methods, write_run
from typer.testing import CliRunner

from treespec import plugins
from treespec.experiments.cli.main import app
from treespec.experiments.report.page import print_results
from treespec.experiments.report.paper import references
from treespec.experiments.report.run import load_run
from treespec.experiments.report.tables import report_tables, table_latex
from treespec.tree import TreeShape

HOSTILE = 'a,"b"\n& 50 % of_it {x} \\ $1 ~ ^ # <é>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    methods = [*demo_methods(), SyntheticMethod(HOSTILE, "tree", TreeShape.chain(2), (0.5,))]
    return write_run(tmp_path_factory.mktemp("tables") / "run", methods, spread=0.1, jitter=0.1)


def test_the_command_writes_every_table_twice_every_figure_and_references(folder, tmp_path):
    out = tmp_path / "new" / "tables"
    found = CliRunner().invoke(app, ["report", str(folder), "--tables", str(out)])
    assert found.exit_code == 0, found.output
    names = set(report_tables(load_run(folder)))
    kinds = ("results", "comparisons", "budgets", "explanations", "acceptance", "speedups")
    assert {f"{kind}-{sampling}" for kind in kinds for sampling in ("T=0", "T=1")} <= names
    drawn = ("speedup", "prompts", "size", "stages", "accepted", "scaling")
    files = {f"{name}.{end}" for name in names for end in ("csv", "tex")}
    files |= {f"figure-{name}.pdf" for name in drawn} | {"references.bib"}
    assert {path.name for path in out.iterdir()} == files
    assert f"tables: {len(files)} files in {out}" in found.output
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
    for path in out.glob("*.pdf"):  # in the width of a column, with letters embedded
        pdf = path.read_bytes()
        width = re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", pdf)
        assert float(width[1]) == pytest.approx(3.4 * 72), path
        assert b"/FontFile2" in pdf, path
        assert b"/Type3" not in pdf, path


def test_a_file_in_the_place_of_the_folder_is_left_alone(folder, tmp_path):
    (tmp_path / "mine").write_text("mine")
    found = CliRunner().invoke(app, ["report", str(folder), "--tables", str(tmp_path / "mine")])
    assert found.exit_code == 2
    assert "is not a folder" in found.output
    assert (tmp_path / "mine").read_text() == "mine"


def test_columns_are_picked_and_ordered_by_head_or_full_name(folder):
    run, asked = load_run(folder), "speedup, 95 % interval,draft ms,acc,equal"
    tables = report_tables(run, asked)
    heads = r"speedup, 95 \% interval & draft, ms/step & accepted per step"
    assert f"method & {heads} & equal to ref \\" in table_latex(tables["results-T=0"])
    assert f"method & {heads} \\" in table_latex(tables["results-T=1"])  # there none is compared
    printed = io.StringIO()
    print_results(run, Console(file=printed, width=104), asked)
    assert re.search(r"method +speedup +ms +acc +equal *\n", printed.getvalue())


def test_an_unknown_column_is_refused_before_anything_is_written(folder, tmp_path):
    call = ["report", str(folder), "--tables", str(tmp_path / "out"), "--columns", "acc,speed"]
    found = CliRunner().invoke(app, call)
    assert found.exit_code == 2
    assert "no column 'speed' (there are method, tok/step, acc, tok/s, speedup, ±" in found.output
    assert not (tmp_path / "out").exists()


def test_the_papers_of_rules_sources_and_growths_are_cited_and_no_others(folder):
    run = load_run(folder)
    cited = re.findall(r"eprint = \{(.*)\}", references(run))
    assert cited == ["2211.17192", "2305.09781", "2402.12374"]
    text = references(run)
    assert text.count("@misc{") == text.count("\n}\n") == 3
    merged = {"source": "merge", "sources": [{"source": "lookup"}, {"source": "early_exit"}]}
    run.manifest["methods"][-1] |= {"draft": merged, "growth": {"kind": "eagle2"}}
    for title in ("Prompt Lookup Decoding", "Inference with Reference", "LayerSkip", "EAGLE-2"):
        assert title in references(run)


def test_every_part_with_a_paper_has_an_entry(folder):
    def cited(**method):
        run = load_run(folder)
        run.manifest["methods"] = [{"name": "x", "kind": "tree", **method}]
        return references(run)

    for rule in plugins.parts("rule").values():
        (paper,) = re.findall(r"\d{4}\.\d{5}", rule.make.reference)
        assert paper in cited(rule={"T=0": rule.name})
    own = {"model", "merge", "synthetic", "margin"}  # of these there is no paper
    kinds = {*plugins.parts("source"), *plugins.parts("growth")} - own
    assert {"lookup", "eagle2"} <= kinds
    assert not [kind for kind in kinds if not cited(draft={"source": kind})]
