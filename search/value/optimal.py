"""The tree of a given size with the most expected tokens per step."""

from typing import Literal, get_args

import numpy as np

from treespec import TreeShape
from treespec.search.errors import InvalidAcceptance, InvalidLimit
from treespec.search.traces.acceptance import Acceptance
from treespec.search.value.best_first import BestFirst
from treespec.search.value.dynamic_programme import DynamicProgramme
from treespec.search.value.problem import Problem, read_problem, require_feasible

MANY_SUMS = 1 << 16
"""Number of sums at one size above which they, and not the number of sizes, determine the time."""

Method = Literal["auto", "best_first", "dynamic_programme"]


def optimal_tree(
    acceptance: Acceptance,
    size: int,
    *,
    depth: int | None = None,
    branching: int | None = None,
    method: Method = "auto",
    dtype: type[np.floating] = np.float64,
) -> TreeShape:
    """The tree that maximises `expected_tokens` among all trees of this size.

    If no rate is larger than that of an elder sibling, the tree consists of the nodes with the largest path
    products (best first); otherwise it is found by the dynamic programme of Sequoia (arXiv:2402.12374,
    section 3.2). Ours also takes rates that depend on the depth, and optional limits of depth and
    branching.

    Several trees may be best (with rates by rank, the rank paths 0, 1 and 1, 0 have the same value). The
    returned one has, at its root and then at every node below: the fewest children, that is, the first
    maximising number; then the smallest first part, that is, the largest subtree for the last child, then
    for the last but one, and so on. Nodes are numbered breadth first. Best first applies this rule up to
    rounding (relative 1e-12). The dynamic programme compares its sums T[y, b-1] + P[b] * best without a
    tolerance, so a plain loop over the recursion in the same `dtype` gives the same tree; Sequoia's own
    search is such a loop in float32.

    Args:
        acceptance: rates by rank (`acceptance[0]` is the first child's) or by depth and rank.
        size: number of nodes, the root included.
        depth: maximum number of edges between the root and any node; None for no limit except the rows of
            `acceptance`.
        branching: maximum number of children of a node; None for all that `acceptance` has rates for.
        method: "best_first" or "dynamic_programme" to require one of them.
        dtype: precision of the dynamic programme; float32 reproduces a search in that precision.

    Raises:
        InvalidAcceptance: if rates are invalid, or not monotone although `method` is "best_first".
        InvalidLimit: if a limit is invalid or beyond the rates, or `method` or `dtype` is unknown.
        InfeasibleTree: if no tree within the limits is that large.

    Example:
        >>> optimal_tree([0.6, 0.3], 4).parents
        (-1, 0, 0, 1)
        >>> optimal_tree([0.6, 0.3], 4, depth=3, branching=1).parents
        (-1, 0, 1, 2)
    """
    problem = read_problem(acceptance, size, depth, branching)
    require_feasible(problem)
    if method not in get_args(Method):
        raise InvalidLimit(f"method = {method!r}, but must be one of {', '.join(get_args(Method))}")
    if np.dtype(dtype) not in (np.float32, np.float64):
        raise InvalidLimit(f"dtype = {np.dtype(dtype)}, but must be float64 or float32")
    if method == "best_first" and not problem.monotone:
        raise InvalidAcceptance(
            "best first needs rates that do not increase from child to child, but these do: "
            'use method = "auto", or make them monotone first'
        )
    if method == "best_first" or (method == "auto" and problem.monotone):
        return TreeShape(tuple(BestFirst(problem).parents(problem.size)))
    return _by_programme(problem, dtype)


def _by_programme(problem: Problem, dtype: type[np.floating]) -> TreeShape:
    """The tree of the dynamic programme; from a single table if the limit of the depth does not bind.

    The best tree without a limit is also the best within a limit that it satisfies, and the dynamic
    programme with this limit finds it: none of its sums is larger, and none that leads to this tree is
    smaller.
    """
    sums = problem.size * problem.branching * problem.depth  # at the largest size
    if sums > MANY_SUMS and not problem.rates.by_depth and not problem.any_depth:
        without_limit = problem.within(problem.size - 1)
        shape = TreeShape(tuple(DynamicProgramme(without_limit, dtype).parents(problem.size)))
        if shape.depth <= problem.depth:
            return shape
    return TreeShape(tuple(DynamicProgramme(problem, dtype).parents(problem.size)))
