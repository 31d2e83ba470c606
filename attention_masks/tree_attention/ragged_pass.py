"""A pass over several sequences, each with its own tree and its own prefix."""

from collections.abc import Sequence

from attention_masks.errors import InvalidInput
from attention_masks.tree_attention.pass_arrays import PassArrays, fill
from attention_masks.tree_attention.tree_pass import AnyPass, TreePass


class RaggedPass(AnyPass):
    """One `TreePass` for each sequence of a batch.

    q holds `row_count` rows of every sequence, the largest count of any. The rows of a shorter sequence
    are followed by padding: the contents of q there do not matter, and the output is 0. Key slots after
    a sequence's own are not used either.

    Args:
        passes: the passes of the sequences, in order.

    Raises:
        InvalidInput: if there are no passes.

    Example:
        >>> from attention_masks import topology
        >>> chain, fork = topology([-1, 0]), topology([-1, 0, 0])
        >>> RaggedPass([TreePass(chain, 100), TreePass(fork, 7)]).row_count
        3
    """

    def __init__(self, passes: Sequence[TreePass]) -> None:
        super().__init__()
        if not passes:
            raise InvalidInput("passes is empty, but a batch has at least one sequence")
        self.passes = tuple(passes)
        self.batch = len(self.passes)
        self.row_count = max(tree_pass.row_count for tree_pass in self.passes)
        self.key_count = max(tree_pass.key_count for tree_pass in self.passes)

    def key_counts(self, batch: int) -> list[int]:
        """Number of slots that each sequence uses."""
        counts = [tree_pass.key_count for tree_pass in self.passes]
        return counts if self.batch > 1 else counts * batch

    def __repr__(self) -> str:
        return f"RaggedPass({list(self.passes)})"

    def _make_arrays(self) -> PassArrays:
        nodes = max(tree_pass.topology.size for tree_pass in self.passes)
        arrays = PassArrays.empty(self.batch, self.row_count, nodes)
        for sequence, tree_pass in enumerate(self.passes):
            topology = tree_pass.topology.to("cpu")
            fill(arrays, sequence, topology, tree_pass.prefix_len, tree_pass.rows)
        return arrays
