"""A GPU that is too small is noticed before weights are read, and how much is missing is said."""

import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from treespec.errors import LoadError
from treespec.models import source, weights_fit
from treespec.models.pair_places import embedded_folder

CUDA = torch.device("cuda", 0)
GIB = 2**30


@pytest.fixture
def place():
    return source.find(embedded_folder() / "target")


def parameter_count(place):
    model = source.read_model(place, "float32", None)
    return sum(weight.numel() for weight in model.parameters())


def device_of(monkeypatch, size):
    """Pretend that so many bytes are free on the device."""
    monkeypatch.setattr(weights_fit, "free_bytes", lambda device: size)


@pytest.mark.parametrize(
    ("dtype", "quantised", "bytes_each"),
    [(torch.float32, None, 4), ("bfloat16", None, 2), ("bfloat16", "int8-weight-only", 1)],
)
def test_what_weights_take(place, monkeypatch, dtype, quantised, bytes_each):
    needed = bytes_each * parameter_count(place)
    device_of(monkeypatch, needed * 1.01)
    weights_fit.require_room(place.shown, dtype, CUDA, quantised)
    device_of(monkeypatch, needed * 0.99)
    with pytest.raises(LoadError, match="are missing"):
        weights_fit.require_room(place.shown, dtype, CUDA, quantised)


def test_weights_are_not_read_for_a_device_that_is_too_small(place, monkeypatch):
    monkeypatch.setattr(
        source.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("read")
    )
    device_of(monkeypatch, -3 * GIB)
    with pytest.raises(LoadError) as caught:
        source.read_model(place, torch.bfloat16, CUDA)
    said = str(caught.value)
    assert re.search(
        r"take 0\.\d GiB in bfloat16, but cuda:0 has -3\.0 GiB free: 3\.\d GiB are", said
    )
    assert all(
        way in said for way in ("dtype", "quantised='int8-weight-only'", "device_map='auto'")
    )
    assert str(embedded_folder()) in said


def test_tensors_that_the_model_leaves_out_take_no_room(tmp_path, monkeypatch):
    """As of a model that was stored with further layers, which predict the tokens after the next."""
    shutil.copytree(embedded_folder() / "target", tmp_path / "model")
    place = source.find(tmp_path / "model")
    needed = 4 * parameter_count(place)
    (weights,) = (tmp_path / "model").glob("*.safetensors")
    stored = load_file(weights) | {"mtp.layers.0.weight": torch.zeros(1024, 1024)}
    save_file(stored, weights, {"format": "pt"})
    device_of(monkeypatch, needed * 1.01)
    monkeypatch.setattr(torch.nn.Module, "to", lambda model, device: model)
    with pytest.raises(LoadError, match="are missing"):
        source.read_model(place, torch.float32, CUDA)
    kind = type(source.read_model(place, torch.float32, None))
    monkeypatch.setattr(kind, "_keys_to_ignore_on_load_unexpected", [r"^mtp\."])
    source.read_model(place, torch.float32, CUDA)


def test_unknown_sizes_are_not_guessed(tmp_path, monkeypatch):
    device_of(monkeypatch, 0)
    weights_fit.require_room(str(tmp_path), torch.float32, CUDA, None)
