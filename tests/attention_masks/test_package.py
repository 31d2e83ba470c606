"""The package from outside: public names, modules that importing it loads, docstring examples."""

import doctest
import importlib
import subprocess
import sys

import pytest

import attention_masks

FORMS = [".dense", ".packed", ".intervals", ".flex", ".ragged"]
MODULES = ["", ".topology", *FORMS, ".errors", ".testing", ".commit_rows", ".tree_attention.api"]


def test_every_public_name_is_there():
    for name in attention_masks.__all__:
        assert getattr(attention_masks, name).__module__.startswith("attention_masks.")
        assert name in dir(attention_masks)
    assert callable(attention_masks.topology)
    assert callable(attention_masks.tree_attention)
    with pytest.raises(AttributeError, match="no attribute 'treeattention'"):
        _ = attention_masks.treeattention


def test_importing_the_package_loads_torch_and_nothing_heavier():
    heavy = ("transformers", "networkx", "scipy", "matplotlib", "polars", "pydantic", "triton")
    before = "import sys, torch; before = set(sys.modules); import attention_masks; "
    after = "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    done = subprocess.run(
        [sys.executable, "-c", before + after], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "attention_masks" in loaded
    assert not loaded & set(heavy)


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings(module):
    results = doctest.testmod(importlib.import_module("attention_masks" + module))
    assert results.failed == 0
