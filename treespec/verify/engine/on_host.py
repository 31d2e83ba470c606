"""Any acceptance rule, run on the CPU after one synchronisation with the device."""

from collections.abc import Sequence

import torch
from jaxtyping import Shaped
from torch import Tensor

from treespec.errors import Unavailable
from treespec.protocols import Coins, Rows
from treespec.sampling.distributions import SampledRows
from treespec.step import Verdict
from treespec.tree import TokenTree
from treespec.tree.unread_tree import settle, unread
from treespec.verify.checked import TargetRows
from treespec.verify.engine.wrapped import WrappedRule
from treespec.verify.rule import Rule


class OnHost(WrappedRule):
    """The verifier that `on_host` returns, with the name and the attributes of its rule."""

    def __call__(self, tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
        """Return the rule's verdict, computed on the CPU.

        Raises:
            Unavailable: for a tree on a device whose target rows cannot be copied, because they are
                neither `SampledRows` nor a tensor.
            TreespecError: whatever the rule itself raises.
        """
        TargetRows.of(tree, target_probs)  # refuses arguments that are not a tree and rows
        more = unread(tree)  # the ids, and whether they are sound
        tokens = tree.tokens if more is None else more
        drafted = [tensor for tensor in (tokens, tree.draft_probs) if tensor is not None]
        if not isinstance(target_probs, SampledRows | Tensor):
            if _accelerators(drafted):
                raise Unavailable(
                    f"on_host({self}) copies `Sampling.rows(logits)` or a tensor of probabilities, "
                    f"not {type(target_probs).__name__}: use the plain rule"
                )
            return self.rule(tree, target_probs, coins)
        rows = target_probs if isinstance(target_probs, Tensor) else target_probs.logits
        tensors = [rows, *drafted]
        devices = _accelerators(tensors)
        if not devices:
            return self.rule(tree, target_probs, coins)
        host = [_copy(tensor) for tensor in tensors]
        for device in devices:  # one, unless tree and rows are on different devices
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
        draft_probs = host[2] if tree.draft_probs is not None else None
        if more is not None:
            settle(tree, host[1].tolist())
            host[1] = host[1][: tree.shape.size]
        # Keep the laws, so that the tree on the host equals this tree.
        copied = TokenTree(tree.shape, host[1], draft_probs, tree.law)
        copied = copied.vouched() if tree.is_vouched else copied
        sampled = isinstance(target_probs, SampledRows)
        return self.rule(copied, target_probs.copied(host[0]) if sampled else host[0], coins)

    def __repr__(self) -> str:
        return f"on_host({self.rule})"


def on_host(rule: Rule) -> OnHost:
    """Return a verifier that runs `rule` on the CPU, after copying all its inputs there at once.

    A rule written with tensors queries the device for nearly every number that it reads, and each query
    waits for the device. Here logits (or probabilities), `draft_probs` and tokens are copied to pinned
    memory asynchronously, and the host waits once. The rule then works on CPU tensors only; the uniforms
    are on the CPU anyway. Verdicts are those of the rule on the CPU: a softmax on another device can
    differ by rounding.

    Cost: `N V` elements of the logits' dtype and `M V` of the draft's are transferred, visited or not
    (64 nodes, 24 of them with children, 128256 tokens, bfloat16 and float32: 16 MB + 12 MB), and the
    softmax of each visited row runs on the CPU. Use it for rules and rows that
    `verify.engine.fused.fused` does not cover. With CPU tensors nothing is copied: the rule gets the tree
    and its rows, of any kind, as they are.

    Args:
        rule: any rule of `verify.RULES`, or your own.

    Returns:
        A verifier with the rule's name, `laws`, `lossless`, `one_hot`, `reference`, `settings`, `using` and
        `require`.

    Raises:
        InvalidArgument: if `rule` is not a rule.

    Example:
        >>> from treespec import verify
        >>> on_host(verify.rrs)
        on_host(rrs)
    """
    return OnHost(rule)


def _accelerators(tensors: Sequence[Tensor]) -> set[torch.device]:
    """The devices of these tensors, other than the CPU."""
    return {tensor.device for tensor in tensors if tensor.device.type != "cpu"}


def _copy(tensor: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """The tensor in host memory; on CUDA the copy is complete once the device's stream reaches it.

    Other kinds of devices do not guarantee that order: their copies wait themselves.
    """
    return tensor.to("cpu", non_blocking=tensor.device.type == "cuda")
