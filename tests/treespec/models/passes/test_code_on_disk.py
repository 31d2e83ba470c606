"""The note beside compiled code: for this model, in this folder."""

import pytest
import torch

from treespec.models.passes import compiled_pass
from treespec.models.passes.code_on_disk import is_on_disk, note_on_disk
from treespec.models.transformers_model import TransformersModel
from treespec.models.variants.sublayers import layers_from


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "code"))
    return tmp_path / "code"


def test_what_was_compiled_is_known_and_nothing_else(folder, load, monkeypatch):
    model = TransformersModel(load("llama", num_hidden_layers=3))
    assert not is_on_disk(model)
    note_on_disk(model)
    assert is_on_disk(model.fresh())
    assert is_on_disk(TransformersModel(load("llama", seed=5, num_hidden_layers=3)))  # any weights
    for other in (
        TransformersModel(load("llama", seed=6, num_hidden_layers=2)),
        TransformersModel(load("qwen2", num_hidden_layers=3)),
        TransformersModel(load("llama", seed=7, num_hidden_layers=3).to(torch.bfloat16)),
        model.without(layers_from(2, 3)),
        model.without(["mlp.1"]),
    ):
        assert not is_on_disk(other)
    monkeypatch.setattr(
        compiled_pass, "LARGEST_SHARE_OF_FREE_MEMORY", 0.0
    )  # code for other weights
    assert not is_on_disk(model)
    monkeypatch.setattr(compiled_pass, "LARGEST_SHARE_OF_FREE_MEMORY", 1.0)
    assert is_on_disk(model)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder.parent / "other"))
    assert not is_on_disk(model)


def test_where_nothing_can_be_compiled_or_written(folder, load, monkeypatch):
    model = TransformersModel(load("llama"))
    folder.write_text("no folder")
    note_on_disk(model)
    assert not is_on_disk(model)
    folder.unlink()
    note_on_disk(model)
    assert is_on_disk(model)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not is_on_disk(model)
