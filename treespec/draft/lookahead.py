"""Lookahead decoding: a window of Jacobi iterations yields n-grams, which later steps draft."""

from collections.abc import Mapping, Sequence
from os import PathLike

import numpy as np

from treespec.checks import integer, plain_tokens
from treespec.draft.jacobi import argmax_tokens, first_guesses
from treespec.draft.state import load_state, save_state
from treespec.draft.text.text_source import TokenSource
from treespec.errors import InvalidArgument
from treespec.step import Step

Pool = dict[int, list[tuple[int, ...]]]
"""By first token, the remaining tokens of its n-grams, the latest last."""

KIND = "lookahead pool"


class PathTree:
    """Collects nodes identified by parent and token; adding an existing node returns its index.

    Deterministic children are distinct: a token that appeared twice below a node would be tested twice. So
    the common prefix of several paths is one node each.
    """

    def __init__(self) -> None:
        self.parents, self.tokens = [-1], list[int]()
        self._nodes: dict[tuple[int, int], int] = {}

    def add(self, parent: int, token: int) -> int:
        """The index of the node's child with this token, which is created if missing."""
        node = self._nodes.setdefault((parent, token), len(self.parents))
        if node == len(self.parents):
            self.parents.append(parent)
            self.tokens.append(token)
        return node


