"""Targets on several devices: everything that a CPU can test, and every refusal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from treespec import load_pair
from treespec.errors import LoadError
from treespec.models.pair_places import EMBEDDED
from treespec.models.transformers_model import TransformersModel
from treespec.models.variants import spread
from treespec.models.variants.spread import (
    device_map_arguments,
    require_whole,
    tensor_parallel_arguments,
)

PARENTS = (-1, 0, 0, 1, 2)
CPU = torch.device("cpu")


def llama(layers: int = 2) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=layers,
        intermediate_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def logits_of(model: TransformersModel) -> torch.Tensor:
    """Logits of a tree after a prompt, and of another tree after a commit."""
    model.prefill(torch.arange(1, 7))
    first = model.run(torch.tensor([7, 8, 9, 10, 11]), PARENTS).logits
    model.keep([0, 2, 4])
    return torch.cat([first, model.run(torch.tensor([3, 4, 5, 6, 7]), PARENTS).logits])


@pytest.fixture
def without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_a_map_to_one_device_changes_nothing() -> None:
    pytest.importorskip("accelerate")
    plain = load_pair(EMBEDDED)
    mapped = load_pair(EMBEDDED, device_map={"": "cpu"})
    assert torch.equal(logits_of(plain.target), logits_of(mapped.target))
    assert mapped.draft.device == mapped.target.device


def test_trees_run_through_the_hooks_of_a_dispatched_model() -> None:
    """accelerate moves the inputs of a layer to its device; here every device is the CPU."""
    accelerate = pytest.importorskip("accelerate")
    truth = logits_of(TransformersModel(llama()))
    model = llama()
    parts = ("embed_tokens", "layers.0", "layers.1", "norm", "rotary_emb")
    places = dict.fromkeys((*(f"model.{part}" for part in parts), "lm_head"), "cpu")
    skip = model._skip_keys_device_placement
    model = accelerate.dispatch_model(
        model, places, main_device="cpu", force_hooks=True, skip_keys=skip
    )
    assert hasattr(model.model.layers[1], "_hf_hook")
    torch.testing.assert_close(logits_of(TransformersModel(model)), truth)


def test_a_map_is_auto_or_a_mapping() -> None:
    with pytest.raises(LoadError, match="'balanced' is not known: give 'auto', or a mapping"):
        device_map_arguments("balanced")


@pytest.mark.parametrize(
    ("device_map", "said"),
    [
        ({}, r"device_map=\{\} names no module"),
        (
            {"model.nothing": "cpu"},
            r"device_map names 'model\.nothing', .*model\.layers, .*lm_head",
        ),
        ({"": "cpu", "layers": "cpu"}, "device_map names 'layers'"),
    ],
)
def test_a_map_names_modules_of_the_model(device_map: dict[str, str], said: str) -> None:
    """transformers puts everything on the CPU without a word."""
    pytest.importorskip("accelerate")
    with pytest.raises(LoadError, match=said):
        load_pair(EMBEDDED, device_map=device_map)


def test_auto_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(LoadError, match=r"device_map='auto' .* finds none here"):
        device_map_arguments("auto")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_map_arguments("auto") == {"device_map": "auto"}


def test_accelerate_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "find_spec", lambda name: None)
    with pytest.raises(LoadError, match="pip install accelerate"):
        load_pair(EMBEDDED, device_map={"": "cpu"})


def test_a_model_that_does_not_fit_is_refused() -> None:
    model = llama(1)
    model.hf_device_map = {"model.embed_tokens": 0, "model.layers.0": "cpu", "lm_head": "disk"}
    with pytest.raises(LoadError, match=r"does not fit on the GPUs: 2 of its .*'model\.layers\.0'"):
        require_whole(model, "big")
    for fits in ({"": 0}, {"": "cpu"}, {"a": 0, "b": 1}):
        model.hf_device_map = fits
        require_whole(model, "big")


@pytest.mark.usefixtures("without_torchrun")
def test_tensor_parallel_needs_torchrun() -> None:
    with pytest.raises(LoadError, match="torchrun --nproc-per-node 2"):
        load_pair(EMBEDDED, tensor_parallel=True)


def test_tensor_parallel_on_the_wrong_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(spread, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(LoadError, match=r"models\.device=cuda"):
        tensor_parallel_arguments(CPU)
    with pytest.raises(LoadError, match="4 processes on a machine with 2 GPUs"):
        tensor_parallel_arguments(torch.device("cuda"))


def test_what_excludes_each_other() -> None:
    with pytest.raises(LoadError, match="cannot be enlarged"):
        load_pair(EMBEDDED, device_map={"": "cpu"}, enlarge="20M")
    with pytest.raises(LoadError, match="exclude each other"):
        load_pair(EMBEDDED, device_map={"": "cpu"}, tensor_parallel=True)


TWO_PROCESSES = """
import os, sys, torch
from treespec import load_pair
from treespec.models.variants.spread import ProcessesDiffer

torch.set_num_threads(1)
pair = load_pair("embedded", tensor_parallel=True)
rank = int(os.environ["RANK"])
assert torch.distributed.get_world_size() == 2
layer = pair.target.model.model.layers[0].self_attn.q_proj.weight
assert layer.to_local().shape[0] * 2 == layer.shape[0], layer.shape
alone = load_pair("embedded").target
parents, tokens = (-1, 0, 0, 1, 2), torch.tensor([7, 8, 9, 10, 11])
for model in (pair.target, alone):
    model.prefill(torch.arange(1, 9))
ours, truth = (model.run(tokens, parents).logits for model in (pair.target, alone))
torch.testing.assert_close(ours, truth, rtol=1e-4, atol=1e-4)
try:
    pair.target.run(torch.tensor([3 + rank]), (-1,))
except ProcessesDiffer:
    print("noticed")
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_share_a_target(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    script = tmp_path / "two.py"
    script.write_text(TWO_PROCESSES)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    found = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("noticed") == 2
