"""The target of the decoding loop, over any model that can run a tree."""

from jaxtyping import Float, Int
from torch import Tensor

from treespec.checks import require_tokens
from treespec.features import Features, lend
from treespec.protocols import TreeModel
from treespec.step import Scores, Step
from treespec.tree import TokenTree


class ModelTarget:
    """Scores a whole tree in one pass and keeps the rows of the accepted path.

    Args:
        model: the weights; the model's own cache is not touched. Each target has a fresh cache, so several
            texts can be decoded side by side, and one model can be target and draft at once.
    """

    def __init__(self, model: TreeModel) -> None:
        self.model = model.fresh()

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self.model.vocab_size

    @property
    def max_length(self) -> int:
        """Number of positions in the model's context."""
        return self.model.max_length

    def lend(self, reads: Features) -> None:
        """From the next `prefill` on, return these features with every pass.

        Raises:
            InvalidArgument: if the model does not have such a boundary.
            UnsupportedModel: if the features of this model cannot be had.
        """
        lend(self.model, reads)

    def prefill(self, tokens: Int[Tensor, "T"]) -> Float[Tensor, "P F H"] | None:
        """Cache all tokens but the last, which becomes the first root; returns their features."""
        require_tokens(tokens)
        return self.model.prefill(tokens[:-1])

    def score(self, tree: TokenTree) -> Scores:
        """Logits after every node of the tree, and the features that are lent of them."""
        return self.model.run(tree.tokens, tree.shape.parents)

    def commit(self, step: Step) -> None:
        """Keep the rows of the root and the accepted nodes. The bonus token becomes the next root."""
        self.model.keep(step.verdict.path)
