"""No draft: every tree is its root alone, which makes the loop decode plainly."""

import sys

from jaxtyping import Int
from torch import Tensor

from treespec.checks import require_tokens
from treespec.protocols import Coins
from treespec.step import Step
from treespec.tree import Law, TokenTree, TreeShape

_ROOT = TreeShape.chain(0)


class NoDrafter:
    """Proposes the root alone, so that each step emits one token, drawn by the target."""

    max_depth = 0
    max_length = sys.maxsize

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Remember the last token as the root."""
        require_tokens(tokens)
        self._root, self._device = int(tokens[-1]), tokens.device

    def propose(self, coins: Coins) -> TokenTree:
        """The root alone."""
        return TokenTree.of(_ROOT, [self._root], None, Law.DETERMINISTIC, self._device)

    def commit(self, step: Step) -> None:
        """Remember the bonus as the next root."""
        self._root = step.verdict.bonus
