"""Greedy text over trees equals `generate`, for every supported architecture, through save and load."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attention_masks import topology
from attention_masks.tree_attention import TreePass
from treespec import TreeShape
from treespec.errors import UnsupportedModel
from treespec.models import attention, routes
from treespec.models.transformers_model import TransformersModel

OUR_ATTENTION = (
    "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi", "phi3", "gpt2", "gpt_neox", "opt",
    "olmo2", "starcoder2", "cohere", "mixtral", "gpt_oss",
)  # fmt: skip
OUR_MASK = ("stablelm", "falcon", "gptj")
PASSES = (attention.CausalAttention, attention.TreeAttention)
NEW = 64
TREES = {"chain": TreeShape.chain(4), "bushy": TreeShape.expansion([3, 2, 1])}

Load = Callable[..., Any]
Written = Callable[..., Any]


def smallest_margin(model: TransformersModel, prompt: torch.Tensor, text: list[int]) -> float:
    """Smallest difference of the two best logits along a text, in standard deviations of the logits."""
    with model.as_transformers() as plain, torch.inference_mode():
        logits = plain(torch.cat([prompt, torch.tensor(text)])[None]).logits[
            0, len(prompt) - 1 : -1
        ]
    best = logits.topk(2).values
    return float(((best[:, 0] - best[:, 1]) / logits.std(-1)).min())


@pytest.mark.parametrize("name", OUR_ATTENTION + OUR_MASK)
def test_greedy_text_equals_generate(
    name: str,
    load: Load,
    prompt: torch.Tensor,
    generated: Written,
    decoded: Written,
    monkeypatch: pytest.MonkeyPatch,
    without_shape_checks: None,
) -> None:
    target = TransformersModel(load(name))
    draft = TransformersModel(load(name, draft_of=target.model))
    assert target.attention == ("transformers" if name in OUR_MASK else "auto")
    expected = generated(target, NEW)
    print(f"{name}: smallest top-2 margin {smallest_margin(target, prompt, expected):.2g} sd")
    assert len(set(expected)) >= 8
    for kind, shape in TREES.items():
        tokens, accepted = decoded(target, draft, shape, NEW)
        print(f"  {kind}: {sum(accepted) / len(accepted) + 1:.2f} tokens per step")
        assert tokens == expected, kind
        assert sum(accepted) > 0, "no draft was ever accepted: this proves little"
        assert min(accepted[:-1]) < shape.depth, "every draft was accepted: this proves little"

    # The test above would detect a wrong mask, a missing window, a missing softcap and missing sinks.
    drops = [drop_the_tree]
    options = ["window"] * (name in ("mistral", "gemma2", "gemma3", "starcoder2", "gpt_oss"))
    options += ["softcap"] * (name == "gemma2") + ["sinks"] * (name == "gpt_oss")
    drops += [drop_an_option(o, where) for o in options for where in PASSES]
    for drop in drops:
        with monkeypatch.context() as patch:
            drop(patch)
            tokens, _ = decoded(target, draft, TREES["bushy"], NEW, until_not=expected)
            assert tokens != expected[: len(tokens)], drop
    assert decoded(target, draft, TREES["bushy"], NEW)[0] == expected


def drop_the_tree(patch: pytest.MonkeyPatch) -> None:
    """Every node attends to all nodes before it, as under a causal mask over rows."""

    def as_chain(tree_pass: TreePass) -> TreePass:
        chain = topology(range(-1, tree_pass.topology.size - 1))
        return TreePass(chain, tree_pass.prefix_len, tree_pass.rows)

    for route in (routes.OwnAttention, routes.OwnMask):
        trees = route.trees
        patch.setattr(route, "trees", lambda self, p, trees=trees: trees(self, [*map(as_chain, p)]))


def drop_an_option(option: str, where: type) -> Callable[[pytest.MonkeyPatch], None]:
    """Every layer calls its attention without this option, on the prompt or on trees."""
    call = where.__call__

    def drop(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(where, "__call__", lambda *a, **k: call(*a, **{**k, option: None}))

    drop.__qualname__ = f"{where.__name__} without {option}"
    return drop


def test_the_mask_route_writes_the_same(load: Load, generated: Written, decoded: Written) -> None:
    target = TransformersModel(load("qwen3"))
    draft = TransformersModel(load("qwen3", draft_of=target.model), attention="transformers")
    expected = generated(target, NEW)
    target = TransformersModel(target.model, attention="transformers")
    assert target.attention == "transformers"
    assert decoded(target, draft, TREES["bushy"], NEW)[0] == expected


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bloom", "ALiBi"),
        ("falcon_alibi", "ALiBi"),
        ("mamba", "recurrent state"),
        ("jamba", "recurrent state"),
        ("llama4", "chunks"),
        ("gpt_neo", "window_size = 8"),
    ],
)
def test_what_cannot_work_is_refused_by_name(name: str, reason: str, load: Load) -> None:
    model = load(name)
    before = model.config._attn_implementation
    with pytest.raises(UnsupportedModel, match=f"{model.config.model_type} models.*{reason}"):
        TransformersModel(model)
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("name", OUR_ATTENTION + OUR_MASK)
@pytest.mark.parametrize("prefix", [1, 23])
def test_tree_rows_equal_sequential_decoding(name: str, prefix: int, load: Load) -> None:
    """Logits of a tree that is run level by level, committed, and run again."""
    model = TransformersModel(load(name))
    generator = torch.Generator().manual_seed(prefix)
    text = torch.randint(96, (prefix,), generator=generator)
    tokens = torch.randint(96, (10,), generator=generator)
    shape = TreeShape.expansion([3, 2])
    with model.as_transformers() as plain, torch.inference_mode():
        paths = [list(shape.path(node)) for node in range(10)]
        expected = torch.stack(
            [plain(torch.cat([text, tokens[path]])[None]).logits[0, -1] for path in paths]
        )
    model.prefill(text)
    whole = model.run(tokens, shape.parents).logits
    levels = [(0, 1), (1, 4), (4, 10)]
    parts = [model.run(tokens[a:b], shape.parents[:b], a).logits for a, b in levels]
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-4, atol=1e-4)
    model.keep([0, 2, 7])
    after = model.run(tokens[:1], (-1,)).logits
    with model.as_transformers() as plain, torch.inference_mode():
        longer = torch.cat([text, tokens[[0, 2, 7, 0]]])
        torch.testing.assert_close(
            after[0], plain(longer[None]).logits[0, -1], rtol=1e-4, atol=1e-4
        )
