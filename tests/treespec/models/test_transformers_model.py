"""What the wrapper guarantees besides correct logits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from treespec.errors import ContextOverflow, InvalidTree, UnsupportedModel
from treespec.models import attention
from treespec.models.transformers_model import TransformersModel

Load = Callable[..., Any]
TEXT = torch.tensor([5, 17, 3, 80, 41])


def test_plain_calls_on_our_attention_raise_instead_of_being_wrong(load: Load) -> None:
    model = TransformersModel(load("llama"))
    with pytest.raises(UnsupportedModel, match="as_transformers"):
        model.model(TEXT[None])
    with model.as_transformers() as plain:
        assert plain.config._attn_implementation == "sdpa"
        assert plain(TEXT[None]).logits.shape == (1, 5, 96)
    assert model.model.config._attn_implementation == attention.NAME


def test_a_tree_never_meets_another_attention(load: Load) -> None:
    """sdpa would ignore the tree silently."""
    model = TransformersModel(load("llama"))
    twin = model.fresh()
    twin.prefill(TEXT)
    with model.as_transformers():
        with pytest.raises(UnsupportedModel, match="set to 'sdpa'"):
            twin.run(TEXT[:2], (-1, 0))
        with pytest.raises(UnsupportedModel, match="set to 'sdpa'"):
            model.prefill(TEXT)
    assert twin.run(TEXT[:2], (-1, 0)).logits.shape == (2, 96)


def test_ours_comes_back_after_an_error_in_a_baseline(load: Load) -> None:
    model = TransformersModel(load("llama"))
    with pytest.raises(KeyError), model.as_transformers():
        raise KeyError
    model.prefill(TEXT)
    assert model.run(TEXT[:1], (-1,)).logits.shape == (1, 96)


def test_padding_masks_are_refused(load: Load) -> None:
    model = TransformersModel(load("llama"))
    with pytest.raises(UnsupportedModel, match="padding"):
        model.model(
            TEXT[None], attention_mask=torch.ones(1, 5), treespec_pass=attention.CausalAttention(5)
        )


def test_a_padded_vocabulary(load: Load) -> None:
    base = TransformersModel(load("llama"))
    wide, narrow = base.fresh(vocab_size=100), base.fresh(vocab_size=90)
    by_one = base.fresh(vocab_size=97)
    for model in (base, wide, narrow, by_one):
        model.prefill(TEXT)
    logits = base.run(TEXT[:1], (-1,)).logits
    assert by_one.run(TEXT[:1], (-1,)).logits.shape == (1, 97)
    assert base.vocab_size == 96
    assert torch.equal(wide.run(TEXT[:1], (-1,)).logits[:, :96], logits)
    assert torch.equal(narrow.run(TEXT[:1], (-1,)).logits, logits[:, :90])
    beyond = wide.run(torch.tensor([99]), (-1,)).logits
    assert beyond.shape == (1, 100)
    assert torch.equal(beyond[:, 96:], torch.full((1, 4), torch.finfo(torch.float32).min))
    assert torch.equal(beyond[:, :96], base.run(torch.tensor([0]), (-1,)).logits)


@pytest.mark.parametrize("beyond", [96, 97, 99])
def test_ids_beyond_the_embeddings_are_read_as_the_first(beyond: int, load: Load) -> None:
    """From the first padded id on, in prompts and in trees."""
    base = TransformersModel(load("llama"))
    wide = base.fresh(vocab_size=100)
    last = torch.tensor([95])
    for model, text in ((wide, [5, beyond, 95]), (base, [5, 0, 95])):
        model.prefill(torch.tensor(text))
    assert torch.equal(wide.run(last, (-1,)).logits[:, :96], base.run(last, (-1,)).logits)
    tree = torch.tensor([17, beyond, 95]), torch.tensor([17, 0, 95])
    logits = [m.run(t, (-1, 0, 1)).logits for m, t in zip((wide, base), tree, strict=True)]
    assert torch.equal(logits[0][:, :96], logits[1])


def test_fresh_shares_weights_and_not_the_cache(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = TransformersModel(load("gemma3"))
    monkeypatch.setattr("treespec.models.transformers_model.probe", None)
    twin = model.fresh()
    model.prefill(TEXT)
    first = model.run(TEXT[:1], (-1,)).logits
    twin.prefill(TEXT.flip(0))
    assert twin.model is model.model
    assert model.length == twin.length == 5
    assert torch.equal(model.run(TEXT[:1], (-1,)).logits, first)


def test_an_empty_prompt_only_forgets(load: Load) -> None:
    model = TransformersModel(load("gpt2"))
    model.prefill(TEXT[:0])
    empty = model.run(TEXT[:1], (-1,)).logits
    model.prefill(TEXT)
    model.prefill(TEXT[:0])
    assert model.length == 0
    assert torch.equal(model.run(TEXT[:1], (-1,)).logits, empty)


def test_the_context_ends_where_the_model_says(load: Load) -> None:
    model = TransformersModel(load("gpt2", n_positions=16))
    tokens = torch.zeros(20, dtype=torch.long)
    model.prefill(tokens[:14])
    star = (-1, *[0] * 19)  # 20 nodes, but positions 14 and 15 only
    assert model.run(tokens, star).logits.shape == (20, 96)
    with pytest.raises(ContextOverflow, match="17 positions"):
        model.run(tokens[:3], (-1, 0, 1))
    with pytest.raises(ContextOverflow, match="17 positions"):
        model.prefill(tokens[:17])


def test_calls_that_do_not_fit_together(load: Load) -> None:
    model = TransformersModel(load("llama"))
    model.prefill(TEXT)
    with pytest.raises(InvalidTree, match="0 have run"):
        model.run(TEXT[:2], (-1, 0, 0), 1)
    with pytest.raises(InvalidTree, match="cannot be continued"):
        model.run(TEXT[:2], (-1, 0, 0))
    with pytest.raises(InvalidTree, match="path from node 0"):
        model.keep([0])
    model.run(TEXT[:4], (-1, 0, 0, 1))
    for nodes in ([1], [0, 1, 2], [0, 2, 3], [0, 4]):
        with pytest.raises(InvalidTree, match="path from node 0"):
            model.keep(nodes)
    model.keep([0, 1, 3])
    assert model.length == 8


def test_it_runs_outside_of_inference_mode_too(load: Load) -> None:
    model = TransformersModel(load("llama"))
    with torch.inference_mode():
        model.prefill(TEXT)
    before = model.run(TEXT[:2], (-1, 0)).logits
    with torch.no_grad():
        model.keep([0])
        assert torch.allclose(model.run(TEXT[1:2], (-1,)).logits, before[1:], atol=1e-5)


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that an operation makes."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.size = max(self.size, out.numel())
        return out


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_long_prompt_needs_no_square_mask(name: str, load: Load) -> None:
    model = TransformersModel(load(name, max_position_embeddings=4096))
    prompt = torch.randint(96, (2048,), generator=torch.Generator().manual_seed(0))
    with LargestTensor() as watch:
        model.prefill(prompt)
    assert watch.size < 2048 * 256
    with model.as_transformers() as plain, torch.inference_mode():
        expected = plain(torch.cat([prompt, TEXT[:1]])[None], logits_to_keep=1).logits[0]
    torch.testing.assert_close(model.run(TEXT[:1], (-1,)).logits, expected, rtol=1e-4, atol=1e-4)


def test_a_pass_makes_one_mask_for_each_window(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    from attention_masks import dense

    model = TransformersModel(load("gemma3", num_hidden_layers=6, layer_types=None))
    model.prefill(TEXT.repeat(4))
    windows = []
    make = dense.additive_mask
    monkeypatch.setattr(
        dense, "additive_mask", lambda *a, **k: (windows.append(k["window"]), make(*a, **k))[1]
    )
    model.run(TEXT[:3], (-1, 0, 0))
    assert sorted(windows, key=str) == [8, None]
