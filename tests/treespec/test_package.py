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


def test_packages_are_reached_lazily():
    code = (
        "import treespec, sys\n"
        "assert 'treespec.testing' not in sys.modules\n"
        "print(treespec.testing.assert_lossless.__name__, treespec.draft.ModelDrafter.__name__,"
        " treespec.target.ModelTarget.__name__, 'transformers' in sys.modules)"
    )
    assert python(code).split() == ["assert_lossless", "ModelDrafter", "ModelTarget", "False"]


def test_dir_names_what_is_loaded_later():
    code = "import treespec; print(set(treespec.__all__) <= set(dir(treespec)))"
    assert python(code).strip() == "True"
    assert {"Pair", "load_pair", "testing", "draft", "target"} <= set(treespec.__all__)


def test_tree_gathers_its_types():
    from treespec import tree
    from treespec.tree import shape, token_tree

    assert tree.TreeShape is shape.TreeShape is treespec.TreeShape
    assert tree.TokenTree is token_tree.TokenTree is treespec.TokenTree
    assert tree.Law is token_tree.Law is treespec.Law
