"""The share of accepted nodes after which a drafter's next token is right, by place in the tree and depth.

How tables show it, and what it says, stands in `next_right`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treespec.experiments.report.statistics import Totals
from treespec.experiments.report.table import interval_columns
from treespec.search.intervals import Interval, wilson
from treespec.search.traces.next_right import NO_ROW, AcceptedNodes

SPINE, SIBLING = "on the spine", "after a sibling"

BELOW = "below the root"

BANDS: Mapping[str, tuple[int, float]] = {
    BELOW: (1, np.inf),
    "root": (0, 0),
    "depth 1": (1, 1),
    "depth 2": (2, 2),
    "depth 3": (3, 3),
    "depth 4–7": (4, 7),
    "depth 8+": (8, np.inf),
}
"""Depths of nodes that a column of the table joins."""


@dataclass(frozen=True)
class Share:
    """The share of accepted nodes of one kind after which the next token is right.

    Args:
        nodes: accepted nodes.
        rows: those of them at which the drafter has a row.
        right: share of the nodes with a row.
        compared: those of them at which a fresh draft has a row too.
        fresh: share of the compared nodes after which a fresh draft is right.
        less_fresh: share of the compared nodes after which the tree's row is right, minus `fresh`.
    """

    nodes: int
    rows: int
    right: Interval
    compared: int
    fresh: Interval
    less_fresh: Interval


@dataclass(frozen=True, eq=False)
class NextRight:
    """How often the next token is right for one method, from its accepted nodes.

    Args:
        nodes: the accepted nodes.
        texts: number of texts.
        files: `[texts]`, see `Totals.of`.
    """

    nodes: AcceptedNodes
    texts: int
    files: ArrayLike | None = None

    @cached_property
    def totals(self) -> Totals:
        """Numbers of accepted nodes of each text by place, band and kind."""
        nodes = self.nodes
        has_row = nodes.right != NO_ROW
        both = has_row & (nodes.fresh != NO_ROW)
        kinds = {
            "nodes": np.ones_like(has_row),
            "rows": has_row,
            "right": nodes.right == 1,
            "compared": both,
            "right compared": both & (nodes.right == 1),
            "fresh": both & (nodes.fresh == 1),
        }
        columns: dict[Any, NDArray[np.int64]] = {}
        for place, there in ((SPINE, nodes.spine), (SIBLING, ~nodes.spine)):
            for band, (least, most) in BANDS.items():
                inside = there & (nodes.depth >= least) & (nodes.depth <= most)
                for kind, counts in kinds.items():
                    columns[place, band, kind] = self._by_text(inside & counts)
        everywhere = np.ones_like(has_row)
        for at, there in ((None, everywhere), (SPINE, nodes.spine), (SIBLING, ~nodes.spine)):
            columns[at, "nodes"] = self._by_text(there)
            columns[at, "no row"] = self._by_text(there & ~has_row)
        return Totals.of(columns, self.files)

    def _by_text(self, counts: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.bincount(self.nodes.text[counts], minlength=self.texts)

    def share(self, place: str, band: str) -> Share:
        """The share at the nodes of a place (`SPINE` or `SIBLING`) and a band of depths."""

        def key(kind: str) -> tuple[str, str, str]:
            return place, band, kind

        observed = self.totals.observed
        return Share(
            nodes=int(observed[key("nodes")]),
            rows=int(observed[key("rows")]),
            right=self._share(key("right"), key("rows")),
            compared=int(observed[key("compared")]),
            fresh=self._share(key("fresh"), key("compared")),
            less_fresh=self.totals.difference(
                (key("right compared"), key("compared")), (key("fresh"), key("compared"))
            ),
        )

    @property
    def fresh_differs(self) -> bool:
        """Whether a fresh draft says something else than the tree at some node where both have a row."""
        nodes = self.nodes
        both = (nodes.right != NO_ROW) & (nodes.fresh != NO_ROW)
        return bool((nodes.right != nodes.fresh)[both].any())

    def less_spine(self, band: str) -> Interval:
        """The share after a sibling minus that on the spine."""
        first, second = (
            ((place, band, "right"), (place, band, "rows")) for place in (SIBLING, SPINE)
        )
        return self.totals.difference(first, second)

    def no_row(self, place: str | None = None) -> Interval:
        """The share of accepted nodes without a row, at one place or at all."""
        return self._share((place, "no row"), (place, "nodes"))

    def _share(self, part: Any, whole: Any) -> Interval:
        found = self.totals.share(part, whole)
        if not found.bounded or found.has_width:
            return found
        # All nodes agree, so that texts do not differ: what so many nodes say about the rate.
        observed = self.totals.observed
        low, high = wilson(np.array(observed[part]), np.array(observed[whole]))
        return Interval(found.estimate, float(low), float(high))

    @cached_property
    def shares(self) -> dict[tuple[str, str], Share]:
        """The shares by place and band, without those that have no node."""
        found = {
            (place, band): self.share(place, band) for place in (SPINE, SIBLING) for band in BANDS
        }
        return {key: share for key, share in found.items() if share.nodes}

    def to_data(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **interval_columns("no_row", self.no_row()),
            "shares": [
                {
                    "after": place,
                    "depth": band,
                    "nodes": share.nodes,
                    "rows": share.rows,
                    "compared": share.compared,
                    **interval_columns("right", share.right),
                    **interval_columns("fresh", share.fresh),
                    **interval_columns("less_fresh", share.less_fresh),
                }
                for (place, band), share in self.shares.items()
            ],
        }
