"""Tree attention inside any transformers model: a registered function that gets the tree with each call.

`AttentionInterface.register("treespec", ...)` makes it an attention implementation like any other. The tree
is passed as the keyword argument `treespec_pass` of `model(...)`, which models pass through to the
attention function. Window, softcap, scale and attention sinks come from the call, as the layer states them.
An unknown argument that changes the result (a position bias) is refused, because ignoring it would give
wrong results silently.

Without `treespec_pass` (a plain `generate` on a model that was left on this attention) the function raises.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from attention_masks import TreePass, attend, topology
from treespec.errors import UnsupportedModel

NAME = "treespec"
"""Name of our attention in `attn_implementation`."""

ROWS_PER_BLOCK = 256
"""Rows of a prompt per mask, in layers whose mask `is_causal` cannot express."""

WITHOUT_MEANING = frozenset(
    {
        "cache_position",
        "is_causal",
        "logits_to_keep",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)
"""Arguments that have no effect in a causal pass without padding; `is_causal=False` is refused."""

MASK_MAKER: ContextVar[Callable[..., Tensor] | None] = ContextVar("MASK_MAKER", default=None)
"""Makes the masks that a model requests. Only the probe sets it, to see which masks are requested."""


@runtime_checkable
class AttentionPass(Protocol):
    """The attention of one forward pass; every layer calls it once."""

    def __call__(
        self,
        module: nn.Module,
        query: Float[Tensor, "B Hq T D"],
        key: Float[Tensor, "B Hkv S D"],
        value: Float[Tensor, "B Hkv S D"],
        mask: Tensor | None,
        *,
        scale: float | None,
        softcap: float | None,
        window: int | None,
        sinks: Float[Tensor, " Hq"] | None,
    ) -> Float[Tensor, "B Hq T D"]:
        """The attention of one layer."""


class TreeAttention:
    """Attention of the nodes of trees to the rows of caches, text by text.

    Each text has one mask per distinct window, and its rows and keys stand behind those of the text before.
    """

    def __init__(self, passes: Sequence[TreePass], impl: str = "auto") -> None:
        self.passes, self.impl = passes, impl

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **options: Any,
    ) -> Tensor:
        refuse_mask(mask, module)
        if len(self.passes) == 1:
            return attend(query, key, value, self.passes[0], impl=self.impl, **options)
        rows = [tree_pass.row_count for tree_pass in self.passes]
        keys = [tree_pass.key_count for tree_pass in self.passes]
        parts = zip(
            query.split(rows, dim=2),
            key.split(keys, dim=2),
            value.split(keys, dim=2),
            self.passes,
            strict=True,
        )
        return torch.cat([attend(*part, impl=self.impl, **options) for part in parts], dim=2)


class CausalAttention:
    """Attention of a prompt: a chain with no cached rows before it.

    The implementation is chosen for trees. On prompts, layers without window, softcap and sinks use
    PyTorch's causal attention, which needs no mask, whatever the implementation; only "reference" computes
    prompts too. In other layers the implementation computes the prompt in blocks of rows, each a chain
    after the rows before it, so that with a window no mask is larger than block x (block + window).
    """

    def __init__(self, length: int, impl: str = "auto") -> None:
        self.length, self.impl = length, impl
        self._blocks: list[tuple[slice, TreePass]] = []

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        scale: float | None,
        softcap: float | None,
        window: int | None,
        sinks: Float[Tensor, " Hq"] | None,
    ) -> Tensor:
        refuse_mask(mask, module)
        if window is not None and window >= self.length:
            window = None
        plain = window is None and softcap is None and sinks is None
        if plain and self.impl != "reference":
            grouped = query.shape[1] != key.shape[1]
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=self.length > 1, scale=scale, enable_gqa=grouped
            )
        out = torch.empty_like(query)
        for rows, tree_pass in self._blocks or self._split():
            options = {"scale": scale, "softcap": softcap, "window": window, "sinks": sinks}
            out[:, :, rows] = attend(
                query[:, :, rows], key, value, tree_pass, impl=self.impl, **options
            )
        return out

    def _split(self) -> list[tuple[slice, TreePass]]:
        for start in range(0, self.length, ROWS_PER_BLOCK):
            end = min(start + ROWS_PER_BLOCK, self.length)
            chain = topology(range(-1, end - start - 1))
            self._blocks.append((slice(start, end), TreePass(chain, start)))
        return self._blocks


def attention(
    module: nn.Module,
    query: Float[Tensor, "B Hq T D"],
    key: Float[Tensor, "B Hkv S D"],
    value: Float[Tensor, "B Hkv S D"],
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: Float[Tensor, " Hq"] | None = None,
    treespec_pass: AttentionPass | None = None,
    **unknown: Any,
) -> tuple[Float[Tensor, "B T Hq D"], None]:
    """The function that transformers calls in every layer of a model on our attention."""
    if treespec_pass is None:
        raise UnsupportedModel(
            f"{type(module).__name__} runs treespec's attention, but was given no tree: for plain "
            "calls and `generate` use `with model.as_transformers() as plain: ...`"
        )
    _refuse_unknown(module, dropout, unknown)
    options = {"scale": scaling, "softcap": softcap, "window": sliding_window, "sinks": s_aux}
    out = treespec_pass(module, query, key, value, attention_mask, **options)
    return out.transpose(1, 2), None


def make_mask(
    *, attention_mask: Tensor | None = None, mask_function: Any = None, **sizes: Any
) -> Tensor | None:
    """The mask function that belongs to `attention`: it makes no mask, since the pass has the tree."""
    if attention_mask is not None:
        raise UnsupportedModel(
            "treespec's attention takes no attention_mask: padding is not supported"
        )
    # The compiler cannot trace context variables, and the probe does not compile.
    maker = None if torch.compiler.is_compiling() else MASK_MAKER.get()
    return None if maker is None else maker(mask_function, **sizes)


def _refuse_unknown(module: nn.Module, dropout: float, unknown: dict[str, Any]) -> None:
    for name, value in unknown.items():
        if value is None or (value is False and name != "is_causal"):
            continue
        if name in WITHOUT_MEANING and not (name == "is_causal" and not value):
            continue
        raise UnsupportedModel(
            f"{type(module).__name__} passes `{name}` to its attention, "
            "which tree attention does not support"
        )
    if dropout:
        raise UnsupportedModel(f"{type(module).__name__} uses dropout: call model.eval()")


def refuse_mask(mask: Tensor | None, module: nn.Module) -> None:
    """Refuse a mask that a layer was given: the pass has the tree, and would ignore it."""
    if mask is not None:
        raise UnsupportedModel(
            f"{type(module).__name__} was given a mask that transformers' mask functions did not make, "
            "and tree attention would ignore it"
        )


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, make_mask)
