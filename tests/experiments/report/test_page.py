import json
import re
from html.parser import HTMLParser

import pytest
from run_folders.folders import SyntheticMethod, demo_methods, write_run

from treespec.experiments.report.page import write_report
from treespec.experiments.report.run import load_run
from treespec.tree import TreeShape

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Structure(HTMLParser):
    """Tracks open tags, and fails on tags that are not closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.headings = [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if self.open[-1:] not in (["style"], ["script"]):
            self.text.append(data)
        if self.open[-1:] == ["h2"]:
            self.headings.append(data)


@pytest.fixture(scope="module")
def page(demo_page):
    assert demo_page.name == "report.html"
    return demo_page


@pytest.fixture(scope="module")
def parsed(page):
    structure = Structure()
    structure.feed(page.read_text(encoding="utf-8"))
    structure.close()
    return structure


def test_tags_are_balanced(parsed):
    assert parsed.open == []


def test_the_verdict_comes_first(parsed):
    assert parsed.headings == [
        "Verdict",
        "Results",
        "Comparisons",
        "Ranking",
        "Trees against chains at equal budgets",
        "Figures",
        "What explains the speedup",
        "Acceptance by depth and rank",
        "Trees",
        "Step by step",
        "Equality with plain decoding at temperature 0",
        "Speedups over each baseline",
        "One prompt, continued",
        "Tuning of assisted generation",
        "Errors",
        "Environment, and how to run this again",
    ]


def test_it_needs_no_network(page):
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)""", text)
    assert [link for link in links if not link.startswith(("#", "data:"))] == []
    assert "@import" not in text
    assert page.stat().st_size < 5_000_000


def test_hostile_names_are_text(page, parsed):
    text = page.read_text(encoding="utf-8")
    # two of our own: the data and the script of the stepper
    assert text.count("<script") == text.count("</script>") == 2
    assert "<script>alert" not in text
    assert "<script>alert(1)</script>" in "".join(parsed.text)


def test_figures_and_trees_are_inline_and_no_id_stands_twice(page):
    text = page.read_text(encoding="utf-8")
    trees = sum(m.kind == "tree" for m in demo_methods())
    samplings, first_steps = 2, 4
    assert text.count("<svg") == 6 + samplings * trees + first_steps
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert {p.name for p in (page.parent / "figures").iterdir()} == {
        f"{name}.{kind}"
        for name in ("speedup", "prompts", "size", "stages", "accepted", "scaling")
        for kind in ("svg", "png")
    }


def test_divergences_errors_and_environment_are_told(parsed):
    text = " ".join(" ".join(parsed.text).split())
    assert "near-tie: rounding" in text
    assert "not rounding: a bug" in text
    assert "Caution: chains 4x4" in text
    assert "NonFiniteLogits: the draft model returned NaN" in text
    assert "129 of 131 greedy outputs" in text
    assert "Synthetic CPU" in text
    assert "max_new_tokens: 64" in text
    assert "length 4, confidence threshold 0 (tuned on 2 prompts)" in text
    assert "tokens per second prompts" in text
    assert "generate pays for one more pass of the target than it would" in text
    assert "preferred the token of generate" in text


def test_a_tuning_that_failed_says_why(tmp_path):
    folder = write_run(tmp_path / "run", prompts=4, temperatures=[0.0])
    manifest = json.loads((folder / "manifest.json").read_text())
    errors = [{"length": 2, "threshold": 0.4, "error": "no <assistant>"}]
    tuned = {"table": [], "errors": errors, "chosen": {"length": 2, "threshold": 0.4}}
    manifest["tuning"]["assisted"]["assisted"]["T=0"] = tuned
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert "no &lt;assistant&gt;" in write_report(load_run(folder)).read_text(encoding="utf-8")


def test_an_unfinished_run_with_one_method(tmp_path):
    method = SyntheticMethod("tree", "tree", TreeShape.kary(2, 2), (0.5, 0.2))
    folder = write_run(tmp_path / "run", [method], prompts=1, temperatures=[1.0], finished=False)
    text = write_report(load_run(folder)).read_text(encoding="utf-8")
    assert (
        write_report(load_run(folder)).read_text(encoding="utf-8") == text
    )  # nothing in it is left to chance
    assert "The run is not finished" in text
    assert "No verdict: the run has a single method" in text
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
