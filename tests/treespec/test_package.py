import subprocess
import sys

import pytest

import treespec


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_importing_the_package_loads_torch_and_nothing_heavier():
    heavy = ["transformers", "scipy", "networkx", "matplotlib", "polars", "pydantic", "pandas"]
    code = f"import treespec, sys; print([m for m in {heavy} if m in sys.modules])"
    assert python(code).strip() == "[]"


def test_public_names():
    for name in treespec.__all__:
        assert getattr(treespec, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        treespec.nothing  # noqa: B018
