"""The target of the decoding loop, over any model that can run a tree."""

from jaxtyping import Int
from torch import Tensor

from treespec.checks import require_tokens
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

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Cache all tokens but the last, which becomes the first root."""
        require_tokens(tokens)
        self.model.prefill(tokens[:-1])

    def score(self, tree: TokenTree) -> Scores:
        """Logits after every node of the tree."""
        return Scores(self.model.run(tree.tokens, tree.shape.parents))

    def commit(self, step: Step) -> None:
        """Keep the rows of the root and the accepted nodes. The bonus token becomes the next root."""
        self.model.keep(step.verdict.path)
