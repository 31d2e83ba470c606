"""Whether what was recorded supports what is asked of it."""

from numbers import Real
from typing import Any

import numpy as np
from jaxtyping import Float

from treespec.search.errors import InvalidLimit, InvalidTrace
from treespec.search.integers import integer
from treespec.search.rates.counts import FEWEST_TRIALS, Counts
from treespec.tree import TreeShape

__all__ = ["WIDEST_HALF", "complaints", "cut", "require_limits"]

MOST_LEVELS = 4096
"""Levels, or children of a node, that rates are estimated for."""

WIDEST_HALF = 0.1
"""Half of an interval from which on a rate is called uncertain."""
FEWEST_HITS = 5
"""Expected hits below which the rate of a child that a tree has is called uncertain."""
PLACES_SHOWN = 4


def require_limits(
    by: str, depth: Any, ranks: Any, shrinkage: float, tree: TreeShape | None
) -> None:
    """Refuse settings out of range or at odds with each other.

    Raises:
        InvalidLimit: naming the setting.
    """
    if by not in ("rank", "depth"):
        raise InvalidLimit(f"by = {by!r}, but must be 'rank' or 'depth'")
    for name, value in (("depth", depth), ("ranks", ranks)):
        if value is not None:
            integer(name, value, 1, most=MOST_LEVELS)
    if by == "rank" and depth is not None:
        raise InvalidLimit(f"depth = {depth} belongs to by='depth': by rank all depths are one")
    if not isinstance(shrinkage, Real) or not 0 <= shrinkage < float("inf"):
        raise InvalidLimit(f"shrinkage = {shrinkage!r}, but must be a finite number of at least 0")
    if by == "rank" and shrinkage:
        raise InvalidLimit(
            f"shrinkage = {shrinkage:g} draws rates to those of all depths, which is what by='rank' gives: "
            "leave it out, or take by='depth'"
        )
    if tree is None:
        return
    widest = max(map(len, tree.children))
    for name, value, needed in (("depth", depth, tree.depth), ("ranks", ranks, widest)):
        if value is not None and value < needed:
            raise InvalidLimit(f"{name} = {value}, but the tree needs {needed}: leave it out")


def cut(counts: Counts, depth: int | None, ranks: int | None) -> Counts:
    """The counts of so many levels and ranks.

    Raises:
        InvalidTrace: if fewer were recorded.
    """
    _, levels, known = counts.hits.shape
    for name, wanted, given in (("depth", depth, levels), ("ranks", ranks, known)):
        if wanted is not None and wanted > given:
            what = "are at most this deep" if name == "depth" else "have at most as many children"
            raise InvalidTrace(
                f"{name} = {wanted}, but the recorded steps reach {given} (accepted nodes {what}): "
                "record a larger tree, or ask for less"
            )
    kept = slice(None), slice(depth), slice(ranks)
    return Counts(counts.hits[kept], counts.trials[kept], counts.mass[kept])


def complaints(
    rates: Float[np.ndarray, "levels ranks"],
    low: Float[np.ndarray, "levels ranks"],
    high: Float[np.ndarray, "levels ranks"],
    counts: Counts,
    by: str,
    shrinkage: float,
    tree: TreeShape | None,
    explicit: bool,
    starts: TreeShape | None = None,
) -> list[str]:
    """What the sample cannot support, with numbers: of the cells of `tree` or else of `starts`, or of all.

    Raises:
        InvalidTrace: if something that was asked for has no trial at all.
    """
    trials = counts.trials.sum(axis=0)
    held = starts if tree is None else tree
    used = np.ones(trials.shape, dtype=bool) if held is None else _used(held, trials.shape, by)
    missing = used & (trials == 0)
    if (
        missing.any()
        and not shrinkage
        and (tree is not None or (explicit and missing.all(1).any()))
    ):
        raise InvalidTrace(
            f"nothing was recorded of {_cells(missing, by)}: record longer texts, a wider or deeper tree, "
            "or give a shrinkage"
        )
    sentences = []
    if missing.any():
        value = "the rate of all depths" if shrinkage else "0"
        sentences.append(f"no trial of {_cells(missing, by)}: the rate there is {value}")
    few = used & (trials > 0) & (trials < FEWEST_TRIALS)
    if few.any():
        sentences.append(f"fewer than {FEWEST_TRIALS} trials of {_cells(few, by, trials)}")
    half = (high - low) / 2
    wide = used & ~few & (trials > 0) & (half > WIDEST_HALF)
    if wide.any():
        widest = float(half[wide].max())
        sentences.append(
            f"intervals of up to {widest:.2f} to each side (more than {WIDEST_HALF:g}) of "
            f"{_cells(wide, by, trials)}"
        )
    mass = counts.mass.sum(axis=0)
    rare = used & ~few & (trials > 0) & (mass < FEWEST_HITS)
    if tree is not None and rare.any():
        sentences.append(f"fewer than {FEWEST_HITS} expected hits of {_cells(rare, by, mass)}")
    over = _over(counts)
    if over > 1 + 1e-6:
        sentences.append(f"rates of siblings summed to {over:.3f}, and were scaled to 1")
    if len(counts.hits) == 1:
        sentences.append("there is only one text: how much texts differ is not known")
    return sentences


def _over(counts: Counts) -> float:
    """The largest sum of raw rates of siblings."""
    mass, trials = counts.mass.sum(axis=0), counts.trials.sum(axis=0)
    return float((mass / np.maximum(trials, 1)).sum(axis=1).max())


def _used(tree: TreeShape, shape: tuple[int, ...], by: str) -> np.ndarray:
    """Which of the cells the tree has nodes in."""
    used = np.zeros(shape, dtype=bool)
    for node in range(1, tree.size):
        cell = tree.depths[node] - 1 if by == "depth" else 0, tree.ranks[node]
        if cell[0] < shape[0] and cell[1] < shape[1]:
            used[cell] = True
    return used


def _cells(cells: np.ndarray, by: str, numbers: np.ndarray | None = None) -> str:
    """Some cells in words, with their trials or hits; depths and children count from 1, as in pictures."""
    places = [tuple(map(int, place)) for place in np.argwhere(cells)]
    words = []
    for depth, rank in places[:PLACES_SHOWN]:
        at = f"child {rank + 1}" + (f" at depth {depth + 1}" if by == "depth" else "")
        words.append(at if numbers is None else f"{at} ({_short(numbers[depth, rank])})")
    more = f" and {len(places) - PLACES_SHOWN} more" if len(places) > PLACES_SHOWN else ""
    return ", ".join(words) + more


def _short(number: Any) -> str:
    return f"{number:.2g}" if isinstance(number, float) else str(int(number))
