"""The tree of a given size that yields the most tokens per step."""

from typing import Literal, get_args

import numpy as np

from treespec import TreeShape
from treespec.search.errors import InvalidAcceptance, InvalidLimit
from treespec.search.optimum.best_first import BestFirst
from treespec.search.optimum.dynamic_programme import DynamicProgramme
from treespec.search.optimum.problem import Problem, read_problem, require_feasible
from treespec.search.rates.acceptance import Acceptance

__all__ = ["Method", "optimal_tree"]

MANY_SUMS = 1 << 16
"""Sums at one size from which on the time goes with their number, not with the number of sizes."""

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

    Where no rate is larger than that of an elder sibling, the tree consists of the nodes with the largest
    path products (best first); otherwise it is found by the dynamic programme of Sequoia (arXiv:2402.12374,
    section 3.2). Ours also takes rates that depend on the depth, and limits depth and branching or neither.

    Several trees may be best (with rates by rank, ranks 0, 1 and 1, 0 in a row are worth the same). The one
    that is returned has, at its root and then at every node below: the fewest children, that is the first
    maximising branch count; then the smallest first part, that is the last child has the largest subtree,
    then the last but one, and so on. Nodes are numbered breadth first. Best first applies this rule up to
    rounding (relative 1e-12). The dynamic programme compares its sums T[y, b-1] + P[b] * best as they come,
    so that a plain loop over the recursion in the same `dtype` gives the same tree; Sequoia's own search is
    such a loop in float32.

    Args:
        acceptance: rates by rank (`acceptance[0]` is the first child's) or by depth and rank.
        size: nodes, the root included.
        depth: the most edges between the root and any node; None for no limit but the rows of `acceptance`.
        branching: the most children of a node; None for as many as `acceptance` has rates for.
        method: "best_first" or "dynamic_programme" to insist on one.
        dtype: arithmetic of the dynamic programme; float32 repeats a search that was made in it.

    Raises:
        InvalidAcceptance: if rates are invalid, or not monotone though `method` is "best_first".
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
            'leave method = "auto", or make them monotone first'
        )
    if method == "best_first" or (method == "auto" and problem.monotone):
        return TreeShape(tuple(BestFirst(problem).parents(problem.size)))
    return _by_programme(problem, dtype)


def _by_programme(problem: Problem, dtype: type[np.floating]) -> TreeShape:
    """The tree of the dynamic programme; by one table if the limit of the depth turns out not to bind.

    The best tree of any depth is the best within a limit that it meets, and the one that the programme with
    this limit finds: there, no sum is larger, and none on the way to this tree is smaller.
    """
    step = problem.size * problem.branching * problem.depth  # sums at the largest size
    if step > MANY_SUMS and not problem.rates.by_depth and not problem.any_depth:
        free = problem.within(problem.size - 1)
        shape = TreeShape(tuple(DynamicProgramme(free, dtype).parents(problem.size)))
        if shape.depth <= problem.depth:
            return shape
    return TreeShape(tuple(DynamicProgramme(problem, dtype).parents(problem.size)))
