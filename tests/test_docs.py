"""What the pages and docstrings show is run."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest
from pages import PAGES as BUILT
from pages import build, public_modules

from treespec.experiments.config.file import load_config

ROOT = Path(__file__).parents[1]
PACKAGES = ("attention_masks", "treespec")
ENTRY_POINTS = ("__main__", "benchmarks")


def modules():
    for package in PACKAGES:
        found = importlib.import_module(package)
        yield package
        for module in pkgutil.walk_packages(found.__path__, f"{package}."):
            if not any(part in ENTRY_POINTS for part in module.name.split(".")):
                yield module.name


@pytest.mark.parametrize("name", list(modules()))
def test_docstring_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


PAGES = ("README.md", "docs/guide.md", "docs/from-other-tools.md")


def python_blocks():
    for page in PAGES:
        yield from re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("code", list(python_blocks()))
def test_examples(code, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write files
    exec(compile(code, "example", "exec"), {"__name__": "example"})


@pytest.mark.parametrize("page", [*PAGES, "experiments/research/RESULTS.md"])
def test_pages_name_files_that_exist(page):
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(link).exists(), link


def test_traces_that_pages_take_name_a_sampling_setting():
    text = "".join((ROOT / page).read_text() for page in (*PAGES, "experiments/cli/trace.py"))
    found = re.findall(r"treespec trace (\w+) ([^\n\"]+)", text)
    assert len(found) > 5
    for name, rest in found:
        several = len(load_config(name).samplings) > 1
        assert not several or "--sampling" in rest, (name, rest)


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_no_placeholders(page):
    assert not re.findall(r"<!-- (?!measured: |end )|TODO|TBD|XXX", (ROOT / page).read_text())


def test_every_page_of_the_folder_is_built():
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= set(BUILT)


def test_every_public_name_is_documented():
    for module in public_modules().values():
        assert module.docstring, module.modulename
        assert [d.fullname for d in module.members.values() if not d.docstring] == []


@pytest.mark.slow
def test_the_pages_are_built(tmp_path):
    build(tmp_path)
    pages = {page.relative_to(tmp_path): page.read_text() for page in tmp_path.rglob("*.html")}
    first = pages[Path("index.html")]
    for place in ("docs/guide.html", "notebooks/own_drafter.html", "treespec/search.html"):
        assert f'href="{place}"' in first
    for page, html in pages.items():
        for link in re.findall(r'href="(?!\w+:|#|\$)([^"#]+)', html):
            assert (tmp_path / page).parent.joinpath(link).exists(), (page, link)
    dark = re.sub(r"\s", "", first).split("@media(prefers-color-scheme:dark)")[1]
    assert "--text:" in dark
    assert ".pdoc-code.k{" in dark
    assert 'id="load_pair"' in pages[Path("treespec.html")]  # a name that loads at first use
    rule = pages[Path("treespec/verify.html")].split('id="rrsw"')[1].split("</section>")[0]
    assert "<strong>target_probs:</strong>" in rule
    assert '<a href="https://arxiv.org/abs/2402.12374">' in rule
    stepper = pages[Path("notebooks/exploring_a_step.html")].split('<div id="stepper-')[1]
    assert stepper.split("<script")[0].count('aria-label="token tree') > 1  # where no widget runs
