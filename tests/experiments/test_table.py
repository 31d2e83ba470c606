import io
import re

import pytest
from rich.console import Console

from experiments.table import markdown_table, print_table
from experiments.testing import SyntheticMethod, demo_methods, write_run
from treespec.tree import TreeShape

PLAIN = SyntheticMethod("plain", "plain", stage_ms=(0.0, 24.0, 0.5, 0.5), other_ms=0.0)
CHAIN = SyntheticMethod("chain 3", "tree", TreeShape.chain(3), (1.0,), (4.0, 30.0, 1.0, 1.0), 4.0)


def printed(folder, width=100):
    console = Console(file=io.StringIO(), width=width)
    print_table(folder, console)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("demo") / "run", spread=0.12, jitter=0.03)


@pytest.fixture(scope="module")
def demo_text(demo):
    return printed(demo)


def test_the_demo_fits_a_hundred_columns(demo_text):
    assert max(map(len, demo_text.splitlines())) <= 100
    assert "…" not in demo_text


def test_a_wide_terminal_gets_the_same_table(demo, demo_text):
    assert printed(demo, width=200) == demo_text


@pytest.mark.parametrize("width", [60, 80, 90])
def test_a_narrow_terminal_keeps_names_and_speedups_and_says_what_it_lacks(demo, width):
    text = printed(demo, width)
    assert max(map(len, text.splitlines())) <= width
    for name in ("generate", "chain 2", "chains 4x4"):
        assert re.search(rf"^{re.escape(name)} .*\d\.\d\d \d\.\d\d–\d\.\d\d", text, re.MULTILINE)
    assert f"{width} columns are too few for" in text


def test_there_is_a_table_for_each_sampling(demo_text):
    assert "T=0: 12 prompts, speedup over plain" in demo_text
    assert "T=1: 12 prompts, speedup over plain" in demo_text
    assert demo_text.count("generate  ") == 2


def test_it_says_what_numbers_mean(demo_text):
    text = " ".join(demo_text.split())
    assert "the faster of generate" in text
    assert "half-widths of the speedups" in text
    assert "chosen on one half of the prompts and measured on the other" in text
    assert "94 M) with embedded (1.1 M), bfloat16, on Synthetic CPU, 2 threads" in text


def test_numbers_are_the_known_ones(tmp_path):
    folder = write_run(tmp_path / "run", [PLAIN, CHAIN], temperatures=[0.0])
    row = next(line for line in printed(folder).splitlines() if line.strip().startswith("chain 3"))
    assert " ".join(row.split()) == "chain 3 * 4.00 3.00 100.0 2.50 4.0 30.0 1.0 1.0 0 % 12/12"


def test_equality_is_a_column_of_greedy_tables_only(tmp_path):
    folder = write_run(tmp_path / "run", [PLAIN, CHAIN], temperatures=[1.0])
    assert "equal" not in printed(folder).split("Prefill")[0].splitlines()[4]
    assert "12/12" not in printed(folder)


def test_divergences_and_errors_are_told(tmp_path):
    methods = [
        PLAIN,
        CHAIN,
        SyntheticMethod("near", "tree", TreeShape.chain(2), (1.0,), diverges={3: 0.0625}),
        SyntheticMethod("far", "tree", TreeShape.chain(2), (1.0,), diverges={3: 4.0}),
        SyntheticMethod("bad", "tree", TreeShape.chain(2), (1.0,), errors=frozenset({1})),
        SyntheticMethod("dead", "tree", TreeShape.chain(2), (1.0,), errors=frozenset(range(12))),
        SyntheticMethod("guess", "tree", TreeShape.chain(2), (1.0,), lossless=False),
    ]
    folder = write_run(tmp_path / "run", methods, temperatures=[0.0])
    text = " ".join(printed(folder).split())
    assert "11 of 12 prompts were finished by all methods" in text
    assert "near equals plain decoding on 11 of 12 prompts" in text
    assert "0.0625; near-ties (at most 0.5): rounding" in text
    assert "4; ! more than the 0.5 that rounding explains: a bug" in text
    assert "11/12 !" in text
    assert "dead finished no prompt: NonFiniteLogits" in text
    assert re.search(r"bad \(1.* failed\)", text)
    assert re.search(r"guess .*\(lossy\)", text)
    assert "failed: prompts on which the method raised an error; they enter no number" in text


def test_names_are_not_markup(tmp_path):
    method = SyntheticMethod("[red]x[/red]", "tree", TreeShape.chain(3), (1.0,))
    text = printed(write_run(tmp_path / "run", [PLAIN, method], temperatures=[0.0]))
    assert "[red]x[/red]" in text


def test_an_unfinished_run_says_so(tmp_path):
    folder = write_run(tmp_path / "run", [PLAIN, CHAIN], finished=False)
    assert "not finished" in printed(folder)


def test_no_comparable_prompt(tmp_path):
    one = SyntheticMethod("one", "tree", TreeShape.chain(2), (1.0,), errors=frozenset({0}))
    two = SyntheticMethod("two", "tree", TreeShape.chain(3), (1.0,), errors=frozenset({1}))
    text = printed(write_run(tmp_path / "run", [one, two], prompts=2))
    assert "0 of 2 prompts were finished by all methods" in " ".join(text.split())


def test_one_prompt_prints_no_interval(tmp_path):
    text = printed(write_run(tmp_path / "run", [PLAIN, CHAIN], prompts=1))
    assert "nan" not in text
    assert "no intervals" in text


def test_markdown_holds_the_same_numbers(demo, demo_text):
    text = markdown_table(demo)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows[:14]}) == 1
    assert len(rows) == 2 * (2 + len(demo_methods()))
    for value in re.findall(r"\d\.\d\d \d\.\d\d–\d\.\d\d", demo_text):
        assert value in text
    assert "| **chains 2x4 \\*** |" in text
