"""The verifier of a target on CUDA: the fused kernel wherever it covers the arguments, else the host."""

import logging
from functools import lru_cache
from typing import Any

from treespec.protocols import Coins, Rows
from treespec.sampling.coins import TorchCoins
from treespec.sampling.distributions import SampledRows
from treespec.step import Verdict
from treespec.tree import TokenTree
from treespec.verify.engine.fused import Fused, Launched, fused
from treespec.verify.engine.on_host import on_host
from treespec.verify.engine.wrapped import WrappedRule
from treespec.verify.greedy import greedy
from treespec.verify.naive import naive
from treespec.verify.rule import Rule

log = logging.getLogger("treespec")


class OnDevice(WrappedRule):
    """The verifier that `on_device` returns, with the name and the attributes of its rule."""

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self._fused: Fused = fused(rule)

    def __call__(self, tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
        """Return the rule's verdict; consumes as many uniforms of `coins` as the rule would.

        Raises:
            TreespecError: whatever the rule itself raises.
        """
        if self._fits(tree, target_probs, coins):
            return self._fused(tree, target_probs, coins)
        if reason := _why_not(tree, target_probs, coins):
            tell_host_decides(str(self.rule), reason)
        return on_host(self.rule)(tree, target_probs, coins)

    def decide_ahead(self, tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Launched | None:
        """Launch the kernel without waiting for it; None if it does not cover the arguments."""
        fits = self._fits(tree, target_probs, coins)
        return self._fused.decide_ahead(tree, target_probs, coins) if fits else None

    def using(self, **settings: float | int) -> "OnDevice":
        """Return this verifier with other settings of the rule."""
        return OnDevice(self.rule.using(**settings))

    def _fits(self, tree: Any, rows: Any, coins: Any) -> bool:
        """Whether the kernel covers these arguments; if they are wrong, the rule says so."""
        if not isinstance(tree, TokenTree) or type(rows) is not SampledRows:
            return False
        if tree.is_mixed and self.rule._plain not in (greedy, naive):
            return False
        return type(coins) is TorchCoins and rows.logits.is_cuda

    def __repr__(self) -> str:
        return f"on_device({self.rule})"


def on_device(rule: Rule) -> OnDevice:
    """Return a verifier that decides by the fused kernel if it covers the arguments, else on the host.

    | rules | decide |
    | --- | --- |
    | `greedy`, `naive` | on the device, on mixed trees too |
    | `chain`, `rrs`, `rrsw`, `onehot`, `greedy_multidraft`, `spechub`, `lenient` | on the device, unless \
      the tree is mixed |
    | `kseq` | on the host: a root search in float64 |
    | `canonical`, `optimal_transport` | on the host: a flow, a linear programme |
    | `block`, `gbv`, `traversal`, `typical` | on the host: they read the tree below a child \
      (`Scope.TREE`), which a walk from the root does not know |
    | rates in place of a rule, rules of your own | on the host |

    For a rule without a kernel this raises, and `verifier_for` takes `on_host`; `fused.why_on_host` says
    why. The host also decides about rows that processors have changed (each row goes by its own text),
    about coins of your own, and, but for `greedy` and `naive`, about mixed trees. Each reason is logged
    once.

    What the host costs: the step waits once, as with the kernel, but the logits of *all* nodes and the
    draft's rows are copied there first (16 nodes of 128,256 words in bfloat16 and 8 draft rows: 4 MB and
    4 MB), and the rule works on one core. Rows of the accepted path do not move ahead.

    Raises:
        Unavailable: for rules that have no kernel, or if Triton is not installed.
    """
    return OnDevice(rule)


@lru_cache
def tell_host_decides(rule: str, reason: str) -> None:
    """Log, once for each reason, that a step on CUDA pays for a decision on the host."""
    log.warning("rule '%s' is decided on the host, to which all rows are copied: %s", rule, reason)


def _why_not(tree: Any, rows: Any, coins: Any) -> str | None:
    """Why the kernel does not decide about rows on CUDA; None for other rows and for wrong arguments."""
    if (
        not isinstance(tree, TokenTree)
        or not isinstance(rows, SampledRows)
        or not rows.logits.is_cuda
    ):
        return None
    if type(rows) is not SampledRows:
        return "processors change each row by its own text"
    if type(coins) is not TorchCoins:
        return "the coins are not TorchCoins, whose next numbers a kernel can be given"
    return "the tree is mixed: its nodes have children of several groups"