class Lookahead(TokenSource):
    """Drafts n-grams that begin with the root, together with the window that finds new n-grams.

    Lookahead decoding (arXiv:2402.02057, commit eed010d). The window has `window` columns and
    `ngram` - 1 levels: column i of level l is a guess for the token i + l positions after the root, made by
    the target in the previous step. No special mask is needed, because the pass *is* a tree: level 0 is a
    chain whose first column is the root; column i of a level is a child of column i of the level before,
    at depth i + l; guesses from the pool are paths below the root. The best token after the last level
    completes an n-gram in every column, which joins the pool; then every level moves up by one. Each first
    token keeps its latest `guesses` n-grams. With 7, 5 and 7 a tree has 56 nodes, root included, and depth
    9.

    A completely accepted guess yields `ngram` tokens, bonus included; the reference implementation loses
    one. Equal siblings are one node, and a path of the window may be accepted like any other path. The
    levels are filled one per step; level 0 begins with the latest tokens of the prompt, so no coin is used.
    Above temperature 0, window and pool still use the best token. The children are DETERMINISTIC: only
    rules for this law preserve the target's distribution.

    Args:
        window: W, number of columns of the window, at least 1.
        ngram: N, tokens of an n-gram, at least 2.
        guesses: G, n-grams kept and drafted for each first token, at least 1.
        pool: n-grams of earlier texts, by first token; every prompt begins with a copy. Longer n-grams are
            cut to `ngram` tokens, so that a pool serves trees of any smaller size.
        vocab_size: the target's vocabulary size, to refuse larger ids in `pool`; None to skip the check.

    Raises:
        InvalidArgument: if an argument is not such an integer, or the pool does not hold n-grams or holds
            shorter ones.
    """

    reads_any_tree = False

    def __init__(
        self,
        window: int = 7,
        ngram: int = 5,
        guesses: int = 7,
        *,
        pool: Mapping[int, Sequence[Sequence[int]]] | None = None,
        vocab_size: int | None = None,
    ) -> None:
        self.window = integer("window", window, least=1)
        self.ngram = integer("ngram", ngram, least=2)
        self.guesses = integer("guesses", guesses, least=1)
        self.max_depth = max(self.window + self.ngram - 3, self.ngram - 1)
        self._initial = {} if pool is None else self._checked(pool, vocab_size)
        self._restart()

    @property
    def size(self) -> int:
        """Maximum number of nodes, the root included: the window, full or filling, and G n-grams."""
        levels = range(1, self.ngram)
        window = max(level * (self.window + self.ngram - 1 - level) for level in levels)
        # A given pool is drafted from the first step on, while the window is at its widest.
        return window + self.guesses * (self.ngram - 1)

    @property
    def branching(self) -> int:
        """Maximum number of children of a node: one per level of the window, and G n-grams."""
        return self.ngram - 1 + self.guesses

    @property
    def pool(self) -> Pool:
        """The n-grams found so far in this text, and those of the initial pool."""
        return {first: list(rests) for first, rests in self._pool.items()}

    def commit(self, step: Step) -> None:
        """Read the window's rows, complete its n-grams, and move the window on.

        Raises:
            InvalidTree: if the tree is not the one that was proposed last.
        """
        self._require_own(step)
        super().commit(step)
        best = argmax_tokens(step)
        new_level = [best[node] for node in self._last_level_nodes]
        if len(self._levels) == self.ngram - 1:
            for column, token in enumerate(new_level):
                self._learn((*(level[column] for level in self._levels), token))
            self._levels = [*self._levels[1:], new_level]
        else:
            self._levels = [level[1:] for level in [*self._levels, new_level]]
        self._levels[0][0] = self._root

    def save(
        self,
        path: str | PathLike[str],
        *,
        vocab_size: int,
        tokenizer: str = "",
        target: str = "",
    ) -> None:
        """Write the pool to a file, for `load`; arguments as in `treespec.draft.state.save_state`."""
        ngrams = [(first, *rest) for first, rests in self._pool.items() for rest in rests]
        rows = np.array(ngrams, dtype=np.int64).reshape(-1, self.ngram)
        save_state(path, KIND, {"ngrams": rows}, vocab_size, tokenizer, target)

    @staticmethod
    def load(
        path: str | PathLike[str],
        *,
        vocab_size: int | None = None,
        tokenizer: str = "",
        target: str = "",
    ) -> Pool:
        """Read a pool written by `save`; arguments as in `treespec.draft.state.load_state`.

        Raises:
            Unreadable: if there is no such file, it is damaged or of another version, or it was made with
                another tokenizer or target.
        """
        pool: Pool = {}
        rows = load_state(path, KIND, {"ngrams": 2}, vocab_size, tokenizer, target)["ngrams"]
        for first, *rest in rows.tolist():
            pool.setdefault(first, []).append(tuple(rest))
        return pool

    def _restart(self) -> None:
        self._pool = {first: list(rests) for first, rests in self._initial.items()}
        self._levels: list[list[int]] = []
        self._last_level_nodes: list[int] = []

    def _read(self, tokens: Sequence[int]) -> None:
        if not self._levels:  # the prompt
            guesses = first_guesses(tokens, self.window + self.ngram - 3)
            self._levels = [[tokens[-1], *guesses]]

    def _continuations(self) -> tuple[Sequence[int], Sequence[int]]:
        tree = PathTree()
        nodes = [0]
        for token in self._levels[0][1:]:
            nodes.append(tree.add(nodes[-1], token))
        for level in self._levels[1:]:
            nodes = [tree.add(node, token) for node, token in zip(nodes, level, strict=True)]
        self._last_level_nodes = nodes
        for ngram in self._pool.get(self._root, ()):
            node = 0
            for token in ngram:
                node = tree.add(node, token)
        return tree.parents, tree.tokens

    def _learn(self, ngram: tuple[int, ...]) -> None:
        first, rest = ngram[0], ngram[1:]
        rests = self._pool.setdefault(first, [])
        if rest in rests:
            rests.remove(rest)
        rests.append(rest)
        del rests[: -self.guesses]

    def _checked(self, pool: Mapping[int, Sequence[Sequence[int]]], vocab_size: int | None) -> Pool:
        checked: Pool = {}
        for first, ngrams in pool.items():
            rests = [tuple(plain_tokens(f"pool[{first}]", row, vocab_size)) for row in ngrams]
            shortest = min(map(len, rests), default=self.ngram) + 1
            if shortest < self.ngram:
                raise InvalidArgument(
                    f"pool has n-grams of {shortest} tokens, but ngram = {self.ngram}: set it to at most "
                    f"{shortest}, or use a pool made with ngram = {self.ngram} or more"
                )
            # Cut n-grams may be equal: keep one, at the position of the latest.
            latest = dict.fromkeys(rest[: self.ngram - 1] for rest in reversed(rests))
            checked[plain_tokens("pool's tokens", [first], vocab_size)[0]] = list(latest)[
                : self.guesses
            ][::-1]
        return checked
