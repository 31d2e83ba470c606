"""Acceptance rules as a single kernel call on the CPU, for targets whose passes are compiled."""

from typing import Any

import torch
from torch import Tensor

from treespec.kernels.drawn_children import DTYPES
from treespec.kernels.walked_tree import walked_tree
from treespec.protocols import Coins, Rows, Verifier
from treespec.sampling.coins import TorchCoins
from treespec.sampling.distributions import SampledRows, Sampling
from treespec.step import Verdict
from treespec.tree import TokenTree
from treespec.verify.chain import chain
from treespec.verify.engine.fused import why_no_kernel, why_on_host
from treespec.verify.engine.on_device import on_device, tell_host_decides
from treespec.verify.engine.on_host import on_host
from treespec.verify.engine.wrapped import WrappedRule, plan_of
from treespec.verify.greedy import greedy
from treespec.verify.naive import naive
from treespec.verify.onehot import onehot
from treespec.verify.rrs import rrs
from treespec.verify.rrsw import rrsw
from treespec.verify.rule import Rule

_KINDS = {
    greedy: "greedy",
    naive: "naive",
    chain: "rrs",
    rrs: "rrs",
    rrsw: "rrsw",
    onehot: "onehot",
}
_DRAWN = ("rrs", "rrsw")
"""Kinds that read the distributions that children were drawn from."""


class ByKernel(WrappedRule):
    """The verifier that `by_kernel` returns, with the name and the attributes of its rule."""

    def __call__(self, tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
        """Return the rule's verdict; consumes as many uniforms of `coins` as the rule would.

        Raises:
            TreespecError: whatever the rule itself raises; all error messages are the rule's.
        """
        kind = _KINDS.get(self.rule._plain)
        if kind is None or not _kernel_can_decide(kind, tree, target_probs, coins):
            return on_host(self.rule)(tree, target_probs, coins)
        assert isinstance(target_probs, SampledRows)
        assert isinstance(coins, TorchCoins)
        self.rule.require(tree)
        walked = walked_tree(
            kind,
            target_probs.logits,
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
    """Return a verifier that decides as `rule` does, by one kernel call if possible, else by the rule.

    On rows of a few thousand tokens, a tensor operation takes less time than the Python that issues it,
    and a rule issues about fifty per step. The kernel computes softmax, ratios, residuals and draws of the
    visited rows in one call, from the same uniforms. The verdict equals the rule's, except where a uniform
    lies within rounding of a threshold.

    The kernel covers `greedy` at temperature 0 and, above it, `naive`, `chain`, `rrs`, `rrsw` and `onehot`
    without truncations. It requires an unmixed tree, `TorchCoins`, rows of `Sampling` from
    float32 or bfloat16 logits on the CPU, and vouched-for draft rows in float32, such as those of model
    drafters. It needs the compiler of compiled passes (`treespec.kernels`).

    Args:
        rule: any rule of `verify.RULES`, or your own.

    Returns:
        A verifier with the rule's name and attributes.

    Raises:
        InvalidArgument: if `rule` is not a rule.
    """
    return ByKernel(rule)


def verifier_for(rule: Rule, target: Any) -> Verifier:
    """The cheapest verifier for a target.

    `by_kernel` if its passes are compiled; on CUDA `on_device`, or `on_host` for a rule without a kernel
    there or where Triton cannot compile it, with the reason in the log; else `on_host`.

    Args:
        rule: the acceptance rule.
        target: the target model. Its attribute `draws_by_kernel` says whether kernels are available and
            can read its logits.

    Raises:
        InvalidArgument: if `rule` is not a rule.
    """
    if getattr(target, "draws_by_kernel", False):
        return by_kernel(rule)
    device = getattr(target, "device", None)
    if getattr(device, "type", None) == "cuda":
        reason = why_on_host(rule) or why_no_kernel(device)
        if reason is None:
            return on_device(rule)
        tell_host_decides(str(rule), reason)
    return on_host(rule)


def _kernel_can_decide(kind: str, tree: Any, rows: Any, coins: Any) -> bool:
    """Whether the kernel covers these arguments; False if they are not a tree, rows and coins."""
    if not (
        isinstance(tree, TokenTree) and type(rows) is SampledRows and type(coins) is TorchCoins
    ):
        return False
    sampling, logits, drafts = rows.sampling, rows.logits, tree.draft_probs
    if type(sampling) is not Sampling or sampling.greedy != (kind == "greedy"):
        return False
    width, ids = logits.shape[1], tree.token_ids
    if sampling.truncates(width):
        return False
    fits = len(logits) == tree.shape.size and _is_readable(logits, DTYPES) and not tree.is_mixed
    fits = fits and min(ids) >= 0 and max(ids[1:], default=0) < width
    if drafts is None or not tree.shape.internal:
        return fits
    # Rules for drawn children validate the draft rows; the kernel does not.
    valid = kind in ("greedy", "onehot") or tree.is_vouched
    readable = kind not in _DRAWN or _is_readable(drafts, (torch.float32,))
    return fits and drafts.shape[1] == width and valid and readable


def _is_readable(rows: Tensor, dtypes: tuple[torch.dtype, ...]) -> bool:
    """Whether the kernel can read rows: on the CPU, in one of these dtypes, contiguous along tokens."""
    return rows.is_cpu and rows.dtype in dtypes and rows.stride(1) == 1
