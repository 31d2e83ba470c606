"""Trees whose tokens mean nothing, at no cost: for timing what comes after the draft."""

from contextlib import nullcontext

from treespec.draft.growth import StaticGrowth
from treespec.draft.nothing import NoDrafter
from treespec.protocols import Coins, Observer
from treespec.tree import Law, TokenTree, TreeShape


class Undrafted(NoDrafter):
    """Proposes a given shape, whose nodes count up through the vocabulary; no model runs.

    Args:
        growth: the shape; a `TreeShape` is drafted as it is.
        vocab_size: number of token ids of the target.
        observer: notified of the stage `level` once per level, as by a draft model.
    """

    def __init__(
        self, growth: StaticGrowth | TreeShape, vocab_size: int, observer: Observer | None = None
    ) -> None:
        self.growth = StaticGrowth(growth) if isinstance(growth, TreeShape) else growth
        self.max_depth = self.growth.max_depth
        self._vocab_size = vocab_size
        self._stage = nullcontext if observer is None else observer.stage

    def propose(self, coins: Coins) -> TokenTree:
        """A tree of the shape; takes no coin."""
        shape = self.growth.shape
        for _ in range(shape.depth):
            with self._stage("level"):
                pass
        tokens = [self._root, *(node % self._vocab_size for node in range(1, shape.size))]
        return TokenTree.of(shape, tokens, None, Law.DETERMINISTIC, self._device)
