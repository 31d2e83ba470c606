"""Acceptance rules as one call of a kernel on the CPU, for targets whose passes are compiled."""

from typing import Any

import torch
from torch import Tensor

from treespec.coins import TorchCoins
from treespec.distributions import SampledRows, Sampling
from treespec.kernels.drawn_children import DTYPES
from treespec.kernels.walked_tree import walked_tree
from treespec.protocols import Coins, Rows, Verifier
from treespec.step import Verdict
from treespec.tree import TokenTree
from treespec.verify.chain import chain
from treespec.verify.greedy import greedy
from treespec.verify.naive import naive
from treespec.verify.on_host import on_host
from treespec.verify.onehot import onehot
from treespec.verify.rrs import rrs
from treespec.verify.rrsw import rrsw
from treespec.verify.rule import Rule
from treespec.verify.tree_plan import plan_of
from treespec.verify.wrapped import WrappedRule

__all__ = ["ByKernel", "by_kernel", "verifier_for"]

_KINDS = {
    greedy: "greedy",
    naive: "naive",
    chain: "rrs",
    rrs: "rrs",
    rrsw: "rrsw",
    onehot: "onehot",
}
_DRAWN = ("rrs", "rrsw")
"""Kinds that read what children were drawn from."""


class ByKernel(WrappedRule):
    """What `by_kernel` gives: a verifier with the name and the attributes of its rule."""

    def __call__(self, tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
        """The rule's verdict; takes as many uniforms from the coins as the rule would.

        Raises:
            TreespecError: what the rule itself raises, which words all errors.
        """
        kind = _KINDS.get(self.rule._plain)
        if kind is None or not _is_known(kind, tree, target_probs, coins):
            return on_host(self.rule)(tree, target_probs, coins)
        assert isinstance(target_probs, SampledRows)
        assert isinstance(coins, TorchCoins)
        self.rule.require(tree)
        walked = walked_tree(
            kind,
            target_probs.logits[: tree.shape.size],
            tree.draft_probs if kind in _DRAWN else None,
            tree.token_ids,
            plan_of(tree.shape),
            coins.peek(0 if kind == "greedy" else tree.shape.size),
            target_probs.sampling.temperature,
        )
        if walked is None:
            return self.rule(tree, target_probs, coins)
        node, bonus, used = walked
        coins.skip(used)
        return Verdict(tree.shape.path(node), bonus)

    def __repr__(self) -> str:
        return f"by_kernel({self.rule})"


def by_kernel(rule: Rule) -> ByKernel:
    """The same rule, by one call of a kernel wherever that knows how; elsewhere the rule decides itself.

    Of rows of a few thousand tokens an operation takes less time than the Python that asks for it, and a
    rule asks for some fifty a step. The kernel takes softmax, ratios, residuals and draws of the visited
    rows at once, by the same uniforms. The verdict is the rule's own, except where a uniform lies within
    rounding of a threshold.

    It knows `greedy` at temperature 0, and above it `naive`, `chain`, `rrs`, `rrsw` and `onehot` without
    top-k, top-p and min-p; on trees that are not mixed, with `TorchCoins` and rows of `Sampling`, of logits
    in float32 or bfloat16 on the CPU; draft rows in float32 that somebody vouches for, as drafters of
    models do. It needs the compiler of compiled passes (`treespec.kernels`).

    Args:
        rule: any rule of `verify.RULES`, or one's own.

    Returns:
        A verifier with the rule's name and attributes.

    Raises:
        InvalidArgument: for what is no rule.
    """
    return ByKernel(rule)


def verifier_for(rule: Rule, target: Any) -> Verifier:
    """How a rule costs least beside a target: by a kernel where its passes are compiled, else `on_host`.

    Args:
        rule: that decides.
        target: the model. It says by `draws_by_kernel` that kernels are there and know its logits.

    Raises:
        InvalidArgument: for what is no rule.
    """
    return by_kernel(rule) if getattr(target, "draws_by_kernel", False) else on_host(rule)


def _is_known(kind: str, tree: Any, rows: Any, coins: Any) -> bool:
    """Whether the kernel can decide; of what is no tree and no rows it cannot."""
    if not (
        isinstance(tree, TokenTree) and type(rows) is SampledRows and type(coins) is TorchCoins
    ):
        return False
    sampling, logits, drafts = rows.sampling, rows.logits, tree.draft_probs
    if type(sampling) is not Sampling or sampling.greedy != (kind == "greedy"):
        return False
    width, ids = logits.shape[1], tree.token_ids
    cut = sampling.top_k is not None and sampling.top_k < width
    cut = cut or (sampling.top_p is not None and sampling.top_p < 1) or bool(sampling.min_p)
    if cut and not sampling.greedy:
        return False
    fits = len(logits) >= tree.shape.size and _is_read(logits, DTYPES) and not tree.is_mixed
    fits = fits and min(ids) >= 0 and max(ids[1:], default=0) < width
    if drafts is None or not tree.shape.internal:
        return fits
    looked_at = (
        kind in ("greedy", "onehot") or tree.is_vouched
    )  # rules look at rows of children drawn
    read = kind not in _DRAWN or _is_read(drafts, (torch.float32,))
    return fits and drafts.shape[1] == width and looked_at and read


def _is_read(rows: Tensor, dtypes: tuple[torch.dtype, ...]) -> bool:
    return rows.is_cpu and rows.dtype in dtypes and rows.stride(1) == 1
