"""The probe refuses incorrect models: each kind of error is planted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attention_masks import TreePass, topology
from treespec.errors import UnsupportedModel
from treespec.models import probe, routes
from treespec.models.recorder import window_of
from treespec.models.transformers_model import TransformersModel

Load = Callable[..., Any]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


class SiblingsVisible(TreePass):
    """A mask that is wrong in one place only: the second child sees the first."""

    def mask(self, window: int | None, device: torch.device) -> torch.Tensor:
        mask = super().mask(window, device).clone()
        mask[2, self.prefix_len + 1] = True
        return mask

    def bias(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        bias = super().bias(*args, **kwargs)
        if bias is None:
            return None
        bias = bias.clone()
        bias[2 :: self.row_count, self.prefix_len + 1] = 0.0
        return bias


def plant(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[TreePass], TreePass]) -> None:
    for route in (routes.OwnAttention, routes.OwnMask):
        trees = route.trees
        monkeypatch.setattr(
            route, "trees", lambda self, p, trees=trees: trees(self, [*map(wrong, p)])
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "mixtral"])
def test_right_models_pass_in_every_dtype(name: str, dtype: torch.dtype, load: Load) -> None:
    finding = TransformersModel(load(name, dtype=dtype)).finding
    print(f"{name} {dtype}: error {finding.error:.2g}, ignoring the tree {finding.effect:.2g}")
    assert finding.error < probe.TOLERANCE[dtype] / 4
    assert finding.effect > 0.3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("impl", ["sdpa", "reference", "transformers"])
def test_one_visible_sibling_is_refused(
    dtype: torch.dtype, impl: str, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, lambda p: SiblingsVisible(p.topology, p.prefix_len, p.rows))
    with pytest.raises(UnsupportedModel, match="differ from sequential decoding"):
        TransformersModel(load("llama", dtype=dtype), attention=impl)


def test_a_prefix_that_is_not_seen_is_refused(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, lambda p: TreePass(topology(range(-1, p.key_count - 1)), 0, p.rows))
    with pytest.raises(UnsupportedModel, match="differ from sequential decoding"):
        TransformersModel(load("qwen3"))


def test_positions_by_row_are_refused(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that ignores position_ids and counts the rows of its cache."""
    model = load("llama")
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda *a, position_ids=None, **k: forward(*a, **k))
    with pytest.raises(UnsupportedModel, match="differ from sequential decoding"):
        TransformersModel(model)


