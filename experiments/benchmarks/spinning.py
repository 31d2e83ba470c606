"""A draft source whose steps take longer by a known share of their own time, to test measurements."""

import time
from collections.abc import Callable

from jaxtyping import Int
from torch import Tensor

from treespec import Step, TokenTree, plugins
from treespec.draft import make_drafter
from treespec.experiments.config.schema import refresh
from treespec.plugins import Wanted
from treespec.protocols import Coins, Drafter
from treespec.tree import Law

__all__ = ["Share", "Spinning", "add_source"]

Share = Callable[[int], float]
"""How much longer a step takes: from the tokens kept before it to a share of its own time."""


class Spinning:
    """A drafter that spins at the end of each step.

    Args:
        inner: the drafter that drafts.
        share: the time to spin, as a share of the step's own time.
    """

    def __init__(self, inner: Drafter, share: Share) -> None:
        self._inner, self._share = inner, share
        self._start, self._kept = 0.0, 0
        self.max_depth, self.max_length = inner.max_depth, inner.max_length

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Begin a text."""
        self._kept = 0
        self._inner.prefill(tokens)

    def propose(self, coins: Coins) -> TokenTree:
        """Draft a tree; the step begins here."""
        self._start = time.perf_counter()
        return self._inner.propose(coins)

    def commit(self, step: Step) -> None:
        """End the step, then spin for a share of its time."""
        self._inner.commit(step)
        share = self._share(self._kept)
        self._kept += len(step.tokens)
        now = time.perf_counter()
        end = now + share * (now - self._start)
        while time.perf_counter() < end:
            pass


def add_source(name: str, share: Share) -> None:
    """Register a draft source, once: the pair's draft model, with steps that take longer by a share."""

    def made(wanted: Wanted, settings: plugins.Settings) -> Drafter:
        inner = make_drafter(wanted.pair.draft, wanted.tree, wanted.law, wanted.sampling)  # type: ignore[arg-type]
        return Spinning(inner, share)

    if name not in plugins.parts("source"):
        plugins.drafter(name, laws=tuple(Law))(made)
    refresh()
