"""The tables of a latency model, and the entries that a step of a shape takes from them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from treespec.search.latency.interpolation import Table
from treespec.shape import TreeShape

ANY_LAW = "any"
"""Name of times that hold for every law."""


@dataclass(frozen=True, eq=False)
class LawTimes:
    """Times that depend on how children are chosen: on law, rule and sampling settings.

    Args:
        level: a draft pass after the first, by the number of nodes that it gives one child each.
        first: the first draft pass, which gives the root one child; None if it equals `level` of one node.
            It finds the processor's caches filled by the target, and sometimes also runs a pending token.
        draw: drawing one more child for each node, by the number of nodes.
        assemble: the rest of drafting, by nodes.
        accept: the acceptance rule, by nodes.
        plain: a step of plain decoding under the same settings; None if it is the sum of its parts.
        sampling: the sampling settings of the measurement.
        rule: the acceptance rule.
        decide: one decision of a tree that grows, on where to expand or what to keep, by the nodes drafted
            so far; None if it is not known.
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
        """The tables of this law, by name."""
        return _tables_of(self)


@dataclass(frozen=True, eq=False)
class BatchTimes:
    """Times of a step for one batch size, if all texts have a tree of the same shape.

    Args:
        verify: the target's pass, by nodes (of each text).
        commit: keeping the accepted rows in the cache, by nodes.
        rest: the time of a step outside of its stages.
        laws: times by name of the law; `"any"` for times that hold for all laws.
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
        """Number of rounds, in each of which everything was measured once; 0 if it is not known."""
        owners = [self.tables, *(law.tables for law in self.laws.values())]
        return max(table.round_count for tables in owners for table in tables.values())


def _tables_of(owner: LawTimes | BatchTimes) -> dict[str, Table]:
    values = {field.name: getattr(owner, field.name) for field in fields(owner)}
    return {name: value for name, value in values.items() if isinstance(value, Table)}


def levels_of(shape: TreeShape) -> list[Counter[int]]:
    """For each level with children, the number of nodes that have k children, by k."""
    levels: list[Counter[int]] = [Counter() for _ in range(shape.depth)]
    for node in shape.internal:
        levels[shape.depths[node]][len(shape.children[node])] += 1
    return levels


def further_draws(levels: Sequence[Counter[int]], together: bool = False) -> dict[int, float]:
    """The draws beyond the first of every expanded node, by the number of nodes that a draw is for.

    The time of a level's pass includes one draw over all of its nodes. All numbers are positive, so that no
    step takes less time than if every node had one child.

    Args:
        levels: see `levels_of`.
        together: whether one choice gives all nodes of a level their children, as for deterministic ones:
            then draw j is for the nodes with more than j children. Otherwise the nodes with k children draw
            as a group, k times in a row; a group after the first also draws once more, which is counted as
            for one node, because the pass over the level has drawn for all nodes.
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
    """The middle one of the prefixes that all tables cover, the shorter of two.

    If no prefix is covered by all, the middle one of the first table with prefixes: requesting it raises an
    error that names a table without it.

    Returns:
        The prefix; None if times hold for every prefix.
    """
    owners = [times.tables, *(law.tables for law in times.laws.values())]
    tables = [table for owner in owners for table in owner.values()]
    known = [table.prefixes for table in tables if table.prefixes]
    if not known:
        return None
    low, high = max(prefixes[0] for prefixes in known), min(prefixes[-1] for prefixes in known)
    covered = {prefix for prefixes in known for prefix in prefixes if low <= prefix <= high}
    candidates = sorted(covered) or known[0]
    return candidates[(len(candidates) - 1) // 2]
