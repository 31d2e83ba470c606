"""Any acceptance rule on the CPU, after one synchronisation with the device."""

from collections.abc import Sequence

import torch
from jaxtyping import Shaped
from torch import Tensor

from treespec.distributions import SampledRows
from treespec.errors import Unavailable
from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import TokenTree
from treespec.verify.checked import CheckedRows
from treespec.verify.rule import Rule
from treespec.verify.wrapped import WrappedRule

__all__ = ["OnHost", "on_host"]


class OnHost(WrappedRule):
    """What `on_host` gives: a verifier with the name and the attributes of its rule."""

    def __call__(self, tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
        """The rule's verdict, computed on the CPU.

        Raises:
            Unavailable: for a tree on a device with target rows that are neither `SampledRows` nor a
                tensor, so that nobody knows how to copy them; and what the rule itself raises.
        """
        CheckedRows.of(tree, target_probs)  # refuses what is no tree and no rows
        drafted = [tensor for tensor in (tree.tokens, tree.draft_probs) if tensor is not None]
        if not isinstance(target_probs, SampledRows | Tensor):
            if _elsewhere(drafted):
                raise Unavailable(
                    f"on_host({self}) copies `Sampling.rows(logits)` or a tensor of probabilities, "
                    f"not {type(target_probs).__name__}: use the plain rule"
                )
            return self.rule(tree, target_probs, coins)
        rows = target_probs if isinstance(target_probs, Tensor) else target_probs.logits
        given = [rows, *drafted]
        devices = _elsewhere(given)
        if not devices:
            return self.rule(tree, target_probs, coins)
        host = [_copy(tensor) for tensor in given]
        for device in devices:  # one, unless tree and rows live apart
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
        draft_probs = host[2] if tree.draft_probs is not None else None
        # The laws go as they are, so that the tree on the host is this tree.
        copied = TokenTree(tree.shape, host[1], draft_probs, tree.law)
        copied = copied.vouched() if tree.is_vouched else copied
        if isinstance(target_probs, SampledRows):
            rows = target_probs.sampling.rows(host[0], target_probs.model)
        else:
            rows = host[0]
        return self.rule(copied, rows, coins)

    def __repr__(self) -> str:
        return f"on_host({self.rule})"


def on_host(rule: Rule) -> OnHost:
    """The same rule, deciding on the CPU: all that it may read is copied there at once.

    A rule written with tensors asks the device a question for nearly every number that it looks at, and
    each question waits for the device. Here logits (or probabilities), `draft_probs` and tokens go to
    pinned memory by copies that do not wait, and the host waits once. Whatever the rule then does, it
    does on CPU tensors; the uniforms were there already. Verdicts are those of the rule on the CPU: the
    softmax of another device can differ from them by rounding.

    What it costs: `N V` elements of the logits' dtype and `M V` of the draft's through the bus, visited or
    not (64 nodes, 24 of them with children, 128256 tokens, bfloat16 and float32: 16 MB + 12 MB), and the
    softmax of each visited row on the CPU. Use it for rules that `treespec.verify.fused.fused` does not
    cover, and for rows that it does not take. On CPU tensors nothing is copied, and a tree that is there
    may come with any rows at all: the rule gets them as they are.

    Args:
        rule: any rule of `verify.RULES`, or one's own.

    Returns:
        A verifier with the rule's name, `laws`, `lossless`, `one_hot`, `reference`, `settings`, `using` and
        `require`.

    Raises:
        InvalidArgument: for what is no rule.

    Example:
        >>> from treespec import verify
        >>> on_host(verify.rrs)
        on_host(rrs)
    """
    return OnHost(rule)


def _elsewhere(tensors: Sequence[Tensor]) -> set[torch.device]:
    """The devices, other than the CPU, that they are on."""
    return {tensor.device for tensor in tensors if tensor.device.type != "cpu"}


def _copy(tensor: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """The tensor in pinned host memory, once the device's stream has come so far.

    Devices of other kinds do not promise to be waited for so: their copies wait themselves.
    """
    return tensor.to("cpu", non_blocking=tensor.device.type == "cuda")
