"""A drafted tree whose token ids only the device knows, until somebody reads them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxtyping import Int
from torch import Tensor

from treespec.tree.token_tree import TokenTree


@dataclass(frozen=True, eq=False)
class UnreadTree(TokenTree):
    """A `TokenTree` whose ids are read together with what else a step reads, in one transfer.

    Reading `token_ids` waits for the device. A verifier that waits for it anyway takes `unread` along and
    hands over what it read (`settle`). Until then the ids are known only to be below `ids_below`, and the
    numbers that the children were chosen from have not been checked to be finite.

    Args:
        unread: the ids of all nodes, and then 1 if all logits of the draft were finite, else 0; on the
            device. `tokens` is a view of it.
        ids_below: every drafted id is below this, by the way in which they were chosen.
        refuse: called when the logits were not finite; raises `NonFiniteLogits`.
    """

    unread: Int[Tensor, " R"]
    ids_below: int
    refuse: Callable[[], None]

    @cached_property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens as plain integers, read from the device once.

        Raises:
            NonFiniteLogits: if the draft model returned NaN or infinite logits.
        """
        return self._ids(self.unread.tolist())

    @property
    def is_unread(self) -> bool:
        """Whether the ids have not been read yet."""
        return "token_ids" not in vars(self)

    def settle(self, numbers: Sequence[int]) -> None:
        """Take `unread` as plain integers, by a caller that has read them along with others.

        Raises:
            NonFiniteLogits: see `token_ids`.
        """
        self.know_token_ids(self._ids(numbers))

    def _ids(self, numbers: Sequence[int]) -> tuple[int, ...]:
        *ids, finite = numbers
        if not finite:
            self.refuse()
        return tuple(ids)

    def __reduce__(self) -> tuple[Any, ...]:
        """A plain tree, whose ids are read."""
        _ = self.token_ids
        return TokenTree, (self.shape, self.tokens, self.draft_probs, self.law)

    def _read_on_cpu(self) -> None:
        """Nothing: they are read when somebody asks."""


def unread(tree: object) -> Int[Tensor, " R"] | None:
    """What is to be read of a tree along with other numbers; None if its ids are known."""
    return tree.unread if isinstance(tree, UnreadTree) and tree.is_unread else None


def settle(tree: object, numbers: Sequence[int]) -> None:
    """Hand over what was read of `unread`; empty if that was None."""
    if numbers and isinstance(tree, UnreadTree):
        tree.settle(numbers)
