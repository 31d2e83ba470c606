"""Greedy text over trees equals `generate`, for every supported architecture, through save and load."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attention_masks import topology
from attention_masks.tree_attention import TreePass
from treespec import Law, Sampling, TorchCoins, TreeShape, decode
from treespec.draft.model import ModelDrafter
from treespec.errors import UnsupportedModel
from treespec.models import attention, routes
from treespec.models.transformers_model import TransformersModel
from treespec.target.model import ModelTarget
from treespec.verify import greedy

OUR_ATTENTION = (
    "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi", "phi3", "gpt2", "gpt_neox", "opt",
    "olmo2", "starcoder2", "cohere", "mixtral",
)  # fmt: skip
OUR_MASK = ("stablelm", "falcon", "gptj")
PASSES = (attention.CausalAttention, attention.TreeAttention)
NEW = 64
TREES = {"chain": TreeShape.chain(4), "bushy": TreeShape.expansion([3, 2, 1])}
PROMPT = torch.randint(96, (24,), generator=torch.Generator().manual_seed(3))

Load = Callable[..., Any]


def generated(model: TransformersModel) -> list[int]:
    """What transformers' own greedy search writes after the prompt."""
    with model.as_transformers() as plain:
        assert plain.config._attn_implementation != attention.NAME
        ids = plain.generate(
            PROMPT[None],
            attention_mask=torch.ones_like(PROMPT[None]),  # else token 0 is taken for padding
            do_sample=False,
            max_new_tokens=NEW,
        )
    return ids[0, len(PROMPT) :].tolist()


def decoded(
    target: TransformersModel,
    draft: TransformersModel,
    shape: TreeShape,
    until_not: list[int] | None = None,
) -> tuple[list[int], list[int]]:
    """What our loop writes (up to a difference from `until_not`), and how many drafts it accepted."""
    sampling = Sampling(temperature=0.0)
    drafter = ModelDrafter(draft, shape, Law.DETERMINISTIC, sampling)
    tokens, accepted = [], []
    for step in decode(
        ModelTarget(target),
        drafter,
        greedy,
        PROMPT,
        sampling=sampling,
        coins=TorchCoins(0),
        max_new_tokens=NEW,
    ):
        tokens += step.tokens
        accepted.append(step.verdict.accepted)
        if until_not is not None and tokens != until_not[: len(tokens)]:
            break
    return tokens, accepted


def smallest_margin(model: TransformersModel, text: list[int]) -> float:
    """How near the two best logits came along a text, in standard deviations of the logits."""
    with model.as_transformers() as plain, torch.inference_mode():
        logits = plain(torch.cat([PROMPT, torch.tensor(text)])[None]).logits[
            0, len(PROMPT) - 1 : -1
        ]
    best = logits.topk(2).values
    return float(((best[:, 0] - best[:, 1]) / logits.std(-1)).min())


@pytest.mark.parametrize("name", OUR_ATTENTION + OUR_MASK)
def test_greedy_text_equals_generate(
    name: str, load: Load, monkeypatch: pytest.MonkeyPatch, without_shape_checks: None
) -> None:
    target = TransformersModel(load(name))
    draft = TransformersModel(load(name, draft_of=target.model))
    assert target.attention == ("transformers" if name in OUR_MASK else "auto")
    expected = generated(target)
    print(f"{name}: smallest top-2 margin {smallest_margin(target, expected):.2g} sd")
    assert len(set(expected)) >= 8
    for kind, shape in TREES.items():
        tokens, accepted = decoded(target, draft, shape)
        print(f"  {kind}: {sum(accepted) / len(accepted) + 1:.2f} tokens per step")
        assert tokens == expected, kind
        assert sum(accepted) > 0, "no draft was ever accepted: this proves little"
        assert min(accepted[:-1]) < shape.depth, "every draft was accepted: this proves little"

    # What is above would notice a wrong mask, a missing window and a missing softcap.
    drops = [drop_the_tree]
    options = ["window"] * (name in ("mistral", "gemma2", "gemma3", "starcoder2"))
    options += ["softcap"] * (name == "gemma2")
    drops += [drop_an_option(o, where) for o in options for where in PASSES]
    for drop in drops:
        with monkeypatch.context() as patch:
            drop(patch)
            tokens, _ = decoded(target, draft, TREES["bushy"], until_not=expected)
            assert tokens != expected[: len(tokens)], drop
    assert decoded(target, draft, TREES["bushy"])[0] == expected


def drop_the_tree(patch: pytest.MonkeyPatch) -> None:
    """Every node sees all nodes before it, as a causal mask over rows has it."""

    def overlooked(tree_pass: TreePass) -> TreePass:
        chain = topology(range(-1, tree_pass.topology.size - 1))
        return TreePass(chain, tree_pass.prefix_len, tree_pass.rows)

    for route in (routes.OwnAttention, routes.OwnMask):
        tree = route.tree
        patch.setattr(route, "tree", lambda self, p, tree=tree: tree(self, overlooked(p)))


def drop_an_option(option: str, where: type) -> Callable[[pytest.MonkeyPatch], None]:
    """Every layer asks for attention without this option, in the prompt or in trees."""
    call = where.__call__

    def drop(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(where, "__call__", lambda *a, **k: call(*a, **{**k, option: None}))

    drop.__qualname__ = f"{where.__name__} without {option}"
    return drop


@pytest.mark.parametrize("impl", ["reference", "transformers"])
def test_other_attentions_write_the_same(impl: str, load: Load) -> None:
    target = TransformersModel(load("qwen3"))
    draft = TransformersModel(load("qwen3", draft_of=target.model), attention=impl)
    expected = generated(target)
    target = TransformersModel(target.model, attention=impl)
    assert target.attention == impl
    assert decoded(target, draft, TREES["bushy"])[0] == expected


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bloom", "ALiBi"),
        ("falcon_alibi", "ALiBi"),
        ("mamba", "recurrent state"),
        ("jamba", "recurrent state"),
        ("gpt_oss", "attention sinks"),
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


def test_softcap_is_refused_by_an_implementation_without_it(load: Load) -> None:
    with pytest.raises(UnsupportedModel, match="softcap"):
        TransformersModel(load("gemma2"), attention="sdpa")


@pytest.mark.parametrize("name", OUR_ATTENTION + OUR_MASK)
@pytest.mark.parametrize("prefix", [1, 23])
def test_tree_rows_equal_sequential_decoding(name: str, prefix: int, load: Load) -> None:
    """Logits of a tree that is run level by level, kept, and run again."""
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
    whole = model.run(tokens, shape.parents)
    levels = [(0, 1), (1, 4), (4, 10)]
    parts = [model.run(tokens[a:b], shape.parents[:b], a) for a, b in levels]
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-4, atol=1e-4)
    model.keep([0, 2, 7])
    after = model.run(tokens[:1], (-1,))
    with model.as_transformers() as plain, torch.inference_mode():
        longer = torch.cat([text, tokens[[0, 2, 7, 0]]])
        torch.testing.assert_close(
            after[0], plain(longer[None]).logits[0, -1], rtol=1e-4, atol=1e-4
        )
