"""Block drafters: all next positions at once, by one pass over an anchor and masks (DFlash, JetSpec)."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from treespec.draft.trained.block_head import TextRows
from treespec.draft.trained.marginal_drafter import MarginalDrafter


class BlockDraft(MarginalDrafter):
    """Drafts with a head that fills a block of masks after the root.

    DFlash (arXiv:2602.06036) attends within the block in both directions, JetSpec (arXiv:2606.18394)
    causally; which of the two a checkpoint is says its config.json. At each step the block is `[root, mask,
    ...]`, embedded by the target; its keys and values begin with the target's features of all tokens before
    the root, of which only those of the last step are new. The block's own rows are dropped. So a draft
    depends on the text alone, never on where the last tree ended.

    The rows are marginals in both papers: that of depth 2 does not know which child was accepted at depth
    1. Ours differs in that children may be drawn by any law, for any rule. Below uncommitted tokens
    (`propose_below`, in a cascade) these stand in place of the first masks, so the rows after them depend
    on them: a second call buys conditional rows.

    Args:
        head: the head; see `treespec.draft.trained.block_files.load_block`.
        growth: where the tree grows, at most as deep as a block predicts; see `MarginalDrafter`.
        law: how children are chosen.
        sampling: the target's sampling settings.
        observer: see `ModelDrafter`.

    Raises:
        InvalidTree: see `MarginalDrafter`.
    """

    _text: TextRows

    def begin(self, features: Float[Tensor, "P F H"]) -> None:
        """Compute the rows of a prompt without its last token."""
        self._text = self.given.new_text()
        self.given.read(self._text, features)

    def follow(self, features: Float[Tensor, "E F H"]) -> None:
        """Compute the rows of a step's tokens but the bonus, in place of those of the last block."""
        self.given.read(self._text, features)

    def rows_after(self, path: Sequence[int], count: int) -> Float[Tensor, "D V"]:
        """Logits of the first `count` positions of a block after the root."""
        root = self._pending[0] if path else self._root
        return self.given(self._text, root, path, count)
