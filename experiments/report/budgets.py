"""Trees against chains at equal budgets: the same verified nodes, the same draft passes, the same time.

What a fair comparison holds equal depends on what is scarce. Where the target's pass is the bottleneck it
is the nodes verified in it; where drafting is, the passes of the draft, which a tree needs as many of as it
is deep; on a given machine it is time, and only that decides which is faster. Sides are chosen and measured
on different halves of the prompts, as in `treespec.experiments.report.verdict`.
"""

from dataclasses import dataclass

from treespec.experiments.report.measurements import measure, samplings_of
from treespec.experiments.report.run import Method, Run
from treespec.experiments.report.verdict import Comparison, compare

__all__ = ["Budget", "budgets"]


@dataclass(frozen=True)
class Budget:
    """The best tree against the best chain within a budget.

    Args:
        sampling: name of the setting.
        name: such as `16 nodes`, `4 draft passes`, `time`.
        measure: what is compared: `tokens per step` or `tokens per second`.
        duel: tree over chain.
    """

    sampling: str
    name: str
    measure: str
    duel: Comparison


def budgets(run: Run) -> list[Budget]:
    """Every budget that the run holds a tree and a chain for.

    *N nodes*: trees of N nodes (at most N, if they grow) against chains of at most N, the root counted, by
    tokens per step. *d draft passes*: static trees and chains of depth d, by tokens per step; how often a
    tree that grows runs the draft is not fixed by its depth. *time*: all, by tokens per second. Assisted
    generation, whose chains are not recorded, takes part in *time* only.
    """
    return [row for sampling in samplings_of(run) for row in _of_setting(run, sampling)]


def _of_setting(run: Run, sampling: str) -> list[Budget]:
    data = measure(run, sampling)
    sizes = {m["name"]: m["size"] for m in run.manifest["methods"]}
    depths = {m["name"]: m["depth"] for m in run.manifest["methods"]}
    usable = [m for m in data.methods if m.lossless and (m.name, "decode_s") in data.values]
    trees, chains = _named(usable, "tree"), _named(usable, "chain")
    wanted: list[tuple[str, list[str], list[str], str]] = []
    for size in sorted({sizes[n] for n in trees} & {sizes[n] for n in chains}):
        within = [n for n in chains if sizes[n] <= size]
        wanted.append((f"{size} nodes", [n for n in trees if sizes[n] == size], within, "steps"))
    static = [m.name for m in usable if m.group == "tree" and m.parents is not None]
    for depth in sorted({depths[n] for n in static} & {depths[n] for n in chains}):
        passes = f"{depth} draft pass{'es' * (depth > 1)}"
        level = [[n for n in names if depths[n] == depth] for names in (static, chains)]
        wanted.append((passes, level[0], level[1], "steps"))
    wanted.append(("time", trees, [*chains, *_named(usable, "assisted")], "decode_s"))
    found = []
    for name, left, right, cost in wanted:
        duel = compare(data, ("tree", left), ("chain", right), cost)
        if duel is not None:
            unit = "tokens per step" if cost == "steps" else "tokens per second"
            found.append(Budget(sampling, name, unit, duel))
    return found


def _named(methods: list[Method], group: str) -> list[str]:
    return [m.name for m in methods if m.group == group]
