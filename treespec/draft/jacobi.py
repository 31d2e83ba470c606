"""Jacobi decoding: the target's best tokens at every position of the last draft are the next draft."""

from collections.abc import Sequence

from treespec.checks import integer
from treespec.draft.text.text_source import TokenSource
from treespec.step import Step


class Jacobi(TokenSource):
    """Drafts a chain of the target's own best tokens after the nodes of the previous chain.

    Jacobi iteration on greedy decoding (Santilli et al. 2023, arXiv:2305.10427), without windows or pools:
    all positions are guessed at once and recomputed until they stop changing. Each step fixes at least one
    position, so n tokens take at most n passes. As accepted tokens shift the chain, its last guesses are
    missing: they are filled with the latest tokens of the text, as are all guesses of the first step.

    Above temperature 0 the chain still consists of the best tokens. The children are DETERMINISTIC, a
    function of text and earlier steps: only rules for this law preserve the target's distribution.

    Args:
        depth: number of draft tokens of every step, at least 1.

    Raises:
        InvalidArgument: if `depth` is not such an integer.
    """

    reads_any_tree = False
    branching = 1
    """Maximum number of children of a node."""

    def __init__(self, depth: int) -> None:
        self.max_depth = integer("depth", depth, least=1)

    @property
    def size(self) -> int:
        """Number of nodes of a tree, the root included."""
        return self.max_depth + 1

    def commit(self, step: Step) -> None:
        """Read the accepted tokens, and take new guesses from the rows of the nodes after them.

        Raises:
            InvalidTree: if the tree is not the one that was proposed last.
        """
        self._require_own(step)
        super().commit(step)
        best = argmax_tokens(step)
        # Node indices of a chain are positions: the row of the last accepted node gave the bonus.
        self._guesses = best[len(step.emitted_ids) :]

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
    """Guesses made without any knowledge or coins: the latest tokens of a text, repeated."""
    if not wanted:
        return []
    latest = list(text[-wanted:])
    return [latest[i % len(latest)] for i in range(wanted)]
