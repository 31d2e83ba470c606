"""Logits in float64, by which greedy texts and captured passes are judged.

In bfloat16 every way to compute a pass rounds differently, and may decide a near tie differently. So ids
that differ from those of another way prove nothing. Here each token of a greedy text is compared with the
best one in float64, and logits of captured passes with logits in float64. As for the kernel (`accuracy`),
an error may be twice that of the model's own plain pass, plus one rounding of the largest logit.
"""

from copy import copy
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from attention_masks import dense_mask, topology
from treespec.experiments.run.transformers_hooks import plain_twin
from treespec.models.transformers_model import TransformersModel


class Judgement(NamedTuple):
    """What is known of the tokens after a text.

    Args:
        truth: logits in float64.
        bound: how far logits in the model's own dtype may be from them.
    """

    truth: Float[Tensor, "N V"]
    bound: float

    def error(self, logits: Float[Tensor, "N V"]) -> float:
        """The largest error of logits."""
        return float((logits.double() - self.truth).abs().max())

    def ties(self, chosen: Int[Tensor, " N"]) -> list[tuple[int, float]]:
        """Where a token is not the best one: its place, and by how much its logit is lower.

        It is a near tie up to twice the bound, since each of both logits may be wrong by it.
        """
        best = self.truth.max(-1).values
        lower = best - self.truth.gather(-1, chosen[:, None])[:, 0]
        return [(i, gap) for i, gap in enumerate(lower.tolist()) if gap > 0]

    def is_greedy(self, chosen: Int[Tensor, " N"]) -> bool:
        """Whether every token is the best one but for near ties."""
        return all(gap <= 2 * self.bound for _, gap in self.ties(chosen))


def judge(
    model: TransformersModel, text: Int[Tensor, " T"], nodes: Int[Tensor, " N"], parents: list[int]
) -> Judgement:
    """Compute the logits after each node of a tree behind a text.

    Args:
        model: a model in its own attention and dtype; it is not changed.
        text: the tokens before the tree.
        nodes: the tokens of the tree.
        parents: the parent of each node; -1 of the root.
    """
    given = _inputs(text, nodes, parents)
    truth, plain = (_logits(model, given, wide)[-len(nodes) :] for wide in (True, False))
    own = float((plain.double() - truth).abs().max())
    rounding = torch.finfo(plain.dtype).eps * float(truth.abs().max())
    return Judgement(truth, 2 * own + rounding)


def judge_text(
    model: TransformersModel, prompt: Int[Tensor, " T"], tokens: Int[Tensor, " N"]
) -> Judgement:
    """Compute the logits before each token of a text that continues a prompt."""
    nodes = torch.cat([prompt[-1:], tokens[:-1]])
    return judge(model, prompt[:-1], nodes, [*range(-1, len(nodes) - 1)])


def _inputs(text: Tensor, nodes: Tensor, parents: list[int]) -> dict[str, Any]:
    """One pass over text and tree: the text is a chain, on whose last token the tree stands."""
    before = len(text)
    whole = [*range(-1, before - 1), *(before + p if p >= 0 else before - 1 for p in parents)]
    tree = topology(whole).to(text.device)
    return {
        "input_ids": torch.cat([text, nodes])[None],
        "position_ids": tree.depth[None],
        "attention_mask": dense_mask(tree, 0)[None, None],
        "use_cache": False,
    }


@torch.inference_mode()
def _logits(model: TransformersModel, given: dict[str, Any], wide: bool) -> Float[Tensor, "T V"]:
    twin: Any = plain_twin(model)
    twin.set_attn_implementation("sdpa")
    for module in [*twin.modules()] if wide else []:
        if any(weight is not None for weight in module._parameters.values()):
            module.forward = partial(_in_float64, copy(module))
    return twin(**given).logits[0]


def _in_float64(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run a module with its weights in float64, which are made for this call alone.

    Norms compute in float32 whatever they are given, which is far more exact than bfloat16.
    """
    weights = {name: w.double() for name, w in module.named_parameters(recurse=False)}
    return functional_call(module, weights, args, kwargs)
