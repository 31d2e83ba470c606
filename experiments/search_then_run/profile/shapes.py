"""Which trees are measured: one family, from which all tables of a latency model follow."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from treespec.experiments.config.build import Choice
from treespec.tree import TreeShape

__all__ = ["Setting", "bundle", "completed", "drift_of", "shapes_for"]

ALWAYS_TIMED = (2, 3, 5)
"""Sizes that are always measured: chains, and the smallest tree with further children of one node."""

LONGEST_CHAIN = 32
"""Edges of the longest chain that is measured."""

DRIFT = 32
"""Tokens by which a text may be shorter or longer than the prefix length that it counts for."""


@dataclass(frozen=True)
class Setting(Choice):
    """How children are chosen and accepted, and in which trees.

    Args:
        name: of the sampling, as in configs.
        shapes: the trees that are measured.
    """

    name: str
    shapes: tuple[TreeShape, ...]


def bundle(size: int) -> TreeShape:
    """The tree of `size` nodes that is measured: W nodes on each of two levels, 2 W on the third.

    What is left over are leaves below the root; fewer than five nodes are a chain.

    Example:
        >>> bundle(10).level_sizes, bundle(10).parents
        ((1, 3, 2, 4), (-1, 0, 0, 0, 1, 2, 4, 4, 5, 5))
    """
    width, over = divmod(size - 1, 4)
    if not width:
        return TreeShape.chain(over)
    first, second = 1, 1 + width + over
    parents = [-1, *[0] * (width + over), *range(first, first + width)]
    parents += [node for node in range(second, second + width) for _ in range(2)]
    return TreeShape(tuple(parents))


def completed(sizes: Iterable[int]) -> list[int]:
    """The sizes that are measured if these are asked for, ascending.

    Without a tree of five to eight nodes nothing would say what a root's further children cost, and no tree
    that branches there could be timed.

    Example:
        >>> completed([1, 4, 16])
        [1, 2, 3, 4, 5, 16]
    """
    return sorted({*ALWAYS_TIMED, *sizes})


def shapes_for(
    sizes: Sequence[int], takes: Callable[[TreeShape], bool]
) -> tuple[tuple[TreeShape, ...], tuple[int, ...]]:
    """The trees of these sizes that are measured, and the sizes for which there is none.

    Besides the bundles, of the largest size: the widest level there is, a long chain, and two trees that
    differ in the children of their second level, for what children of as many nodes cost as may have two.
    With `completed` sizes every tree up to the largest is timed.

    Args:
        sizes: nodes, the root included.
        takes: whether law, rule, vocabulary and context take a tree. Where they take no bundle, chains
            are measured.
    """
    by_size: dict[int, TreeShape] = {}
    for size in sizes:
        made = [bundle(size)] if size > 1 else []
        made += [TreeShape.chain(size - 1)] if 1 < size <= LONGEST_CHAIN + 1 else []
        shape = next(filter(takes, made), None)
        if shape is not None:
            by_size[size] = shape
    shapes, largest = list(by_size.values()), max(by_size, default=0)
    if largest > 4 and not by_size[largest].is_chain:
        made = [
            TreeShape.independent_chains((largest - 1) // 2, 2),
            TreeShape.chain(min(largest - 1, LONGEST_CHAIN)),
        ]
        most = (largest - 1) // 3  # nodes of one level that may have two children
        if most > (largest - 1) // 4:
            made += [TreeShape.independent_chains(most, 2), TreeShape.expansion([most, 2])]
        shapes += filter(takes, made)
    return tuple(shapes), tuple(size for size in sizes if size > 1 and size not in by_size)


def drift_of(prefix: int, steps: int) -> int:
    """How far on either side of a prefix length texts may be that count as of this length.

    Args:
        prefix: committed tokens before the root.
        steps: that are measured on one text, of about two tokens each.
    """
    return min(DRIFT, prefix // 2, steps)
