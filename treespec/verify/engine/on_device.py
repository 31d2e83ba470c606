"""The verifier of a target on CUDA: the fused kernel wherever it covers the arguments, else the host."""

from typing import Any

from treespec.protocols import Coins, Rows
from treespec.sampling.coins import TorchCoins
from treespec.sampling.distributions import SampledRows
from treespec.step import Verdict
from treespec.tree import TokenTree
from treespec.verify.engine.fused import Fused, Launched, fused
from treespec.verify.engine.on_host import on_host
from treespec.verify.engine.wrapped import WrappedRule
from treespec.verify.rule import Rule


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
        fits = _fits(tree, target_probs, coins)
        return (self._fused if fits else on_host(self.rule))(tree, target_probs, coins)

    def decide_ahead(self, tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Launched | None:
        """Launch the kernel without waiting for it; None if it does not cover the arguments."""
        fits = _fits(tree, target_probs, coins)
        return self._fused.decide_ahead(tree, target_probs, coins) if fits else None

    def using(self, **settings: float | int) -> "OnDevice":
        """Return this verifier with other settings of the rule."""
        return OnDevice(self.rule.using(**settings))

    def __repr__(self) -> str:
        return f"on_device({self.rule})"


def on_device(rule: Rule) -> OnDevice:
    """Return a verifier that decides by the fused kernel if it covers the arguments, else on the host.

    It covers unmixed trees, `TorchCoins`, and rows of `Sampling` without processors.

    Raises:
        Unavailable: for rules that have no kernel, or if Triton is not installed.
    """
    return OnDevice(rule)


def _fits(tree: Any, rows: Any, coins: Any) -> bool:
    """Whether the kernel covers these arguments; if they are wrong, the rule says so."""
    if not isinstance(tree, TokenTree) or type(rows) is not SampledRows:
        return False
    return type(coins) is TorchCoins and not tree.is_mixed and rows.logits.is_cuda
