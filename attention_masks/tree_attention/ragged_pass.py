"""A pass over several sequences, each with its own tree and its own prefix."""

from collections.abc import Sequence

from attention_masks._inputs import checked_items
from attention_masks._plain import shown
from attention_masks.errors import InvalidInput
from attention_masks.tree_attention.pass_arrays import PassArrays, fill
from attention_masks.tree_attention.tree_pass import AnyPass, TreePass

__all__ = ["RaggedPass"]


class RaggedPass(AnyPass):
    """One `TreePass` for each sequence of a batch.

    q holds `row_count` rows of every sequence, as many as the longest has. The rows that a sequence
    has fewer are padding behind its own: what q holds there does not matter, and their output is 0.
    Slots of keys behind a sequence's own are not used either.

    Args:
        passes: of the sequences, in order.

    Raises:
        InvalidInput: if there is none.

    Example:
        >>> from attention_masks import topology
        >>> chain, fork = topology([-1, 0]), topology([-1, 0, 0])
        >>> RaggedPass([TreePass(chain, 100), TreePass(fork, 7)]).row_count
        3
    """

    def __init__(self, passes: Sequence[TreePass]) -> None:
        super().__init__()
        passes = checked_items("passes", passes, "TreePasses")
        for i, one in enumerate(passes):
            if not isinstance(one, TreePass):
                raise InvalidInput(f"passes[{i}] = {shown(one)}, but it must be a TreePass")
        if not passes:
            raise InvalidInput("passes is empty, but a batch has at least one sequence")
        self.passes = passes
        self.batch = len(self.passes)
        self.row_count = max(one.row_count for one in self.passes)
        self.key_count = max(one.key_count for one in self.passes)

    def key_counts(self, batch: int) -> list[int]:
        """Slots that each sequence uses."""
        counts = [one.key_count for one in self.passes]
        return counts if self.batch > 1 else counts * batch

    def __repr__(self) -> str:
        """The passes."""
        return f"RaggedPass({list(self.passes)})"

    def _make_arrays(self) -> PassArrays:
        nodes = max(one.topology.size for one in self.passes)
        arrays = PassArrays.empty(self.batch, self.row_count, nodes)
        for sequence, one in enumerate(self.passes):
            fill(arrays, sequence, one.topology.to("cpu"), one.prefix_len, one.rows)
        return arrays
