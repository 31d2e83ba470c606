"""Greedy text equals `generate` with every implementation of tree attention that a user can name.

Whether Triton's kernels are interpreted is decided when Triton is imported, so this file runs itself in a
process with TRITON_INTERPRET=1 (`test_through_the_interpreter`).
"""

import os
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch

from attention_masks import dense
from attention_masks.tree_attention import IMPLEMENTATIONS, Options, api
from attention_masks.tree_attention.tree_pass import TreePass
from treespec import TreeShape, load_pair
from treespec.errors import Unavailable, UnsupportedModel
from treespec.experiments.config.schema import ModelsConfig
from treespec.models import attention
from treespec.models.transformers_model import TransformersModel

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="see test_through_the_interpreter")
compiled = pytest.mark.skipif(INTERPRETED, reason="needs no interpreter")

ARCHITECTURES = (
    "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi", "phi3", "gpt2", "gpt_neox", "opt",
    "olmo2", "starcoder2", "cohere", "mixtral", "gpt_oss",
)  # fmt: skip
QUICK = ("llama", "gemma2", "gpt_neox", "gpt_oss")
"""Families with grouped heads; softcaps and windows; no grouping, partial rotary dimensions; sinks."""
WITHOUT_KERNELS = ("reference", "sdpa", "two_pass", "flex")
NO_SOFTCAP = ("sdpa", "two_pass")
TREE = TreeShape.expansion([2, 2])
SLOW = ("flex", "triton")
"""Implementations that run uncompiled or interpreted: tens of milliseconds per layer."""
NEW = 12

Load = Callable[..., Any]
Written = Callable[..., Any]


@pytest.fixture(autouse=True)
def _quick(request: pytest.FixtureRequest, without_shape_checks: None) -> None:
    if INTERPRETED:
        request.getfixturevalue("quick_interpreter")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, TreePass, Options]]:
    """Every call of an implementation: its name, pass and options."""
    made = []

    def spy(name: str) -> Any:
        inner = IMPLEMENTATIONS[name]

        def call(q: Any, k: Any, v: Any, tree_pass: Any, options: Any, **more: Any) -> Any:
            made.append((name, tree_pass, options))
            return inner(q, k, v, tree_pass, options, **more)

        return call

    kernel = spy("triton")
    for name in WITHOUT_KERNELS:
        monkeypatch.setitem(api.IMPLEMENTATIONS, name, spy(name))
    monkeypatch.setitem(api.IMPLEMENTATIONS, "triton", kernel)
    monkeypatch.setattr(api, "triton", kernel)
    return made


@compiled
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_implementation_writes_the_same(
    name: str, load: Load, generated: Written, decoded: Written, calls: list[Any]
) -> None:
    target = TransformersModel(load(name))
    draft = TransformersModel(load(name, draft_of=target.model, noise=0.08))
    expected = generated(target, NEW)
    assert len(set(expected)) >= 4
    for impl in WITHOUT_KERNELS:
        if name == "gemma2" and impl in NO_SOFTCAP:
            with pytest.raises(
                UnsupportedModel,
                match=f"attention='{impl}'.*'auto' tries.*cannot apply softcap = 2.0",
            ):
                TransformersModel(target.model, attention=impl)
            continue
        own = TransformersModel(target.model, attention=impl)
        assert own.attention == impl
        calls.clear()
        tokens, accepted = decoded(own, drafting(draft, name, impl), TREE, NEW)
        print(f"{name} {impl}: {NEW} tokens in {len(accepted)} steps")
        assert tokens == expected, impl
        assert sum(accepted) > 0, impl
        assert impl in {called for called, _, _ in calls}


def drafting(draft: TransformersModel, name: str, impl: str) -> TransformersModel:
    """The draft on the same implementation if that is fast; otherwise in one family only."""
    if impl in SLOW and name != "gemma3":
        return draft
    return TransformersModel(draft.model, attention=impl)


