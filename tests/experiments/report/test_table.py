import io
import json
import re
from collections import Counter
from dataclasses import replace

import pytest
from rich.console import Console
from run_folders.folders import SyntheticMethod, demo_methods, write_run

from treespec.experiments.records.outcome import STAGES
from treespec.experiments.report.page import WIDTH, print_results
from treespec.experiments.report.results import model_size
from treespec.experiments.report.run import load_run
from treespec.experiments.report.summary import result_table
from treespec.experiments.report.table import markdown
from treespec.experiments.report.tables import report_tables
from treespec.experiments.report.terminal import print_table
from treespec.tree import TreeShape

PLAIN = SyntheticMethod("plain", "plain", stage_ms=(0.0, 24.0, 0.5, 0.5), other_ms=0.0)
CHAIN = SyntheticMethod("chain 3", "tree", TreeShape.chain(3), (1.0,), (4.0, 30.0, 1.0, 1.0), 4.0)


def printed(folder, width=WIDTH):
    console = Console(file=io.StringIO(), width=width)
    print_results(load_run(folder), console)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("demo") / "run", spread=0.12, jitter=0.03)


@pytest.fixture(scope="module")
def demo_text(demo):
    return printed(demo)


def test_the_demo_fits_its_width(demo_text):
    assert max(map(len, demo_text.splitlines())) <= WIDTH
    assert "…" not in demo_text


@pytest.mark.parametrize("width", [60, 80, 90])
def test_a_narrow_terminal_moves_columns_and_drops_none(demo, width):
    text = printed(demo, width)
    assert max(map(len, text.splitlines())) <= width
    for name in ("generate", "chain 2", "chains 4x4"):
        assert re.search(rf"^{re.escape(name)} .*\d\.\d\d \d\.\d\d–\d\.\d\d", text, re.MULTILINE)
    heads = " ".join(
        line for line in text.splitlines() if re.search(r"\b(method|draft|verify)\b", line)
    )
    for head in ("tok/step", "acc", "tok/s", "speedup", "±", "waste", "equal", *STAGES):
        assert head in heads.split(), head
    assert ("T=0: time of a step" in text) == (width > 60)
    assert re.search(r"^kary 2x3 .*?( +\d+\.\d\b(?! %)){4}", text, re.MULTILINE)


def test_numbers_are_the_known_ones(tmp_path):
    folder = write_run(tmp_path / "run", [PLAIN, CHAIN], temperatures=[0.0])
    row = next(line for line in printed(folder).splitlines() if line.strip().startswith("chain 3"))
    assert " ".join(row.split()) == "chain 3 * 4.00 3.00 100.0 2.50 – 4.0 30.0 1.0 1.0 0 % 12/12"


def test_divergences_and_errors_are_told(tmp_path):
    methods = [
        PLAIN,
        CHAIN,
        SyntheticMethod("near", "tree", TreeShape.chain(2), (1.0,), diverges={3: 0.0625}),
        SyntheticMethod("nigh", "tree", TreeShape.chain(2), (1.0,), diverges={3: 0.03, 4: 0.02}),
        SyntheticMethod("close", "tree", TreeShape.chain(2), (1.0,), diverges={3: 0.03}),
        SyntheticMethod("far", "tree", TreeShape.chain(2), (1.0,), diverges={3: 4.0, 5: 0.01}),
        SyntheticMethod("long", "tree", TreeShape.chain(2), (1.0,), diverges={3: None}),
        SyntheticMethod("bad", "tree", TreeShape.chain(2), (1.0,), errors=frozenset({1})),
        SyntheticMethod("dead", "tree", TreeShape.chain(2), (1.0,), errors=frozenset(range(12))),
        SyntheticMethod("guess", "tree", TreeShape.chain(2), (1.0,), lossless=False),
    ]
    folder = write_run(tmp_path / "run", methods, temperatures=[0.0])
    text = " ".join(printed(folder).split())
    assert "11 of 12 prompts were finished by all methods" in text
    assert "T=0: near, nigh, close departs from plain decoding by rounding" in text
    assert "differ by up to 0.062 (at most 0.25 in bfloat16)." in text
    assert "T=0: ! far, long departs from plain decoding by more than rounding explains" in text
    assert "11/12 !" in text
    assert "dead finished no prompt: NonFiniteLogits" in text
    assert re.search(r"bad \(1.* failed\)", text)
    assert re.search(r"guess .*\(lossy\)", text)
    assert (
        "failed: number of prompts on which the method raised an error; they enter no other number"
        in text
    )


def test_generate_is_the_reference_and_only_that(tmp_path):
    generate = SyntheticMethod("generate", "generate")
    text = printed(write_run(tmp_path / "run", [generate, PLAIN, CHAIN], temperatures=[0.0]))
    row = next(line for line in text.splitlines() if line.startswith("generate"))
    assert row.split()[-1] == "ref"
    assert text.count("12/12") == 2
    text = printed(write_run(tmp_path / "sampled", [generate, PLAIN], temperatures=[1.0]))
    assert "ref" not in text.split("The methods")[0].split()


def test_sizes_of_models():
    sizes = [61e6, 918_144, 999.4e6, 8.03e9]
    assert [model_size({"parameters": n}) for n in sizes] == ["61 M", "0.918 M", "999 M", "8.03 B"]


def test_names_are_not_markup(tmp_path):
    method = SyntheticMethod("[red]x[/red]", "tree", TreeShape.chain(3), (1.0,))
    text = printed(write_run(tmp_path / "run", [PLAIN, method], temperatures=[0.0]))
    assert "[red]x[/red]" in text


def test_markdown_holds_the_same_numbers(demo, demo_text):
    run = load_run(demo)
    tables = [result_table(summary) for summary in run.summaries]
    text = "\n\n".join(map(markdown, [*tables, *run.explanation_tables.values()]))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows[:14]}) == 1
    explained = sum(m.kind == "tree" for m in demo_methods()) + 1  # and a tree over a chain
    assert len(rows) == 2 * (2 + len(demo_methods())) + 2 * (2 + explained)
    for value in re.findall(r"\d\.\d\d \d\.\d\d–\d\.\d\d", demo_text):
        assert value in text
    assert "| **chains 2x4 \\*** |" in text


def test_warm_up_and_repeats_are_told(tmp_path, demo_text):
    assert "Warm-up: 1 prompt by every method, 10 s, not measured." in " ".join(demo_text.split())
    assert "Each prompt was run" not in demo_text
    folder = write_run(tmp_path / "run", [PLAIN, CHAIN], temperatures=[0.0])
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["config"]["repeats"] = 3
    (folder / "manifest.json").write_text(json.dumps(manifest))
    text = " ".join(printed(folder).split())
    assert "Each prompt was run 3 times, with other seeds" in text


@pytest.mark.parametrize("width", [60, 80])
def test_every_table_folds_and_loses_nothing(tmp_path, width):
    methods = [replace(m, name=f"{m.name} {'with a name' * 6}"[:60]) for m in demo_methods()]
    run = load_run(write_run(tmp_path / "run", methods, prompts=6, jitter=0.05))
    for name, table in report_tables(run).items():
        console = Console(file=io.StringIO(), width=width)
        print_table(table, console)
        text = console.file.getvalue()
        assert max(len(line.rstrip()) for line in text.splitlines()) <= width, name
        assert "…" not in text
        told = Counter(re.sub(r"\s", "", text))  # words are folded: letters are what can be counted
        wanted = [column.head for column in table.columns]
        wanted += [f"{cell}{cell.below}" for cells in table.rows for cell in cells]
        assert Counter(re.sub(r"\s", "", "".join(wanted))) <= told, name
