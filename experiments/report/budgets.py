"""Trees against chains at equal budgets: the same verified nodes, the same draft passes, the same time.

What a fair comparison should hold equal depends on what is scarce. If the target's pass is the bottleneck,
it is the number of verified nodes. If drafting is, it is the number of draft passes, which equals the depth
of the tree. On a given machine it is time, and only time decides which side is faster. Each side is chosen
and measured on different halves of the prompts (`treespec.experiments.report.comparisons`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from treespec.experiments.records.loading import Method, RunRecords
from treespec.experiments.report.comparisons import Comparison, compare, trees_and_chains
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.table import Column, Finding, Table, interval
from treespec.search.intervals import Interval
from treespec.tree import TreeShape

NOTE = (
    "time: the ratio of the verdict, among all trees and chains by speed; the other rows hold a cost "
    "equal and compare tokens only, so they may say the opposite. Nodes include the root; for a tree "
    "that grows they are a maximum. A static tree of depth d takes d passes of the draft. Chains may "
    "have fewer than N nodes. Each side is chosen on one half of the prompts and measured on the other "
    "half. Intervals are 95 %, paired over prompts."
)

COSTS = {"tokens per step": "steps", "tokens per second": "decode_s"}


@dataclass(frozen=True)
class Budget:
    sampling: str
    name: str
    measure: str
    duel: Comparison

    @property
    def said(self) -> str:
        winner = self.duel.winner
        if winner is None:
            return self.duel.outcome
        return "tree better" if winner is self.duel.left else "chain better"


COLUMNS = (
    Column[Budget]("equal", lambda row: row.name, left=True),
    Column[Budget]("best tree", lambda row: row.duel.left.label, left=True),
    Column[Budget]("best chain", lambda row: row.duel.right.label, left=True),
    Column[Budget]("compared by", lambda row: row.measure, left=True),
    Column[Budget]("tree over chain", lambda row: interval(row.duel.ratio)),
    Column[Budget]("", lambda row: row.said, left=True),
)


def budget_finding(rows: Sequence[Budget]) -> Finding | None:
    tables = [
        Table(
            sampling,
            COLUMNS,
            [row for row in rows if row.sampling == sampling],
            title=f"tree against chain at equal budgets, {sampling}",
        )
        for sampling in dict.fromkeys(row.sampling for row in rows)
    ]
    return Finding("Trees against chains at equal budgets", tables, (NOTE,)) if tables else None


def budgets(run: RunRecords, data: Measurements) -> list[Budget]:
    """Compare trees with chains at every budget for which the run has both.

    *N nodes*: trees of N nodes (at most N, if they grow) against chains of at most N, counting the root, by
    tokens per step. *d draft passes*: static trees and chains of depth d, by tokens per step; trees that
    grow are excluded, because their depth does not determine the number of draft passes. *time*: all
    methods, by tokens per second. Assisted generation, whose chains are not recorded, takes part in *time*
    only.
    """
    sizes = {m.name: m.size for m in run.methods if m.size is not None}
    depths = {m.name: m.depth for m in run.methods if m.depth is not None}
    trees, chains, assisted = data.named("tree"), data.named("chain"), data.named("assisted")
    static = {m.name for m in data.methods if m.parents is not None}
    sized = [n for n in chains if n in sizes]  # growths of plug-ins may have none
    candidates = [
        (
            f"{size} nodes",
            [n for n in trees if sizes.get(n) == size],
            [n for n in sized if sizes[n] <= size],
            "tokens per step",
        )
        for size in sorted({sizes[n] for n in trees if n in sizes} & {sizes[n] for n in sized})
    ]
    static_trees = [n for n in trees if n in static & depths.keys()]
    static_chains = [n for n in chains if n in static & depths.keys()]
    candidates += [
        (
            f"{depth} draft pass{'es' * (depth > 1)}",
            [n for n in static_trees if depths[n] == depth],
            [n for n in static_chains if depths[n] == depth],
            "tokens per step",
        )
        for depth in sorted({depths[n] for n in static_trees} & {depths[n] for n in static_chains})
    ]
    candidates.append(("time", trees, chains + assisted, "tokens per second"))
    return [
        Budget(data.sampling, name, measure, duel)
        for name, left, right, measure in candidates
        if (duel := compare(data, trees_and_chains(left, right), COSTS[measure]))
    ]


LEAST_SIZES = 4


@dataclass(frozen=True)
class Point:
    nodes: int
    tokens: Interval


def scaling(data: Measurements) -> dict[str, list[Point]]:
    """Tokens per step by number of nodes, for families of static trees with at least `LEAST_SIZES` sizes.

    Sequoia (arXiv:2402.12374, figure 1) claims that the tokens per step of its trees keep growing with the
    budget, roughly as its logarithm, while one chain and k independent chains saturate: a chain because
    each further node is reached less often by a constant factor, k chains because their first tokens soon
    repeat those of other chains.

    Families: `one chain`, `independent chains` (sharing only the root), and `trees` (all others). Among
    trees of a family with the same number of nodes, the one that keeps the most tokens counts. Trees
    searched for another setting are left out.
    """
    if not data.prompts:
        return {}
    families: dict[str, dict[int, Point]] = {}
    for method in data.methods:
        if method.kind != "tree" or method.parents is None or not meant_for(method, data.sampling):
            continue
        point = Point(
            len(method.parents),
            data.totals.ratio([(method.name, "new_tokens")], [(method.name, "steps")]),
        )
        family = families.setdefault(_family(TreeShape(method.parents)), {})
        rivals = (family.get(point.nodes, point), point)
        family[point.nodes] = max(rivals, key=lambda rival: rival.tokens.estimate)
    return {
        name: [points[nodes] for nodes in sorted(points)]
        for name in ("trees", "independent chains", "one chain")
        if len(points := families.get(name, {})) >= LEAST_SIZES
    }


def _family(shape: TreeShape) -> str:
    if shape.is_chain:
        return "one chain"
    branches_at_root_only = all(len(children) <= 1 for children in shape.children[1:])
    equal_paths = len({shape.depths[leaf] for leaf in shape.leaves}) == 1
    return "independent chains" if branches_at_root_only and equal_paths else "trees"


def meant_for(method: Method, sampling: str) -> bool:
    """Whether the method was not searched or calibrated for another setting, by its name."""
    return " for T=" not in method.name or method.name.endswith(f" for {sampling}")
