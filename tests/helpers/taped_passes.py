"""A small random model whose text varies, and a CPU stand-in for CUDA graphs."""

import importlib

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from treespec.models.transformers_model import TransformersModel

VOCAB = 96
SETTINGS = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
OF_FAMILY = {
    "Llama": {},
    "Mistral": {"sliding_window": 24},
    "Gemma2": {"head_dim": 16, "sliding_window": 24, "attn_logit_softcapping": 2.0},
    "Mixtral": {"num_local_experts": 4},
    "StableLm": {},
}


@pytest.fixture
def make_model():
    """Makes a model of a family, wide enough for its text to vary."""

    def make(family="Llama", seed=0, device="cpu", dtype=torch.float32, **options):
        torch.manual_seed(seed)
        config = getattr(transformers, f"{family}Config")(**SETTINGS, **OF_FAMILY[family])
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.ndim > 1:
                    spread = 0.05 if "embed" in name else 1.3 * weight.shape[-1] ** -0.5
                    weight.copy_(spread * torch.randn_like(weight))
                else:
                    weight += 0.3 * torch.randn_like(weight)
        model = model.to(device, dtype).eval().requires_grad_(False)
        return TransformersModel(model, **options)

    return make


class Tape(TorchDispatchMode):
    """Records every operation of a pass and repeats it on the same tensors: a CUDA graph for CPUs.

    It fails where a graph fails: numbers computed by Python are frozen at the recording, operations that
    Python would choose anew are those of the recording, and outputs are overwritten.
    """

    def __init__(self):
        super().__init__()
        self.operations = []
        self.replays = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.operations.append((lambda: func(*args, **kwargs), out))
        return out

    def replay(self):
        self.replays += 1
        for again, out in self.operations:
            for old, new in zip(tree_leaves(out), tree_leaves(again()), strict=True):
                if not isinstance(old, torch.Tensor):
                    assert old == new
                elif old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.copy_(new)


@pytest.fixture
def taped(monkeypatch):
    """Makes captured runners record tapes on the CPU; returns the tapes. Needs Triton's interpreter."""
    from treespec.models.passes import captured_runner
    from treespec.models.passes.layers_trial import Trial
    from treespec.target import graph

    api = importlib.import_module("attention_masks.tree_attention.api")
    scattered = importlib.import_module("attention_masks.tree_attention.scattered")
    tapes, recording = [], []

    def recorded(kernel):
        def launch(*given):
            with _disable_current_modes():
                out = kernel(*given)
            for tape in recording:
                tape.operations.append((lambda: kernel(*given), out))
            return out

        return launch

    def capture(static, side, pool):
        for _ in range(captured_runner.WARM_UPS):
            static.run()
        tape = Tape()
        tapes.append(tape)
        recording.append(tape)
        with tape:
            scores = static.run()
        recording.clear()
        return tape, scores

    monkeypatch.setattr(api, "triton", recorded(api.triton))
    whole = scattered.scattered_attention
    monkeypatch.setattr(scattered, "scattered_attention", recorded(whole))
    monkeypatch.setattr(captured_runner, "capture", capture)
    monkeypatch.setattr(graph, "_require_cuda", lambda model: None)
    monkeypatch.setattr(graph, "compiled_layers", lambda model: Trial(None, "taped", 0.0))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    return tapes
