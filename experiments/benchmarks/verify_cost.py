"""What a verdict costs: every rule on one 64-node tree at a vocabulary of 128,256.

    python -m treespec.experiments.benchmarks.verify_cost [--vocab 128256] [--repeats 40]

Logits in, verdict out; beside it, in the same loop, one softmax over all 64 rows, which is what a verifier
pays that computes the probabilities of the whole tree first. Rules that go top-down read the rows of the
nodes that they visit, so their floor is visited / 64 of that softmax. Goal: greedy, naive, onehot, rrs and
rrsw at most 0.35 of the softmax without top-p. With top-p the best thousand tokens of every visited row are
sorted, or more if these do not hold the mass. Not here: `optimal_transport`, a programme for small
vocabularies. Also timed: `optimal_acceptance` of 16 i.i.d. drafts (goal: 0.2 s).
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, verify
from treespec.distributions import SampledRows
from treespec.experiments.benchmarks.results_file import save
from treespec.verify import Rule

SHAPES = {
    "tree": TreeShape.expansion([3, 2, 3, 2]),
    "paths": TreeShape.independent_chains(7, 9),
    "binary": TreeShape.kary(2, 5),
    "chain": TreeShape.chain(63),
}
"""64 nodes each; 63 where every node has two children. A rule gets the first that it covers."""

PREFERRED = (Law.WITHOUT_REPLACEMENT, Law.IID, *Law)
"""How the children are drawn: the first law that a rule takes."""

GOAL = 0.35
GOAL_RULES = ("greedy", "naive", "onehot", "rrs", "rrsw")
SETTINGS = {"T=1": Sampling(), "T=1, top_p=0.9": Sampling(top_p=0.9)}
SPREAD, NOISE = 2.5, 1.2
"""Standard deviations of the target's logits and of what the draft's differ by: acceptance is about 0.6."""


class CountedRows(SampledRows):
    """Counts the rows that were computed."""

    @property
    def computed(self) -> int:
        """Rows asked for so far."""
        return len(self._rows)


def drafted(shape: TreeShape, law: Law, target: Tensor, sampling: Sampling, seed: int) -> TokenTree:
    """A tree over random logits; the draft's are the target's and noise."""
    noise = torch.randn(
        len(shape.internal), target.shape[1], generator=torch.Generator().manual_seed(seed)
    )
    probs = sampling(target[list(shape.internal)] + NOISE * noise)
    coins, tokens = TorchCoins(seed), [0] * shape.size
    for row, node in zip(probs, shape.internal, strict=True):
        children = shape.children[node]
        for child, token in zip(
            children, coins.draw_many(row[None], len(children), law)[0].tolist(), strict=True
        ):
            tokens[child] = token
    return TokenTree(shape, torch.tensor(tokens), probs, law)


def timed(work: Callable[[], object]) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def way(rule: Rule) -> tuple[str, Law]:
    """The tree that a rule decides on, and how its children are drawn."""
    law = next(law for law in PREFERRED if law in rule.laws)
    return next(name for name, s in SHAPES.items() if rule.covers(s, law) is None), law


def measure(vocab: int, repeats: int, setting: str) -> dict[str, Any]:
    """Median milliseconds of each rule and of the softmax, all in one loop."""
    sampling = SETTINGS[setting]
    logits = {
        name: SPREAD * torch.randn(s.size, vocab, generator=torch.Generator().manual_seed(i))
        for i, (name, s) in enumerate(SHAPES.items())
    }
    trees = {
        (name, law): drafted(shape, law, logits[name], sampling, seed=7)
        for name, shape in SHAPES.items()
        for law in Law
        if law is not Law.HUB or name == "binary"
    }
    ways = {
        rule: way(rule) for rule in verify.RULES.values() if rule is not verify.optimal_transport
    }
    ms: dict[str, list[float]] = {"softmax": [], "softmax again": []}
    visited: dict[str, list[int]] = {}
    for repeat in track(range(repeats + 1), description=setting):
        softmax = timed(lambda: logits["tree"].softmax(-1))
        again = timed(lambda: logits["tree"].softmax(-1))
        for rule, (shape, law) in ways.items():
            settled = Sampling(temperature=0.0) if rule.one_hot else sampling
            rows, coins = CountedRows(logits[shape], settled), TorchCoins(repeat)
            tree = trees[shape, law]
            spent = timed(lambda r=rule, t=tree, p=rows, c=coins: r(t, p, c))
            if repeat:  # the first one warms up
                ms.setdefault(str(rule), []).append(spent)
                visited.setdefault(str(rule), []).append(rows.computed)
        if repeat:
            ms["softmax"].append(softmax)
            ms["softmax again"].append(again)
    whole = statistics.median(ms["softmax"])
    target, draft = sampling(logits["tree"][:2])
    ceiling = [
        timed(lambda: verify.optimal_acceptance(target, draft, 16, Law.IID)) for _ in range(7)
    ]
    return {
        "softmax_ms": round(whole, 3),
        "optimal_acceptance_iid_16_ms": round(statistics.median(ceiling), 3),
        "noise": round(statistics.median(ms["softmax again"]) / whole, 3),
        "rules": {
            name: {
                "ms": round(statistics.median(values), 3),
                "of_softmax": round(
                    statistics.median(
                        v / s for v, s in zip(values, ms["softmax"], strict=True)
                    ), 3
                ),
                "rows_visited": statistics.mean(visited[name]),
                "floor": round(statistics.mean(visited[name]) / 64, 3),
                "tree": ways[verify.RULES[name]][0],
            }
            for name, values in ms.items()
            if name in visited
        },
    }  # fmt: skip


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m treespec.experiments.benchmarks.verify_cost")
    parser.add_argument("--vocab", type=int, default=128_256)
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args()
    console = Console()
    found = {setting: measure(options.vocab, options.repeats, setting) for setting in SETTINGS}
    for setting, figures in found.items():
        table = Table(
            "rule", "tree", "ms", "of softmax", "rows visited", "floor", "goal",
            title=f"{setting}: softmax over 64 rows {figures['softmax_ms']} ms",
        )  # fmt: skip
        for name, row in figures["rules"].items():
            goal = ""
            if name in GOAL_RULES and setting == "T=1":
                goal = "met" if row["of_softmax"] <= GOAL else "MISSED"
            table.add_row(
                name, row["tree"], f"{row['ms']:.2f}", f"{row['of_softmax']:.2f}",
                f"{row['rows_visited']:.1f}", f"{row['floor']:.2f}", goal,
            )  # fmt: skip
        console.print(table)
        console.print(
            f"optimal_acceptance, 16 i.i.d. drafts: {figures['optimal_acceptance_iid_16_ms']} ms"
        )
    if options.vocab == parser.get_default("vocab"):
        print(save("verify_cost", {"vocab": options.vocab, "repeats": options.repeats, **found}))


if __name__ == "__main__":
    main()
