"""Shrink the replayed tokens of many trees towards a regression, so that a choice does not follow noise."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from treespec.search.choice.trace_speed import TraceSpeed
from treespec.search.optimum.expected import tokens_of
from treespec.shape import TreeShape

__all__ = ["Smoothed"]

FEWEST_TREES = 12
"""Fewest trees for a regression on four features. With fewer it fits noise, so replay is used as it is."""


class Smoothed:
    """Tokens per step of trees on some texts: replay, shrunk towards a regression on rates, size and depth.

    The best of hundreds of trees by replay of a dozen texts is mostly the luckiest; on other texts the
    best by rates beats it, though rates are biased. So the logarithm of the replayed tokens per step is
    regressed on that of the expected tokens under rates, on log size and on depth, which removes the bias.
    The residual of a tree is shrunk by empirical Bayes (Efron & Morris, JASA 68, 1973) with the factor
    t / (t + s), where s is the residual's variance over texts, and t the variance of residuals between
    trees beyond that. With many texts the factor is nearly 1. With fewer than `FEWEST_TREES` trees, too
    few for a regression, nothing is shrunk.

    Args:
        side: trace and times.
        texts: mask of the texts of `side.sample` that count.
        rates: rates by depth and rank, under which the trees are valued.
        trees: trees that the regression is fitted to; they must not be selected by their replay.
    """

    def __init__(
        self,
        side: TraceSpeed,
        texts: Bool[np.ndarray, "t"],
        rates: Float[np.ndarray, "levels ranks"],
        trees: Sequence[TreeShape],
    ) -> None:
        self._side, self._texts, self._rates = side, texts, rates
        self._features_of: dict[TreeShape, tuple[float, float, float, float]] = {}
        files = side.sample.file_of[texts]
        self._order = np.argsort(files, kind="stable")
        self._firsts = np.unique(files[self._order], return_index=True)[1]
        logs, shifts = self._replayed(trees)
        features = self._features(trees)
        inverse = np.linalg.pinv(features)
        self._fit, self._shifts = inverse @ logs, inverse @ shifts
        residuals, noise = self._residuals(features, logs, shifts)
        degrees = max(1, len(logs) - features.shape[1])
        self._signal = max(0.0, float((residuals**2).sum() / degrees - noise.mean()))
        self._few_trees = len(logs) < FEWEST_TREES

    def tokens(self, trees: Sequence[TreeShape]) -> Float[np.ndarray, "trees"]:
        """Smoothed tokens per step of each tree."""
        logs, shifts = self._replayed(trees)
        if self._few_trees:
            return np.exp(logs)
        features = self._features(trees)
        residuals, noise = self._residuals(features, logs, shifts)
        factor = self._signal / np.maximum(self._signal + noise, np.finfo(float).tiny)
        return np.exp(features @ self._fit + factor * residuals)

    def _residuals(
        self,
        features: Float[np.ndarray, "trees features"],
        logs: Float[np.ndarray, "trees"],
        shifts: Float[np.ndarray, "trees texts"],
    ) -> tuple[Float[np.ndarray, "trees"], Float[np.ndarray, "trees"]]:
        """The residual of each tree's replay, and its variance over texts."""
        texts = shifts.shape[1]
        noise = ((shifts - features @ self._shifts) ** 2).sum(axis=1)
        noise = noise * texts / (texts - 1) if texts > 1 else np.full(len(logs), np.inf)
        return logs - features @ self._fit, noise

    def _replayed(
        self, trees: Sequence[TreeShape]
    ) -> tuple[Float[np.ndarray, "trees"], Float[np.ndarray, "trees texts"]]:
        """Logarithms of tokens per step, and each text's (all excerpts of a file's) influence on them."""
        emitted, steps = (totals[:, self._texts] for totals in self._side.sampled_totals(trees))
        all_emitted, all_steps = (x.sum(axis=1, keepdims=True) for x in (emitted, steps))
        shifts = (emitted / all_emitted - steps / all_steps)[:, self._order]
        return np.log(all_emitted / all_steps)[:, 0], np.add.reduceat(shifts, self._firsts, axis=1)

    def _features(self, trees: Sequence[TreeShape]) -> Float[np.ndarray, "trees features"]:
        for tree in trees:
            if tree not in self._features_of:
                tokens = float(tokens_of(tree, self._rates[None], by_depth=True)[0])
                self._features_of[tree] = (1.0, np.log(tokens), np.log(tree.size), tree.depth)
        return np.array([self._features_of[tree] for tree in trees])
