"""Pages with results match the result files, and no measured figure is typed by hand."""

import json
import re

import pytest

from treespec.experiments.benchmarks.results_file import RESULTS
from treespec.experiments.errors import ConfigError
from treespec.experiments.studies import results_page as results_module
from treespec.experiments.studies.results_page import (
    PAGE,
    README,
    SECTIONS,
    by_prompts,
    filled,
    results_page,
)

GUIDE = README.parent / "docs" / "guide.md"


def measured_by_hand(page):
    """Find figures in the prose of a page: numbers with a point, shares, times and ratios."""
    prose = re.sub(
        r"<!-- measured.*?<!-- end -->|```.*?```|`[^`]*`|^    .*?$", "", page, flags=re.S | re.M
    )
    prose = re.sub(
        r"arXiv:[\d., ]+|Python 3\.11|Apache-2\.0|intervals? .{0,10}95 %|95 %", "", prose
    )
    return re.findall(r"\d+\.\d+|\d+ ?(?:%|ms|times|tokens per)", prose)


def test_results_are_those_of_the_files():
    assert PAGE.read_text() == results_page(), "python -m treespec.experiments.studies.results_page"


def test_the_front_page_too():
    page = README.read_text()
    assert page == filled(page), "python -m treespec.experiments.studies.results_page"
    assert page.count("<!-- measured: ") == page.count("<!-- end -->") == 2
    assert len(page.splitlines()) <= 200


@pytest.mark.parametrize("page", [README, GUIDE], ids=lambda path: path.name)
def test_no_figure_is_typed_by_hand(page):
    assert measured_by_hand(page.read_text()) == []


@pytest.mark.parametrize(
    "text", ["1.27 times as fast", "off by 12 %", "takes 5 ms", "0.98 of plain"]
)
def test_such_figures_would_be_found(text):
    assert measured_by_hand(README.read_text() + text)


def test_a_figure_that_was_changed_is_found():
    page = README.read_text()
    number = re.search(r"\| (\d+\.\d+) \|", page)
    changed = page[: number.start(1)] + "9.99" + page[number.end(1) :]
    assert filled(changed) == page != changed


@pytest.mark.parametrize(
    ("data", "apart"),
    [
        ({"config": {"alone": 2, "together": None}}, False),
        ({"config": {"together": 3}}, False),
        ({"config": {"together": None}, "together": 1}, True),  # memory had no room for more
        ({"config": {"together": None}, "together": 5}, False),
        ({"config": {"together": 1}}, True),
        ({"config": {}}, True),  # before there were turns
        ({"grid": {}}, True),
        ({}, False),  # no run
    ],
)
def test_a_section_says_that_its_run_was_measured_by_prompts(monkeypatch, tmp_path, data, apart):
    (source, *_) = SECTIONS["tree_vs_chain"].paths
    study = json.loads(source.read_text())
    rest = {key: value for key, value in study.items() if key not in ("config", "together")}
    (tmp_path / source.name).write_text(json.dumps(rest | data))
    monkeypatch.setattr(results_module, "RESULTS", tmp_path)
    assert by_prompts(data) is apart
    assert (results_module.BY_PROMPTS in SECTIONS["tree_vs_chain"].body) is apart


def test_the_loop_and_missed_goals_are_shown():
    """If the benchmark of passes misses a goal, the page says so."""
    figures = json.loads(SECTIONS["passes"].paths[0].read_text())["figures"]
    body = SECTIONS["passes"].body
    assert {verdict.split()[-1] for verdict in figures["verdicts"]} <= {"met", "MISSED"}
    assert all(f"- {verdict}\n" in body for verdict in figures["verdicts"])
    for row in figures["loop"]:
        assert f"| {row['level_ms']:.2f} | {row['outside_ms']:.2f} |" in body


def test_every_file_has_its_section():
    shown = {path for section in SECTIONS.values() for path in section.paths}
    assert set(RESULTS.glob("*.json")) == shown


def test_a_part_that_there_is_not():
    with pytest.raises(ConfigError, match="no section 'tree_vs_cat'"):
        filled("<!-- measured: tree_vs_cat -->\n<!-- end -->")
