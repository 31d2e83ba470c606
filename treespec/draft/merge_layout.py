"""How several sources divide a tree: they share it by rates, or each has its own nodes.

Both layouts know the sources, and plan the nodes of the merged tree from the sources' proposed trees.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from treespec.checks import integer
from treespec.draft.merge_plan import DrawingSource, Node, Planner, Room, Trie, side_by_side
from treespec.draft.model import ModelDrafter
from treespec.draft.rates import checked_rates, require_names
from treespec.errors import InvalidArgument
from treespec.protocols import Drafter
from treespec.tree import Law, TokenTree

Plan = tuple[Trie, dict[str, Sequence[int]], list[Node]]
"""The trie of deterministic nodes, the trie entries of each deterministic source's nodes, and the planned
nodes."""


class Shared:
    """One tree that the sources share, filled best first by rates.

    `rates`: rates of each source; see `Merge`. `depth`: maximum depth; None for the largest depth of the
    sources. `branching`: maximum number of children of a node; None for no limit.
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
        self.size = size = integer("size", size, least=2)
        self.max_depth = max(source.max_depth for source in sources.values())
        if depth is not None:
            self.max_depth = min(self.max_depth, integer("depth", depth, least=1))
        widest = size if branching is None else integer("branching", branching, least=1)
        self.drawing = {
            name: source
            for name, source in sources.items()
            if isinstance(source, ModelDrafter)
            and source.draws_where_told
            and source.law is not Law.DETERMINISTIC
        }
        self._whole = {name: source for name, source in sources.items() if _is_kept_whole(source)}
        self._require_room_for_whole_trees(size, depth, branching)
        # A node cannot have more distinct children than there are tokens.
        vocabularies = (source.model.vocab_size for source in self.drawing.values())
        self.room = Room(size, self.max_depth, min(widest, min(vocabularies, default=widest)))

    def _require_room_for_whole_trees(
        self, size: int, depth: int | None, branching: int | None
    ) -> None:
        names = " and ".join(sorted(self._whole))
        for name, source in self._whole.items():
            if source.max_depth > self.max_depth:
                raise InvalidArgument(
                    f"depth = {depth}, but {name!r} reads the rows of all its nodes, which reach depth "
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
                f"branching = {branching}, but {names} read the rows of all their nodes, and a node can "
                f"have {children} children"
            )

    def plan(self, trees: Mapping[str, TokenTree]) -> Plan:
        """Plan the nodes of largest value, from the proposed trees and from the sources that draw later.

        `trees`: the proposed tree of each source that is not in `drawing`.
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
        return trie, entries, Planner(trie, drawn, drawing, self.room).planned()


class Apart:
    """The trees of all sources below one root, each with its own nodes.

    `budgets`: number of nodes of each source, without the root. `size`: maximum of all budgets plus the
    root; None for no limit.
    """

    def __init__(self, sources: Mapping[str, Drafter], budgets: Any, size: int | None) -> None:
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
                    f"nodes: give it at least {needed}"
                )
        self.size = total = sum(self.budgets.values()) + 1
        if size is not None and total > integer("size", size, least=2):
            raise InvalidArgument(
                f"size = {size}, but the budgets ({' + '.join(map(str, self.budgets.values()))}) and the "
                f"root are {total} nodes: lower a budget, or raise size to {total}"
            )

    def plan(self, trees: Mapping[str, TokenTree]) -> Plan:
        """Plan the first nodes of each tree, as many as the source's budget."""
        trie, entries, drawn = Trie(), dict[str, Sequence[int]](), {}
        for name, tree in trees.items():
            if tree.laws <= {Law.DETERMINISTIC}:
                entries[name] = trie.unite(name, tree, self.budgets[name])
            else:
                drawn[name] = tree, self.budgets[name]
        return trie, entries, side_by_side(trie, drawn)


def _is_kept_whole(source: Drafter) -> bool:
    """Whether a source reads the rows of all nodes that it drafts."""
    return not getattr(source, "reads_any_tree", True)
