"""A loop in the style of gpt-fast, the baseline of plain decoding: nothing but a llama, one token a step.

What makes it fast is what gpt-fast (github.com/meta-pytorch/gpt-fast) showed: a static cache, one product
for queries, keys and values and one for gate and up, the whole step compiled, and captured as a CUDA graph
(`mode="reduce-overhead"`). It knows no trees, no sampling settings and no stop rule, and its ids stay on
the device until the end. It shares the weights of a transformers model but for the merged matrices.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.attention import SDPBackend


class Layer(nn.Module):
    """A decoder layer with merged products."""

    def __init__(self, layer: Any, config: Any, rows: int) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim, self.eps = attention.head_dim, config.rms_norm_eps
        self.into = layer.input_layernorm.weight
        self.after = layer.post_attention_layernorm.weight
        self.qkv = torch.cat([getattr(attention, f"{name}_proj").weight for name in "qkv"])
        self.out = attention.o_proj.weight
        self.gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        self.down = mlp.down_proj.weight
        shape = (1, self.kv_heads, rows, self.dim)
        self.register_buffer("keys", self.out.new_zeros(shape))
        self.register_buffer("values", self.out.new_zeros(shape))

    def forward(
        self,
        x: Float[Tensor, "1 T H"],
        places: Int[Tensor, " T"],
        rotation: tuple[Tensor, Tensor],
        mask: Tensor,
    ) -> Float[Tensor, "1 T H"]:
        """The layer's output; its rows are written to the cache."""
        count, width = x.shape[1], self.dim
        normed = F.rms_norm(x, self.into.shape, self.into, self.eps)
        merged = F.linear(normed, self.qkv).view(1, count, -1, width).transpose(1, 2)
        query, key, value = merged.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        keys = self.keys.index_copy_(2, places, rotated(key, rotation))
        values = self.values.index_copy_(2, places, value)
        seen = F.scaled_dot_product_attention(
            rotated(query, rotation), keys, values, attn_mask=mask, enable_gqa=True
        )
        x = x + F.linear(seen.transpose(1, 2).reshape(1, count, -1), self.out)
        normed = F.rms_norm(x, self.after.shape, self.after, self.eps)
        gate, up = F.linear(normed, self.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)


class FastLoop(nn.Module):
    """Decodes greedily with a llama of transformers.

    Args:
        model: a llama.
        rows: of its cache.
        compiled: whether the step of one token is compiled and, on CUDA, captured.
    """

    def __init__(self, model: Any, rows: int, *, compiled: bool) -> None:
        super().__init__()
        body = model.model
        self.layers = nn.ModuleList(Layer(layer, model.config, rows) for layer in body.layers)
        self.embedding, self.head = body.embed_tokens.weight, model.lm_head.weight
        self.norm, self.eps, self.rotary = (
            body.norm.weight,
            model.config.rms_norm_eps,
            body.rotary_emb,
        )
        steps = torch.arange(rows, device=self.head.device)
        self.register_buffer("seen", steps[None] <= steps[:, None])
        self._next: Callable[..., Tensor] = self.next_token
        if compiled:
            self._next = torch.compile(self.next_token, mode="reduce-overhead", fullgraph=True)

    def next_token(self, ids: Int[Tensor, "1 T"], places: Int[Tensor, " T"]) -> Int[Tensor, "1 1"]:
        """The most probable token after the last of these tokens."""
        x = F.embedding(ids, self.embedding)
        rotation = self.rotary(x, places[None])
        for layer in self.layers:
            x = layer(x, places, rotation, self.seen[places])
        last = F.rms_norm(x[:, -1:], self.norm.shape, self.norm, self.eps)
        return F.linear(last, self.head).argmax(-1)

    @torch.inference_mode()
    def __call__(self, prompt: Int[Tensor, " T"], new_tokens: int) -> list[int]:
        """The continuation of a prompt."""
        places = torch.arange(len(prompt), device=prompt.device)
        token = self.next_token(prompt[None], places)
        place, found = places[-1:] + 1, [token]
        for _ in range(new_tokens - 1):
            token = self._next(token, place).clone()  # the graph's own memory is written again
            found.append(token)
            place = place + 1
        return torch.cat(found, dim=1)[0].tolist()


@torch.inference_mode()
def attention_kernel(model: Any, rows: int) -> str:
    """The kernel that PyTorch chooses for the attention of a step of this loop: flash, math, ..."""
    layer = Layer(model.model.layers[0], model.config, rows)
    query = layer.keys.new_zeros(1, layer.heads, 1, layer.dim)
    mask = torch.ones(1, rows, dtype=torch.bool, device=query.device)
    chosen = torch._fused_sdp_choice(query, layer.keys, layer.values, mask, enable_gqa=True)
    return SDPBackend(chosen).name.lower()


def rotated(x: Float[Tensor, "1 h T D"], rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Queries or keys at their positions."""
    cos, sin = (part[:, None] for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
