"""The outline of a pair, made without its weights, matches the loaded pair."""

import shutil
from importlib.resources import files
from pathlib import Path

import pytest

from treespec.errors import LoadError
from treespec.models.load import load_pair
from treespec.models.outline import outline_pair


def test_an_outline_is_that_of_the_loaded_pair():
    outline, pair = outline_pair("embedded"), load_pair("embedded")
    for told, model in ((outline.target, pair.target), (outline.draft, pair.draft)):
        assert (told.max_length, told.vocab_size) == (model.max_length, model.vocab_size)
    assert outline.tokenizer.get_vocab() == pair.tokenizer.get_vocab()


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "there is no model.safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"{}"), "is truncated"),
        (lambda folder: (folder / "config.json").write_text("[]"), "must hold a JSON object"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "tokenizer"),
    ],
)
def test_broken_files_are_refused_as_at_load(tmp_path, change, part):
    shutil.copytree(Path(str(files("treespec"))) / "embedded", tmp_path / "pair")
    change(tmp_path / "pair" / "draft")
    for read in (outline_pair, load_pair):
        with pytest.raises(LoadError, match=part):
            read(tmp_path / "pair")
