"""Lookahead decoding: a window of Jacobi iterations makes n-grams, which later steps draft."""

from collections.abc import Mapping, Sequence
from os import PathLike

import numpy as np

from treespec.door import instance, integer, sequence
from treespec.draft.jacobi import argmax_tokens, first_guesses
from treespec.draft.path_tree import PathTree
from treespec.draft.state import load_state, save_state
from treespec.draft.text_source import TokenSource
from treespec.draft.vocabulary import plain_tokens
from treespec.errors import InvalidArgument, Unreadable
from treespec.step import Step

__all__ = ["Lookahead"]

Pool = dict[int, list[tuple[int, ...]]]
"""By their first token, the other tokens of n-grams; the latest last."""

KIND = "lookahead pool"


class Lookahead(TokenSource):
    """Drafts n-grams that begin with the root, and beside them the window that finds new ones.

    Lookahead decoding (arXiv:2402.02057, commit eed010d). The window has `window` columns and
    `ngram` - 1 levels: column i of level l is a guess for i + l tokens after the root, made by the target
    in the step before. No special mask is needed, because the pass *is* a tree: level 0 is a chain below
    the root, which is its first column; column i of a level hangs below column i of the level before, at
    depth i + l; guesses from the pool hang below the root. The best token after the last level completes
    an n-gram in every column, which joins the pool; then every level moves up by one. Each first token
    keeps its latest `guesses` n-grams. With 7, 5 and 7 a tree has 56 nodes, root included, and depth 9.

    A guess that is accepted whole yields `ngram` tokens, bonus included; the reference implementation loses
    one. Equal siblings are one node, and a path of the window may be accepted like any other. The first
    levels are filled one a step; level 0 begins with the latest tokens of the prompt, so no coin is used.
    Above temperature 0 window and pool still go by the best token. The children are DETERMINISTIC: only
    rules for that law keep the target's distribution.

    Args:
        window: W, columns of the window, at least 1.
        ngram: N, tokens of an n-gram, at least 2.
        guesses: G, n-grams kept and drafted for each first token, at least 1.
        pool: n-grams of earlier texts, by their first token; every prompt begins with a copy. Of longer
            ones the first `ngram` tokens are taken, so that a pool serves trees of any smaller size.
        vocab_size: of the target, to refuse ids of `pool` beyond it; None to look at nothing.

    Raises:
        InvalidArgument: if one of them is no such integer, or the pool has no or shorter n-grams.
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
        self._start = {} if pool is None else self._checked(pool, vocab_size)
        self._restart()

    @property
    def size(self) -> int:
        """Most nodes of a tree, the root included: its window, full or filling, and G n-grams."""
        levels = range(1, self.ngram)
        window = max(level * (self.window + self.ngram - 1 - level) for level in levels)
        # A pool that was given drafts from the first step on, while the window is at its widest.
        return window + self.guesses * (self.ngram - 1)

    @property
    def branching(self) -> int:
        """Most children of a node: one of each level of the window, and G n-grams."""
        return self.ngram - 1 + self.guesses

    @property
    def pool(self) -> Pool:
        """What was found so far, in this text and those that it began with."""
        return {first: list(others) for first, others in self._pool.items()}

    def commit(self, step: Step) -> None:
        """Read the window's rows, complete its n-grams, and move it on by one token.

        Raises:
            InvalidTree: if the tree is not the one that was proposed last.
        """
        self._require_own(step)
        super().commit(step)
        best = argmax_tokens(step)
        new = [best[node] for node in self._top]
        if len(self._levels) == self.ngram - 1:
            for column, token in enumerate(new):
                self._learn((*(level[column] for level in self._levels), token))
            self._levels = [*self._levels[1:], new]
        else:
            self._levels = [level[1:] for level in [*self._levels, new]]
        self._levels[0][0] = self._root

    def save(
        self,
        path: str | PathLike[str],
        *,
        vocab_size: int,
        tokenizer: str = "",
        target: str = "",
    ) -> None:
        """Write the pool, for `load`.

        Args:
            path: of the file.
            vocab_size: of the target.
            tokenizer: its digest (`treespec.draft.state.tokenizer_digest`), if it is known: configs refuse
                a file without it.
            target: its name (`TransformersModel.fingerprint`), if it is known.

        Raises:
            OSError: if it cannot be written.
        """
        ngrams = [(first, *rest) for first, kept in self._pool.items() for rest in kept]
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
        """A pool that `save` wrote.

        Args:
            path: of the file.
            vocab_size: of the target; None to look at nothing.
            tokenizer: its digest; empty to look at nothing.
            target: its fingerprint; empty to look at nothing.

        Raises:
            Unreadable: if there is no such file, it is damaged or newer, or was made of another model's
                tokens or passes.
        """
        pool: Pool = {}
        rows = load_state(path, KIND, {"ngrams": 2}, vocab_size, tokenizer, target)["ngrams"]
        if len(rows) and rows.shape[1] < 2:
            raise Unreadable(f"{path}: damaged: n-grams have two tokens at least; make it again")
        for ngram in rows.tolist():
            try:
                first, *rest = plain_tokens("ngrams", ngram, vocab_size)
            except InvalidArgument as error:
                raise Unreadable(f"{path}: damaged: {error}; make it again") from None
            pool.setdefault(first, []).append(tuple(rest))
        return pool

    def _restart(self) -> None:
        self._pool = {first: list(others) for first, others in self._start.items()}
        self._levels: list[list[int]] = []
        self._top: list[int] = []

    def _read(self, tokens: Sequence[int]) -> None:
        if not self._levels:  # the prompt
            guesses = first_guesses(tokens, self.window + self.ngram - 3)
            self._levels = [[tokens[-1], *guesses]]

    def _continuations(self) -> tuple[Sequence[int], Sequence[int]]:
        tree = PathTree()
        column = [0]
        for token in self._levels[0][1:]:
            column.append(tree.add(column[-1], token))
        for level in self._levels[1:]:
            column = [tree.add(node, token) for node, token in zip(column, level, strict=True)]
        self._top = column
        for ngram in self._pool.get(self._root, ()):
            node = 0
            for token in ngram:
                node = tree.add(node, token)
        return tree.parents, tree.tokens

    def _learn(self, ngram: tuple[int, ...]) -> None:
        first, rest = ngram[0], ngram[1:]
        kept = self._pool.setdefault(first, [])
        if rest in kept:
            kept.remove(rest)
        kept.append(rest)
        del kept[: -self.guesses]

    def _checked(self, pool: Mapping[int, Sequence[Sequence[int]]], vocab_size: int | None) -> Pool:
        instance("pool", pool, Mapping, "a mapping of token ids to n-grams, or None")
        checked: Pool = {}
        for given, kept in pool.items():
            (first,) = plain_tokens("pool's tokens", [given], vocab_size)
            rows = sequence(f"pool[{first}]", kept, "n-grams without their first token")
            rests = [
                tuple(plain_tokens(f"pool[{first}][{i}]", row, vocab_size))
                for i, row in enumerate(rows)
            ]
            for rest in rests:
                if len(rest) + 1 < self.ngram:
                    raise InvalidArgument(
                        f"pool has n-grams of {len(rest) + 1} tokens, but ngram = {self.ngram}: set ngram "
                        f"to {len(rest) + 1} at most, or take a pool made with ngram = {self.ngram} or more"
                    )
            # Cut, several may be one: it stands where the latest of them stood.
            latest = dict.fromkeys(rest[: self.ngram - 1] for rest in reversed(rests))
            checked[first] = list(latest)[: self.guesses][::-1]
        return checked
