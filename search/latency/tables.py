"""The tables that a latency model is made of, and what a step of a shape takes from them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from treespec.search.latency.interpolation import Table
from treespec.shape import TreeShape

__all__ = ["ANY_LAW", "BatchTimes", "LawTimes", "further_draws", "levels_of", "middle_prefix"]

ANY_LAW = "any"
"""Name of the times that hold for every law."""


@dataclass(frozen=True, eq=False)
class LawTimes:
    """What depends on how children are chosen, that is on law, rule and sampling settings.

    Args:
        level: a draft pass below the first, by the number of nodes that it gives one child each.
        first: the first draft pass, which gives the root one child; None: as `level` of one node. It finds
            the caches of the processor full of the target, and now and then runs a pending token too.
        draw: drawing one more child for each of so many nodes.
        assemble: the rest of drafting, by nodes.
        accept: the acceptance rule, by nodes.
        plain: a step of plain decoding under the same settings; None: the sum of its parts.
        sampling: the settings under which this was measured.
        rule: the acceptance rule.
        decide: what a tree that grows takes to decide once, where it goes on or what is kept, by the nodes
            drafted so far; None if it is not known.
    """

    level: Table
    first: Table | None
    draw: Table
    assemble: Table
    accept: Table
    plain: Table | None
    sampling: str | None = None
    rule: str | None = None
    decide: Table | None = None

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables that there are, by name."""
        return _tables_of(self)


@dataclass(frozen=True, eq=False)
class BatchTimes:
    """Times of a step over so many texts at once, all with a tree of the same shape.

    Args:
        verify: the target's pass, by nodes (of each text).
        commit: keeping the accepted rows, by nodes.
        rest: what a step takes outside of its stages.
        laws: by name of the law; `"any"` for times that hold for all.
    """

    verify: Table
    commit: Table
    rest: Table
    laws: Mapping[str, LawTimes]

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables that all laws share, by name."""
        return _tables_of(self)

    @property
    def round_count(self) -> int:
        """Rounds in which everything was measured once; 0 if they are not known."""
        owners = [self.tables, *(law.tables for law in self.laws.values())]
        return max(table.round_count for tables in owners for table in tables.values())


def _tables_of(owner: LawTimes | BatchTimes) -> dict[str, Table]:
    named = {each.name: getattr(owner, each.name) for each in fields(owner)}
    return {name: table for name, table in named.items() if isinstance(table, Table)}


def levels_of(shape: TreeShape) -> list[Counter[int]]:
    """For each level that gets children, how many of its nodes have k of them, by k."""
    levels: list[Counter[int]] = [Counter() for _ in range(shape.depth)]
    for node in shape.internal:
        levels[shape.depths[node]][len(shape.children[node])] += 1
    return levels


def further_draws(levels: Sequence[Counter[int]], together: bool = False) -> dict[int, float]:
    """Draws beyond one for every expanded node, by the number of nodes that a draw is for.

    A level's pass is known for one draw over all of its nodes. All numbers are positive, so that no step
    takes less than if every node had one child.

    Args:
        levels: see `levels_of`.
        together: whether one choice gives all nodes of a level their children, as it does where these are
            deterministic: then draw j is for the nodes that get more than j. Otherwise nodes with k
            children each draw together, k times in a row; a group after the first also draws once more,
            which is counted as for one node, because the pass over the level has drawn for all nodes.
    """
    draws: Counter[int] = Counter()
    for level in levels:
        if together:
            for elder in range(1, max(level)):
                draws[sum(nodes for k, nodes in level.items() if k > elder)] += 1
            continue
        for k, nodes in level.items():
            draws[nodes] += k - 1
        draws[1] += len(level) - 1
    return {nodes: float(number) for nodes, number in draws.items() if number}


def middle_prefix(times: BatchTimes) -> int | None:
    """The middle one of the prefixes that all tables cover, the shorter of two; None if times hold for all.

    Where there is none that all cover, the middle one of the first table that has prefixes: asking for it
    says which table does not.
    """
    owners = [times.tables, *(law.tables for law in times.laws.values())]
    tables = [table for owner in owners for table in owner.values()]
    known = [table.prefixes for table in tables if table.prefixes]
    if not known:
        return None
    low, high = max(prefixes[0] for prefixes in known), min(prefixes[-1] for prefixes in known)
    between = {prefix for prefixes in known for prefix in prefixes if low <= prefix <= high}
    fine = sorted(between) or known[0]
    return fine[(len(fine) - 1) // 2]
