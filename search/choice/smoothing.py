"""Replayed tokens of many trees, less what is chance: what a choice among them may believe."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from treespec.search.choice.trace_speed import TraceSpeed
from treespec.search.optimum.expected import tokens_of
from treespec.shape import TreeShape

__all__ = ["Smoothed"]

FEWEST_TREES = 12
"""Trees that a regression on four numbers needs. Of fewer it explains chance, too: replay is believed."""


class Smoothed:
    """Tokens per step of trees on some texts: their replay, drawn to what rates, size and depth explain.

    The best of hundreds of trees by replay of a dozen texts is mostly the luckiest; on other texts the
    best by rates beats it, though rates are biased. So the logarithm of the replayed tokens per step is
    regressed on that of the expected ones under rates, on size and on depth, which takes the bias out; and
    of what the replay of a tree says beyond, only the share counts that is not chance (empirical Bayes,
    Efron & Morris, JASA 68, 1973): t / (t + s), where s is the variance over texts of what it says beyond,
    and t how much more these parts vary from tree to tree than by chance. With many texts it all counts,
    and so it does of fewer than `FEWEST_TREES` trees, which are too few for a regression.

    Args:
        side: trace and times.
        texts: those of `side.sample` that count.
        rates: by depth, under which the trees are valued.
        trees: that the regression is over; they may not be chosen by their replay.
    """

    def __init__(
        self,
        side: TraceSpeed,
        texts: Bool[np.ndarray, "t"],
        rates: Float[np.ndarray, "levels ranks"],
        trees: Sequence[TreeShape],
    ) -> None:
        self._side, self._texts, self._rates = side, texts, rates
        self._known: dict[TreeShape, tuple[float, float, float, float]] = {}
        files = side.sample.file_of[texts]
        self._order = np.argsort(files, kind="stable")
        self._firsts = np.unique(files[self._order], return_index=True)[1]
        logs, shifts = self._replayed(trees)
        features = self._features(trees)
        inverse = np.linalg.pinv(features)
        self._fit, self._shifts = inverse @ logs, inverse @ shifts
        beyond, chance = self._beyond(features, logs, shifts)
        free = max(1, len(logs) - features.shape[1])
        self._true = max(0.0, float((beyond**2).sum() / free - chance.mean()))
        self._few = len(logs) < FEWEST_TREES

    def tokens(self, trees: Sequence[TreeShape]) -> Float[np.ndarray, "trees"]:
        """Tokens per step of each, as far as can be believed."""
        logs, shifts = self._replayed(trees)
        if self._few:
            return np.exp(logs)
        features = self._features(trees)
        beyond, chance = self._beyond(features, logs, shifts)
        share = self._true / np.maximum(self._true + chance, np.finfo(float).tiny)
        return np.exp(features @ self._fit + share * beyond)

    def _beyond(
        self,
        features: Float[np.ndarray, "trees features"],
        logs: Float[np.ndarray, "trees"],
        shifts: Float[np.ndarray, "trees texts"],
    ) -> tuple[Float[np.ndarray, "trees"], Float[np.ndarray, "trees"]]:
        """What replay says beyond the regression, and its variance over texts."""
        number = shifts.shape[1]
        chance = ((shifts - features @ self._shifts) ** 2).sum(axis=1)
        chance = chance * number / (number - 1) if number > 1 else np.full(len(logs), np.inf)
        return logs - features @ self._fit, chance

    def _replayed(
        self, trees: Sequence[TreeShape]
    ) -> tuple[Float[np.ndarray, "trees"], Float[np.ndarray, "trees texts"]]:
        """Logarithms of tokens per step, and how each text (all excerpts of a file) shifts them."""
        emitted, steps = (part[:, self._texts] for part in self._side.sampled_totals(trees))
        over, under = emitted.sum(axis=1, keepdims=True), steps.sum(axis=1, keepdims=True)
        shifts = (emitted / over - steps / under)[:, self._order]
        return np.log(over / under)[:, 0], np.add.reduceat(shifts, self._firsts, axis=1)

    def _features(self, trees: Sequence[TreeShape]) -> Float[np.ndarray, "trees features"]:
        for tree in trees:
            if tree not in self._known:
                worth = float(tokens_of(tree, self._rates[None], by_depth=True)[0])
                self._known[tree] = (1.0, np.log(worth), np.log(tree.size), tree.depth)
        return np.array([self._known[tree] for tree in trees])
