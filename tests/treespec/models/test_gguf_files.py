"""GGUF files as models: the weights are those of the file, and bad files get one sentence."""

import shutil

import pytest
import torch
from tiny_gguf import CONFIG, END, write_gguf
from transformers import AutoModelForCausalLM

from treespec.errors import LoadError, UnsupportedModel
from treespec.models import gguf_files
from treespec.models.fetching import convert
from treespec.models.load import load_pair
from treespec.models.outline import outline_pair
from treespec.models.source import find

IDS = torch.arange(3, 40)[None]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A file, and the model with its weights, dequantised."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return path, write_gguf(path)


def refused(source, kind=LoadError):
    with pytest.raises(kind) as caught:
        outline_pair(source, "none")
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


def test_logits_are_those_of_the_dequantised_weights(tiny):
    path, reference = tiny
    target = load_pair(path, "none").target
    assert target.gguf == str(path)
    with target.as_transformers() as model, torch.no_grad():
        logits = model(IDS).logits
    wanted = reference(IDS).logits
    assert wanted.std() > 0.5  # else equality would say little
    torch.testing.assert_close(logits, wanted, rtol=1e-5, atol=1e-5)


def test_a_file_is_a_target_and_a_draft_with_its_tokenizer(tiny, tmp_path, capfd):
    pair = load_pair(tiny[0], tiny[0])
    assert capfd.readouterr() == ("", "")  # no bars either
    assert pair.tokenizer.chat_template
    assert pair.tokenizer.decode(list(pair.end_tokens)) == END
    assert pair.target.max_length == CONFIG.max_position_embeddings
    assert pair.target.fingerprint == pair.draft.fingerprint
    write_gguf(tmp_path / "other.gguf", seed=1)
    other = load_pair(tmp_path / "other.gguf", "none").target
    assert other.fingerprint != pair.target.fingerprint
    assert load_pair("embedded").target.gguf is None


def test_the_only_file_of_a_folder_is_taken(tiny, tmp_path):
    shutil.copy(tiny[0], tmp_path / "a.gguf")
    assert find(tmp_path) == find(tmp_path / "a.gguf")
    shutil.copy(tiny[0], tmp_path / "b.gguf")
    assert "holds 2 GGUF files (a.gguf, b.gguf): name one" in refused(tmp_path)
    assert find(tmp_path / "b.gguf").gguf == "b.gguf"
    convert(tmp_path / "a.gguf", tmp_path)
    assert find(tmp_path).gguf is None  # it has a config.json now


def test_converted_weights_are_those_of_the_file(tiny, tmp_path):
    path, reference = tiny
    convert(path, tmp_path / "made")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "made")
    assert not hasattr(model.config, "quantization_config")
    assert model.dtype == torch.float32
    for name, weight in reference.named_parameters():
        assert torch.equal(model.get_parameter(name), weight), name
    assert load_pair(tmp_path / "made", "none").tokenizer.chat_template


@pytest.mark.parametrize("kept", [0, 3, 100, 3000, -100])
def test_a_file_that_was_cut(tiny, tmp_path, kept):
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny[0].read_bytes()[:kept])
    assert f"'{path}': it is truncated, damaged, or not a GGUF file" in refused(path)


def test_a_file_that_is_repaired_is_looked_at_again(tiny, tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(tiny[0].read_bytes()[:100])
    refused(path)
    shutil.copy(tiny[0], path)
    assert outline_pair(path, "none").target.layer_count == CONFIG.num_hidden_layers


def test_an_architecture_that_is_not_converted(tmp_path):
    write_gguf(tmp_path / "x.gguf", architecture="gloop")
    told = refused(tmp_path / "x.gguf", (LoadError, UnsupportedModel))
    assert "x.gguf" in told
    assert "architecture gloop is not supported" in told


def test_no_such_file_and_no_draft(tiny, tmp_path):
    assert "there is no GGUF file" in refused(tmp_path / "none.gguf")
    with pytest.raises(LoadError, match=r"is a target without a draft: name a second"):
        outline_pair(tiny[0])


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_a_package_is_missing(tiny, monkeypatch, package):
    monkeypatch.setattr(gguf_files, "find_spec", lambda name: None if name == package else name)
    assert f"needs the package {package}: pip install" in refused(tiny[0])
