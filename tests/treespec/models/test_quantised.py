"""Quantised models: greedy texts equal `generate`'s, and layers that mix the rows of a pass are refused."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_gguf import write_gguf
from tiny_models import build, perturbed
from tiny_quantised import with_one_scale, write_compressed

from treespec import Law, Sampling, TorchCoins, TreeShape, decode
from treespec.draft.model import ModelDrafter
from treespec.errors import CannotEnlarge, InvalidArgument, LoadError, Unavailable, UnsupportedModel
from treespec.models import probe, quantised
from treespec.models.load import load_pair
from treespec.models.passes.choosing_passes import choose_passes
from treespec.models.quantised import is_small, quantisation_of, require_quantisation, stored_bytes
from treespec.models.source import find, read_config, read_model, require_quantisable
from treespec.models.transformers_model import TransformersModel
from treespec.models.variants.enlarge import enlarge
from treespec.target.model_target import ModelTarget
from treespec.verify import rrsw

CPU = torch.device("cpu")
SHAPE = TreeShape.expansion([3, 2, 1, 1])
TORCHAO = ("int8-weight-only", "int8-dynamic")
Generated = Callable[..., list[int]]
Decoded = Callable[..., tuple[list[int], list[int]]]


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Any]:
    """Build a model, save it, and read it quantised, as a user would; its noisy copy drafts."""

    def read(
        kind: str, name: str = "llama", dtype: torch.dtype = torch.float32
    ) -> tuple[TransformersModel, TransformersModel]:
        pytest.importorskip("torchao")
        model = build(name)
        model.save_pretrained(tmp_path / name)
        noisy = perturbed(model, 0.1).to(dtype)
        target = read_model(find(tmp_path / name), dtype, CPU, quantised=kind)
        return TransformersModel(target), TransformersModel(noisy)

    return read


@pytest.fixture
def compressed(tmp_path: Path) -> Callable[..., Any]:
    """A checkpoint of compressed-tensors, read as a user would."""

    def compressed(activations: str, dtype: torch.dtype = torch.float32) -> Any:
        pytest.importorskip("compressed_tensors")
        folder = write_compressed(build("llama"), tmp_path / "compressed", activations)
        return read_model(find(folder), dtype, CPU)

    return compressed


def assert_near_tie(
    target: TransformersModel, prompt: torch.Tensor, tokens: list[int], expected: list[int]
) -> None:
    """The first difference is between two tokens whose logits differ by less than the rounding."""
    at = next(i for i, pair in enumerate(zip(tokens, expected, strict=False)) if len({*pair}) > 1)
    target.prefill(torch.cat([prompt, torch.tensor(tokens[:at])])[:-1])
    last = torch.tensor([tokens[at - 1]]) if at else prompt[-1:]
    row = target.run(last, (-1,)).logits[0]
    assert abs(row[tokens[at]] - row[expected[at]]) < 0.02 * row.std()
    assert {tokens[at], expected[at]} == {*row.topk(2).indices.tolist()}


@pytest.mark.parametrize("kind", TORCHAO)
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "stablelm", "mixtral"])
def test_greedy_text_equals_generate(
    name: str, kind: str, read: Any, generated: Generated, decoded: Decoded, prompt: torch.Tensor
) -> None:
    """If activations are rounded, the last bit of a number can become a step of 1/127."""
    target, draft = read(kind, name)
    assert is_small(target.model)
    expected = generated(target, 40)
    tokens, accepted = decoded(target, draft, SHAPE, 40)
    if kind == "int8-weight-only" or tokens == expected:
        assert tokens == expected
    else:
        assert_near_tie(target, prompt, tokens, expected)
    assert len(set(expected)) >= 8, "the text varies too little to prove much"
    assert sum(accepted), "no draft was ever accepted: this proves little"


@pytest.mark.parametrize("activations", ["weights only", "a scale for each row"])
def test_compressed_checkpoints_are_read_and_unpacked(
    activations: str, compressed: Any, generated: Generated, decoded: Decoded
) -> None:
    target = TransformersModel(compressed(activations))
    exact = probe.TOLERANCE[torch.float32]
    assert (target.finding.tolerance == exact) == (activations == "weights only")
    draft = TransformersModel(perturbed(build("llama"), 0.1))
    expected = generated(target, 40)
    tokens, accepted = decoded(target, draft, SHAPE, 40)
    assert tokens == expected
    assert sum(accepted)
    assert quantisation_of(target.model) == "compressed-tensors"
    assert not is_small(target.model)  # transformers has unpacked it


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_scale_for_all_rows_is_refused(dtype: torch.dtype, compressed: Any) -> None:
    reason = r"layer model.layers.1.mlp.up_proj computes a row from other rows.*one scale for all"
    with pytest.raises(UnsupportedModel, match=reason):
        TransformersModel(with_one_scale(build("llama").to(dtype)))
    with pytest.raises(UnsupportedModel, match=r"q_proj computes a row from other rows"):
        TransformersModel(compressed("one scale", dtype))


def test_rows_that_depend_on_siblings_are_refused() -> None:
    model = build("llama")
    finding = probe.probe(model)
    runner = TransformersModel(model).runner
    tokens = torch.arange(1, probe.TOKENS + 1)
    runner.prefill(tokens[: probe.PREFIX])
    with torch.inference_mode():
        logits = runner.run(tokens[probe.PREFIX :], probe.PARENTS).logits
    probe._require_same_rows(runner, tokens, logits, finding.tolerance)
    with pytest.raises(UnsupportedModel, match=r"between two trees.*depend on its siblings"):
        probe._require_same_rows(runner, tokens, logits.roll(1, -1), finding.tolerance)


def test_bytes_and_fingerprints_are_those_of_the_stored_weights(read: Any) -> None:
    target, draft = read("int8-weight-only")
    whole = build("llama")
    layers: Any = target.model
    weight = layers.model.layers[0].mlp.up_proj.weight
    assert stored_bytes(weight) == weight.numel() + (4 + 1) * weight.shape[0]  # scale, zero point
    assert stored_bytes(whole.lm_head.weight) == 4 * whole.lm_head.weight.numel()
    assert target.fingerprint != draft.fingerprint
    assert target.fingerprint == read("int8-weight-only")[0].fingerprint
    assert quantisation_of(target.model) == "torchao Int8WeightOnlyConfig"
    assert quantisation_of(whole) is None


def test_a_quantised_model_is_traced(traced: None, read: Any) -> None:
    """Compiled passes take quantised weights; the compiler reads them as they are, or unpacks them."""
    target, _ = read("int8-weight-only")
    choose_passes(target, "compiled")
    assert target.passes.kind == "compiled"


def test_a_pair_of_several_precisions_decodes() -> None:
    pytest.importorskip("torchao")
    pair = load_pair("embedded", draft_dtype="bfloat16", quantised="int8-weight-only")
    assert (pair.target.model.dtype, pair.draft.model.dtype) == (torch.float32, torch.bfloat16)
    assert is_small(pair.target.model)
    assert not is_small(pair.draft.model)
    sampling = Sampling(temperature=1.0)
    drafter = ModelDrafter(pair.draft, SHAPE, Law.WITHOUT_REPLACEMENT, sampling)
    steps = decode(
        ModelTarget(pair.target), drafter, rrsw, torch.arange(5, 30), sampling=sampling,
        coins=TorchCoins(0), max_new_tokens=24,
    )  # fmt: skip
    assert sum(len(step.tokens) for step in steps) == 24


def test_what_is_not_available_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressed: Any
) -> None:
    with pytest.raises(InvalidArgument, match=r"quantised='int3' is not known: choose one of int8"):
        require_quantisation("int3", CPU)
    with monkeypatch.context() as patch:
        patch.setattr(quantised, "find_spec", lambda name: None)
        with pytest.raises(Unavailable, match=r"needs the package torchao: pip install torchao"):
            load_pair("embedded", quantised="int8-dynamic")
    monkeypatch.setattr(quantised, "find_spec", lambda name: name)
    with pytest.raises(Unavailable, match=r"draft_quantised='bitsandbytes-nf4' is for CUDA"):
        load_pair("embedded", draft_quantised="bitsandbytes-nf4")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torchao", None)  # as if importing it failed
        with pytest.raises(
            Unavailable, match=r"^quantised='int8-dynamic': the package torchao .*cannot be used \("
        ):
            load_pair("embedded", quantised="int8-dynamic")
    write_gguf(tmp_path / "x.gguf")
    with pytest.raises(LoadError, match="quantised already, in a GGUF file: give a folder"):
        require_quantisable(find(tmp_path / "x.gguf"), "int8-dynamic", "quantised", "auto")
    compressed("weights only")
    with pytest.raises(LoadError, match=r"draft_quantised=.*quantised already: leave the key out"):
        require_quantisable(
            find(tmp_path / "compressed"), "int8-dynamic", "draft_quantised", "float32"
        )
    with pytest.raises(
        CannotEnlarge, match=r"^quantised='int8-dynamic' with enlarge='20M'.*leave one"
    ):
        load_pair("embedded", quantised="int8-dynamic", enlarge="20M")
    with pytest.raises(
        LoadError, match=r"^quantised='int8-dynamic' is not for weights in float64.*floa"
    ):
        load_pair("embedded", quantised="int8-dynamic", dtype="float64", draft_dtype="float32")
    with pytest.raises(LoadError, match=r"^draft_quantised=.*float64, the dtype of .*draft'"):
        load_pair("embedded", draft_quantised="int8-dynamic", draft_dtype="float64")
    from transformers.quantizers import quantizer_compressed_tensors as reader

    monkeypatch.setattr(reader, "is_compressed_tensors_available", lambda: False)
    with pytest.raises(LoadError, match=r"cannot be read here.*compressed-tensors.*pip install"):
        read_config(find(tmp_path / "compressed"))


def test_weights_that_are_stored_quantised_cannot_be_enlarged(read: Any) -> None:
    target, _ = read("int8-weight-only")
    with pytest.raises(UnsupportedModel, match="load it without quantisation"):
        enlarge(target.model, "20M")
