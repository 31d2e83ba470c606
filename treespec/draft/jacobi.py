"""Jacobi decoding: what the last step said at every position is the next draft."""

from collections.abc import Sequence

from treespec.door import integer
from treespec.draft.text_source import TokenSource
from treespec.step import Step

__all__ = ["Jacobi", "argmax_tokens", "first_guesses"]


class Jacobi(TokenSource):
    """Drafts a chain of the target's own best tokens after the nodes of the chain before.

    Jacobi iteration on greedy decoding (Santilli et al. 2023, arXiv:2305.10427), without windows or pools:
    all positions are guessed at once and computed again until they stop changing. Each step makes one
    position right at least, so n tokens take at most n passes. The last guesses are missing, as many as
    were accepted: they are the latest tokens of the text, as are those of the first step.

    Above temperature 0 the chain still is of the best tokens. The children are DETERMINISTIC, a function of
    text and earlier steps: only rules for that law keep the target's distribution.

    Args:
        depth: draft tokens of every step, at least 1.

    Raises:
        InvalidArgument: if that is no such integer.
    """

    reads_any_tree = False
    branching = 1
    """Most children of a node."""

    def __init__(self, depth: int) -> None:
        self.max_depth = integer("depth", depth, least=1)

    @property
    def size(self) -> int:
        """Nodes of a tree, the root included."""
        return self.max_depth + 1

    def commit(self, step: Step) -> None:
        """Read what was accepted, and guess anew by the rows of the nodes after it.

        Raises:
            InvalidTree: if the tree is not the one that was proposed last.
        """
        self._require_own(step)
        super().commit(step)
        chain = argmax_tokens(step)
        # Nodes of a chain are its positions: the row of the last accepted one gave the bonus.
        self._guesses = chain[len(step.emitted_ids) :]

    def _restart(self) -> None:
        self._latest: list[int] = []
        self._guesses: list[int] = []

    def _read(self, tokens: Sequence[int]) -> None:
        self._latest = [*self._latest, *tokens][-self.max_depth :]

    def _continuations(self) -> tuple[Sequence[int], Sequence[int]]:
        missing = self.max_depth - len(self._guesses)
        tokens = [*self._guesses, *first_guesses(self._latest, missing)]
        return range(-1, len(tokens)), tokens


def argmax_tokens(step: Step) -> list[int]:
    """The target's most probable token after each node of a step's tree."""
    return step.scores.logits.argmax(-1).tolist()


def first_guesses(text: Sequence[int], wanted: int) -> list[int]:
    """Guesses where nothing is known, without a coin: the latest tokens of a text, again and again."""
    if not wanted:
        return []
    latest = list(text[-wanted:])
    return [latest[i % len(latest)] for i in range(wanted)]