@interpreted
@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in ARCHITECTURES],
)
def test_the_kernel_writes_the_same(
    name: str,
    load: Load,
    prompt: torch.Tensor,
    generated: Written,
    decoded: Written,
    calls: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From prompt to text no mask is made, neither by us nor by transformers."""
    target = TransformersModel(load(name), attention="triton")
    draft = TransformersModel(load(name, draft_of=target.model, noise=0.08))
    twin = drafting(draft, name, "triton")
    expected = generated(target, NEW)
    tokens, accepted = decoded(target, twin, TREE, NEW)
    print(f"{name} triton: {NEW} tokens in {len(accepted)} steps")
    assert tokens == expected
    assert sum(accepted) > 0
    no_masks(monkeypatch)
    target.prefill(prompt)
    calls.clear()
    target.run(prompt[:4], (-1, 0, 0, 1))
    assert [called for called, _, _ in calls] == ["triton"] * target.model.config.num_hidden_layers


def no_masks(patch: pytest.MonkeyPatch) -> None:
    """Every function that makes a dense mask fails, and masks that transformers requests are None."""

    def made(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a dense mask was made")

    patch.setattr(dense, "dense_mask", made)
    patch.setattr(dense, "additive_mask", made)
    patch.setattr(TreePass, "mask", made)
    patch.setattr(TreePass, "bias", made)
    call = attention.TreeAttention.__call__

    def told(self: Any, module: Any, q: Any, k: Any, v: Any, mask: Any, **options: Any) -> Any:
        assert mask is None
        return call(self, module, q, k, v, mask, **options)

    patch.setattr(attention.TreeAttention, "__call__", told)


@interpreted
def test_masks_would_be_noticed(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TransformersModel(load("llama"), attention="sdpa")
    no_masks(monkeypatch)
    with pytest.raises(AssertionError, match="dense mask"):
        model.run(torch.tensor([1, 2, 3]), (-1, 0, 0))


@pytest.mark.parametrize("impl", ["triton"] if INTERPRETED else ["reference"])
def test_windows_softcaps_and_sinks_are_those_of_the_call(
    impl: str, load: Load, calls: list[Any]
) -> None:
    """The arguments of each layer count, not the configuration."""
    found = {}
    for name in ("mistral", "gemma3", "gemma2", "gpt_oss"):
        model = TransformersModel(load(name), attention=impl)
        layers = model.model.model.layers
        model.model.config.sliding_window = 3
        model.model.config.attn_logit_softcapping = 1.0
        if name == "mistral":
            layers[1].self_attn.config = plain = type(model.model.config)()
            plain._attn_implementation, plain.sliding_window = attention.NAME, 6
        else:
            layers[0].self_attn.sliding_window = 6
        if name == "gemma2":
            layers[1].self_attn.attn_logit_softcapping = 5.0
        calls.clear()
        model.run(torch.tensor([1, 2, 3]), (-1, 0, 0))
        assert [called for called, _, _ in calls] == [impl] * len(layers)
        found[name] = [(options.window, options.softcap) for _, _, options in calls]
        sinks = [options.sinks for _, _, options in calls]
        if name == "gpt_oss":
            for layer, given in zip(layers, sinks, strict=True):
                assert given is layer.self_attn.sinks
        else:
            assert sinks == [None] * len(layers)
    assert found["mistral"] == [(3, None), (6, None)]  # this family reads its config at each call
    assert found["gemma3"] == [(6, None), (None, None), (8, None)]
    assert found["gemma2"] == [(6, 2.0), (None, 5.0), (8, 2.0)]
    assert found["gpt_oss"] == [(6, None), (None, None)]


@compiled
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss"])
@pytest.mark.parametrize("impl", ["auto", *WITHOUT_KERNELS])
def test_prompts_need_no_implementation_where_pytorch_is_causal(
    name: str, impl: str, load: Load, prompt: torch.Tensor, calls: list[Any]
) -> None:
    model = TransformersModel(load(name), attention=impl)
    expected = {"llama": 0, "gemma3": 2, "gpt_oss": 2}[name]  # windows; sinks
    if impl == "reference":
        expected = len(model.model.model.layers)
    calls.clear()
    model.prefill(prompt)
    assert len(calls) == expected
    assert {called for called, _, _ in calls} <= {"sdpa" if impl == "auto" else impl}


@compiled
def test_names_that_cannot_be_had(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("llama")
    with pytest.raises(Unavailable, match=r"attention='tritn' is not known: choose.*'triton'"):
        TransformersModel(model, attention="tritn")
    with pytest.raises(Unavailable, match=r"attention='triton' cannot run here.*needs a CUDA dev"):
        TransformersModel(model, attention="triton")
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(Unavailable, match="'tritn' is not known"):
        load_pair("embedded", attention="tritn")


@compiled
def test_a_pair_takes_the_implementation() -> None:
    pair = load_pair("embedded", attention="two_pass")
    assert pair.target.attention == pair.draft.attention == "two_pass"


def test_configs_know_the_same_names() -> None:
    known = get_args(ModelsConfig.model_fields["attention"].annotation)
    assert set(known) == {"auto", "transformers", *IMPLEMENTATIONS}


@compiled
@pytest.mark.parametrize("marks", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_through_the_interpreter(interpret: Callable[..., str], marks: str) -> None:
    assert " passed" in interpret(__file__, "-m", marks)
