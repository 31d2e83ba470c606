import re
from dataclasses import replace
from pathlib import Path

from run_folders.folders import demo_methods, write_run

from treespec.experiments.report import html
from treespec.experiments.report.run import load_run


def test_headers_of_tables_do_not_break_within_words():
    """A column is at least as wide as the longest word of its header."""
    css = Path(html.__file__).with_name("templates").joinpath("page.css").read_text()
    rules = re.findall(r"^([^{}]*)\{([^{}]*)\}", css, re.MULTILINE)
    of_headers = [body for names, body in rules if re.search(r"\bth\b", names)]
    assert len(of_headers) > 3
    assert not any("anywhere" in body or "break" in body for body in of_headers)


def test_a_run_says_what_it_found(tmp_path):
    methods = list(demo_methods())
    methods[8] = replace(methods[8], name="<b>tree</b>")
    run = load_run(write_run(tmp_path / "run", methods, prompts=6, spread=0.1, jitter=0.03))
    page = run._repr_html_()
    assert "<h4>tree_vs_chain</h4>" in page
    assert "times as fast as" in page
    assert page.count("<table>") == 2
    assert "&lt;b&gt;tree&lt;/b&gt;" in page
    assert "<b>tree" not in page