def test_a_model_that_drops_the_tree_takes_the_mask(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load("llama")
    forward, base = model.forward, model.model.forward
    monkeypatch.setattr(model, "forward", lambda *a, treespec_pass=None, **k: forward(*a, **k))
    monkeypatch.setattr(model.model, "forward", lambda *a, treespec_pass=None, **k: base(*a, **k))
    assert TransformersModel(model).attention == "transformers"
    with pytest.raises(UnsupportedModel, match="was given no tree"):
        TransformersModel(model, attention="sdpa")


def test_a_window_that_only_the_mask_knows_is_refused(load: Load) -> None:
    """The probe's prompt is far shorter than a window, so its logits cannot show this."""

    class Blind:
        sliding_window = None

        def __getattr__(self, name: str) -> Any:
            return getattr(model.config, name)

    model = load("mistral", sliding_window=64)
    model.model.layers[1].self_attn.config = Blind()
    with pytest.raises(
        UnsupportedModel, match="layer 1 states window None to the attention, but 64 to its mask"
    ):
        TransformersModel(model)


def test_a_window_that_the_mask_has_not_is_refused(load: Load) -> None:
    """The attention would hide keys that the model's own mask shows; a short prompt cannot detect it."""
    model = load("qwen2")
    model.model.layers[1].self_attn.sliding_window = 64
    with pytest.raises(
        UnsupportedModel, match="layer 1 states window 64 to the attention, but None to its mask"
    ):
        TransformersModel(model, attention="sdpa")


def test_a_window_other_than_the_masks_is_refused(load: Load) -> None:
    model = load(
        "qwen2", use_sliding_window=True, sliding_window=64, layer_types=["sliding_attention"] * 2
    )
    assert TransformersModel(model, attention="sdpa").attention == "sdpa"
    model.model.layers[0].self_attn.sliding_window = 65
    with pytest.raises(
        UnsupportedModel, match="states window 65 to the attention, but 64 to its mask"
    ):
        TransformersModel(model, attention="sdpa")


@pytest.mark.parametrize("window", [256, 4096])  # the context is 256
def test_a_window_beyond_the_context_is_no_window(window: int, load: Load) -> None:
    assert TransformersModel(load("mistral", sliding_window=window)).attention == "auto"


def test_a_layer_that_calls_twice_is_noticed(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("llama")
    layer = model.model.layers[1].self_attn
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda *a, **k: (forward(*a, **k), forward(*a, **k))[1])
    with pytest.raises(UnsupportedModel, match=r"the calls came from layers \[0, 1, 1\]"):
        TransformersModel(model, attention="sdpa")


def test_an_error_must_be_far_below_the_effect_of_a_wrong_mask() -> None:
    """The tolerance alone is not enough: a model that hardly uses earlier tokens hides a wrong mask."""
    probe._judge(1e-4, 4.1e-4, torch.float32)
    with pytest.raises(UnsupportedModel, match="could not be told from a right one"):
        probe._judge(1e-4, 3.9e-4, torch.float32)
    with pytest.raises(UnsupportedModel, match="differ from sequential decoding"):
        probe._judge(1.1e-3, 1.0, torch.float32)


def test_a_layer_that_does_not_call_is_noticed(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("llama")
    layer = model.model.layers[1]
    monkeypatch.setattr(
        layer.self_attn, "forward", lambda hidden_states, **k: (hidden_states, None)
    )
    with pytest.raises(UnsupportedModel, match=r"the calls came from layers \[0\]"):
        TransformersModel(model, attention="sdpa")


def test_nan_weights_and_short_contexts_are_named(load: Load) -> None:
    model = load("llama")
    model.lm_head.weight.data[:] = torch.nan
    with pytest.raises(UnsupportedModel, match="NaN or infinite"):
        TransformersModel(model)
    with pytest.raises(UnsupportedModel, match="context is 8 tokens"):
        TransformersModel(load("llama", max_position_embeddings=8))
    with pytest.raises(UnsupportedModel, match=f"context is {probe.TOKENS - 1} tokens"):
        TransformersModel(load("llama", max_position_embeddings=probe.TOKENS - 1))
    least = TransformersModel(load("llama", max_position_embeddings=probe.TOKENS))
    assert least.max_length == probe.TOKENS


def test_rope_that_changes_with_length_ends_at_its_original_context(load: Load) -> None:
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
    }  # fmt: skip
    model = load("phi3", rope_parameters=rope, original_max_position_embeddings=64)
    assert TransformersModel(model).max_length == 64


def test_a_boolean_mask_is_right_with_sdpa_and_wrong_with_eager(load: Load) -> None:
    """Our mask is additive because eager attention adds a boolean mask to the scores."""
    model = load("stablelm")
    tokens = torch.randint(1, 96, (1, 6), generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([[0, 1, 1, 2, 2, 2]])
    tree = TreePass(topology([-1, 0, 0, 1, 2, 1]), 0)
    boolean = tree.mask(None, torch.device("cpu"))[None, None]
    additive = routes.OwnMask("", torch.float32, torch.device("cpu")).trees([tree])[
        "attention_mask"
    ]
    assert additive.is_floating_point()
    logits = {}
    for implementation in ("sdpa", "eager"):
        model.set_attn_implementation(implementation)
        for kind, mask in {"boolean": boolean, "additive": additive}.items():
            with torch.inference_mode():
                output = model(tokens, attention_mask=mask, position_ids=positions, use_cache=False)
            logits[implementation, kind] = output.logits
    torch.testing.assert_close(logits["eager", "additive"], logits["sdpa", "additive"])
    torch.testing.assert_close(logits["sdpa", "boolean"], logits["sdpa", "additive"])
    assert (logits["eager", "boolean"] - logits["sdpa", "additive"]).abs().max() > 0.1
    # So trees are correct on the second route, through eager attention.
    assert TransformersModel(model, attention="transformers").finding.plain == "eager"


@pytest.mark.parametrize("current", ["sdpa", "eager", routes.NAME])
def test_a_softcap_is_never_left_to_an_attention_without_one(load, monkeypatch, current) -> None:
    """transformers before 5.21 says that Gemma 2 supports PyTorch's attention."""
    for name, expected in (("gemma2", "eager"), ("llama", "sdpa")):
        model = load(name)
        monkeypatch.setattr(type(model), "_supports_sdpa", True)
        model.config._attn_implementation = current
        assert routes.plain_implementation(model) == ("eager" if current == "eager" else expected)


def test_windows_are_found_out_by_asking() -> None:
    from transformers import masking_utils as masks

    cpu = torch.device("cpu")
    assert window_of(masks.causal_mask_function, 100, cpu) is None
    assert window_of(masks.sliding_window_causal_mask_function(8), 100, cpu) == 8
    assert window_of(masks.sliding_window_causal_mask_function(100), 100, cpu) is None
    for function in (
        masks.chunked_causal_mask_function(8, torch.zeros(1, dtype=torch.long)),
        masks.bidirectional_mask_function,
        masks.sliding_window_bidirectional_mask_function(8),
    ):
        assert isinstance(window_of(function, 100, cpu), str)
