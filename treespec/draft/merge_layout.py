"""How a tree is laid out to several sources: shared by rates, or nodes of each one's own.

Both know the sources, and of the trees that these proposed make the nodes of the whole (`planned`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from treespec.door import instance, integer
from treespec.draft.merge_plan import DrawingSource, Node, Room, Trie, planned, side_by_side
from treespec.draft.model import ModelDrafter
from treespec.draft.rates import checked_rates, require_names
from treespec.errors import InvalidArgument
from treespec.protocols import Drafter
from treespec.tree import Law, TokenTree

__all__ = ["Apart", "Plan", "Shared", "law_of"]

Plan = tuple[Trie, dict[str, Sequence[int]], list[Node]]
"""The deterministic nodes united, of each deterministic source the entries of its nodes, and the nodes."""


def law_of(source: Drafter) -> Law:
    """The law of a source's children; those of sources that have none are deterministic."""
    return getattr(source, "law", Law.DETERMINISTIC)


class Shared:
    """One tree that the sources share, filled best first by rates.

    Args:
        sources: by name.
        rates: of each source, as `Merge` has them.
        size: most nodes, the root included.
        depth: most edges; None for as many as the sources have.
        branching: most children of a node; None for no limit.

    Raises:
        InvalidArgument: if there is no size, trees that are kept whole do not fit in the limits, or the
            rates are not those of the sources.
    """

    def __init__(
        self,
        sources: Mapping[str, Drafter],
        rates: Mapping[str, Sequence[Sequence[float]]],
        size: int | None,
        depth: int | None,
        branching: int | None,
    ) -> None:
        self.rates = checked_rates(rates, sources)
        if size is None:
            raise InvalidArgument(
                "a merge needs a size: the nodes of the tree, root included, that its sources share"
            )
        size = integer("size", size, least=2)
        self.max_depth = max(source.max_depth for source in sources.values())
        if depth is not None:
            self.max_depth = min(self.max_depth, integer("depth", depth, least=1))
        widest = size if branching is None else integer("branching", branching, least=1)
        # Those that are sure first: the others draw beside what these take.
        drawing = sorted(
            (name for name, source in sources.items() if _draws_where_told(source)),
            key=lambda name: law_of(sources[name]) is not Law.DETERMINISTIC,
        )
        self.drawing = {n: s for n in drawing if isinstance(s := sources[n], ModelDrafter)}
        self._whole = {name: source for name, source in sources.items() if _is_kept_whole(source)}
        self._require_room_for_whole_trees(size, depth, branching)
        # Distinct children of a node, drawn beside each other, are no more than there are tokens.
        fewest = min((s.model.vocab_size for s in self.drawing.values()), default=widest)
        self.room = Room(size, self.max_depth, min(widest, fewest))

    def _require_room_for_whole_trees(
        self, size: int, depth: int | None, branching: int | None
    ) -> None:
        names = " and ".join(sorted(self._whole))
        for name, source in self._whole.items():
            if source.max_depth > self.max_depth:
                raise InvalidArgument(
                    f"depth = {depth}, but {name!r} reads the rows of all its nodes, which have depth "
                    f"{source.max_depth}"
                )
        needed = sum(getattr(source, "size", 1) - 1 for source in self._whole.values()) + 1
        if needed > size:
            raise InvalidArgument(
                f"size = {size}, but {names} read the rows of all their nodes: they need {needed}, root "
                "included"
            )
        children = sum(getattr(source, "branching", 1) for source in self._whole.values())
        if branching is not None and children > branching:
            raise InvalidArgument(
                f"branching = {branching}, but {names} read the rows of all their nodes, of which one can "
                f"have {children} children"
            )

    def plan(self, trees: Mapping[str, TokenTree]) -> Plan:
        """The nodes of largest value, of the trees and of what is drawn where the plan wants it.

        Args:
            trees: by source, those of `drawing` left out.
        """
        trie, entries, drawn = Trie(), dict[str, Sequence[int]](), {}
        for name, tree in trees.items():
            if tree.laws <= {Law.DETERMINISTIC}:
                entries[name] = trie.add(name, tree, self.rates[name], name in self._whole)
            else:
                drawn[name] = tree, self.rates[name]
        drawing = [
            DrawingSource(name, self.rates[name], source.max_depth)
            for name, source in self.drawing.items()
        ]
        return trie, entries, planned(trie, drawn, drawing, self.room)


class Apart:
    """The trees of all sources below one root, each with nodes of its own.

    Args:
        sources: by name.
        budgets: of each source, nodes of its own, the root left out.
        size: the most that these and the root may be together; None for no limit.

    Raises:
        InvalidArgument: if budgets are not those of the sources, below 1, less than a tree needs that is
            kept whole, or with the root more than `size`.
    """

    def __init__(self, sources: Mapping[str, Drafter], budgets: Any, size: int | None) -> None:
        instance("budgets", budgets, Mapping, "a mapping of the sources' names to numbers of nodes")
        require_names("budgets", budgets, sources)
        self.budgets = {
            name: integer(f"budgets[{name!r}]", budgets[name], least=1) for name in sources
        }
        self.drawing: dict[str, ModelDrafter] = {}
        self.max_depth = max(source.max_depth for source in sources.values())
        for name, source in sources.items():
            needed = getattr(source, "size", 1) - 1
            if _is_kept_whole(source) and self.budgets[name] < needed:
                raise InvalidArgument(
                    f"budgets[{name!r}] = {self.budgets[name]}, but this source reads the rows of all its "
                    f"nodes: give it {needed}"
                )
        total = sum(self.budgets.values()) + 1
        if size is not None and total > integer("size", size, least=2):
            raise InvalidArgument(
                f"size = {size}, but the budgets ({' + '.join(map(str, self.budgets.values()))}) and the "
                f"root are {total} nodes: lower a budget, or raise size to {total}"
            )

    def plan(self, trees: Mapping[str, TokenTree]) -> Plan:
        """The first nodes of each tree, as many as its source has.

        Args:
            trees: by source.
        """
        trie, entries, drawn = Trie(), dict[str, Sequence[int]](), {}
        for name, tree in trees.items():
            if tree.laws <= {Law.DETERMINISTIC}:
                entries[name] = trie.unite(name, tree, self.budgets[name])
            else:
                drawn[name] = tree, self.budgets[name]
        return trie, entries, side_by_side(trie, drawn)


def _draws_where_told(source: Drafter) -> bool:
    return isinstance(source, ModelDrafter) and source.draws_where_told


def _is_kept_whole(source: Drafter) -> bool:
    """Whether it reads the rows of all the nodes that it drafts."""
    return not getattr(source, "reads_any_tree", True)
