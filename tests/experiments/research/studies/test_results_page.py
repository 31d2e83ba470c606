"""Pages with results match the result files, and no measured figure is typed by hand."""

import json
import re

import pytest
import yaml

from treespec.experiments.errors import ConfigError
from treespec.experiments.research.benchmarks.results_file import RESULTS
from treespec.experiments.research.studies import results_page as results_module
from treespec.experiments.research.studies.results_page import (
    PAGE,
    README,
    by_prompts,
    filled,
    results_page,
    sections,
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
    page = PAGE.read_text()
    assert page == results_page(), "python -m treespec.experiments.research.studies.results_page"
    assert len(page.split()) <= 7000


def test_the_front_page_too():
    page = README.read_text()
    assert page == filled(page), "python -m treespec.experiments.research.studies.results_page"
    assert page.count("<!-- measured: ") == page.count("<!-- end -->") == 1
    assert len(page.splitlines()) <= 180


@pytest.mark.parametrize("page", [README, GUIDE], ids=lambda path: path.name)
def test_no_figure_is_typed_by_hand(page):
    assert measured_by_hand(page.read_text()) == []


def test_nor_in_an_answer():
    for name, section in sections().items():
        assert measured_by_hand(re.sub(r"\{[^{}]+\}", "", section.spec["answer"])) == [], name


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
        ({"config": {"together": 1}}, True),
        ({"config": {}}, True),  # before there were turns
        ({"grid": {}}, True),
        ({}, False),  # no run
    ],
)
def test_what_was_measured_by_prompts(data, apart):
    assert by_prompts(data) is apart


def test_a_section_says_so(monkeypatch, tmp_path):
    (source, *_) = sections()["tree_vs_chain"].paths
    study = json.loads(source.read_text())
    assert results_module.BY_PROMPTS not in sections()["tree_vs_chain"].body
    specs = (RESULTS / "sections.yaml").read_text()
    (tmp_path / "sections.yaml").write_text(specs[: specs.index("equal_budget:")])
    (tmp_path / source.name).write_text(json.dumps(study | {"together": 1}))
    monkeypatch.setattr(results_module, "RESULTS", tmp_path)
    assert results_module.BY_PROMPTS in sections()["tree_vs_chain"].body


def test_a_section_that_awaits_its_first_file(monkeypatch, tmp_path):
    specs = yaml.safe_load((RESULTS / "sections.yaml").read_text())
    (tmp_path / "sections.yaml").write_text(
        yaml.safe_dump({"gpu_aa": specs["gpu_aa"]}, sort_keys=False)
    )
    monkeypatch.setattr(results_module, "RESULTS", tmp_path)
    assert sections() == {}
    run = {
        "run": 1,
        "ratio": 1.0123,
        "half_width": 0.011,
        "contains_1": False,
        "joules_per_token": 0.5,
    }
    data = {"measured": "2026-11-29", "hardware": {"gpu": "NVIDIA X"}, "cells": {"run 1": run}}
    (tmp_path / "gpu_aa-nvidia-x.json").write_text(json.dumps(data))
    assert "| 1 | 1.0123 | 1.10% |" in sections()["gpu_aa"].body


def test_a_missed_goal_is_shown():
    section = sections()["passes"]
    verdicts = json.loads(section.paths[0].read_text())["figures"]["verdicts"]
    assert {verdict.split()[-1] for verdict in verdicts} <= {"met", "MISSED"}
    assert all(verdict in section.body for verdict in verdicts)


def test_every_file_has_its_section():
    shown = {path for section in sections().values() for path in section.paths}
    assert set(RESULTS.glob("*.json")) == shown


def test_every_answer_and_cell_has_its_value():
    for name, section in sections().items():
        assert "–." not in section.answer, name
        assert " – | – |" not in section.body, name


def test_a_part_that_there_is_not():
    with pytest.raises(ConfigError, match="no section 'tree_vs_cat'"):
        filled("<!-- measured: tree_vs_cat -->\n<!-- end -->")
