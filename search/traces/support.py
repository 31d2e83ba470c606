"""Check whether recorded counts support the requested rates."""

import numpy as np
from jaxtyping import Float

from treespec.search.errors import InvalidLimit, InvalidTrace
from treespec.search.traces.counts import FEWEST_TRIALS, Counts

MOST_LEVELS = 4096
"""Limit on the levels, and on the children of a node, that rates are estimated for."""

WIDEST_HALF = 0.1
"""Half-width of an interval above which a rate is called uncertain."""
PLACES_SHOWN = 4


def require_limits(by: str, depth: int | None, shrinkage: float) -> None:
    """Refuse settings that are out of range or contradict each other."""
    if by not in ("rank", "depth"):
        raise InvalidLimit(f"by = {by!r}, but must be 'rank' or 'depth'")
    if depth is not None and not 1 <= depth <= MOST_LEVELS:
        raise InvalidLimit(f"depth = {depth}, but must be in 1..{MOST_LEVELS}")
    if by == "rank" and depth is not None:
        raise InvalidLimit(f"depth = {depth} belongs to by='depth': by rank all depths are one")
    if not 0 <= shrinkage < float("inf"):
        raise InvalidLimit(f"shrinkage = {shrinkage!r}, but must be a finite number of at least 0")
    if by == "rank" and shrinkage:
        raise InvalidLimit(
            f"shrinkage = {shrinkage:g} shrinks rates towards those of all depths, which by='rank' gives "
            "anyway: leave it out, or use by='depth'"
        )


def cut(counts: Counts, depth: int | None, ranks: int | None) -> Counts:
    """The counts of the first `depth` levels and `ranks` ranks."""
    _, known_levels, known_ranks = counts.hits.shape
    for name, wanted, known in (("depth", depth, known_levels), ("ranks", ranks, known_ranks)):
        if wanted is not None and wanted > known:
            what = "are at most this deep" if name == "depth" else "have at most as many children"
            raise InvalidTrace(
                f"{name} = {wanted}, but the recorded steps reach {known} (accepted nodes {what}): "
                "record a larger tree, or ask for less"
            )
    cells = slice(None), slice(depth), slice(ranks)
    return Counts(counts.hits[cells], counts.trials[cells], counts.mass[cells])


def complaints(
    low: Float[np.ndarray, "levels ranks"],
    high: Float[np.ndarray, "levels ranks"],
    counts: Counts,
    by: str,
    shrinkage: float,
    explicit: bool,
) -> list[str]:
    """Sentences on rates that the sample does not support."""
    trials = counts.trials.sum(axis=0)
    missing = trials == 0
    if explicit and missing.all(1).any() and not shrinkage:
        raise InvalidTrace(
            f"nothing was recorded for {_cells(missing, by)}: record longer texts, a wider or deeper tree, "
            "or give a shrinkage"
        )
    sentences = []
    if missing.any():
        value = "the rate of all depths" if shrinkage else "0"
        sentences.append(f"no trial of {_cells(missing, by)}: its rate is taken as {value}")
    few = (trials > 0) & (trials < FEWEST_TRIALS)
    if few.any():
        sentences.append(f"fewer than {FEWEST_TRIALS} trials of {_cells(few, by, trials)}")
    half = (high - low) / 2
    wide = ~few & (trials > 0) & (half > WIDEST_HALF)
    if wide.any():
        widest = float(half[wide].max())
        sentences.append(
            f"intervals of up to {widest:.2f} to each side (more than {WIDEST_HALF:g}) for "
            f"{_cells(wide, by, trials)}"
        )
    if len(counts.hits) == 1:
        sentences.append("there is only one text: how much texts differ is not known")
    return sentences


def _cells(cells: np.ndarray, by: str, numbers: np.ndarray | None = None) -> str:
    """Cells in words, with their trials; depths and children are counted from 1, as in figures."""
    places = [tuple(map(int, place)) for place in np.argwhere(cells)]
    words = []
    for depth, rank in places[:PLACES_SHOWN]:
        cell = f"child {rank + 1}" + (f" at depth {depth + 1}" if by == "depth" else "")
        words.append(cell if numbers is None else f"{cell} ({int(numbers[depth, rank])})")
    more = f" and {len(places) - PLACES_SHOWN} more" if len(places) > PLACES_SHOWN else ""
    return ", ".join(words) + more
