"""What the pages and docstrings show is run."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

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


def python_blocks():
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("code", python_blocks())
def test_readme_examples(code, capsys):
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


def test_readme_names_files_that_exist():
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / link).exists(), link


def test_readme_has_no_placeholders():
    assert not re.findall(r"<!--|TODO|TBD|XXX", (ROOT / "README.md").read_text())
