"""Measure the cost of a verdict: every rule on one 64-node tree with a vocabulary of 128,256.

    python -m treespec.experiments.research.benchmarks.verify_cost [--vocab 128256] [--repeats 40]

The input is logits, the output a verdict. The same loop also times one softmax over all 64 rows, the cost
of a verifier that computes the probabilities of the whole tree first. Rules that go top-down read only the
rows of the nodes that they visit, so their floor is visited / 64 of that softmax. Goal: greedy, naive,
onehot, rrs and rrsw take at most 0.35 of the softmax without top-p. With top-p, the best thousand tokens of
every visited row are sorted, or more if these do not hold the mass. Not included: `optimal_transport`, a
programme for small vocabularies. Also timed: `optimal_acceptance` of 16 i.i.d. drafts (goal: 0.2 s).
"""

import statistics
from functools import partial
from itertools import chain
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, verify
from treespec.experiments.measure.timing import in_turns, median_ratio, seconds_of
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.sampling.distributions import SampledRows
from treespec.verify import Rule

SHAPES = {
    "tree": TreeShape.expansion([3, 2, 3, 2]),
    "paths": TreeShape.independent_chains(7, 9),
    "binary": TreeShape.kary(2, 5),
    "chain": TreeShape.chain(63),
}
"""Shapes of 64 nodes each (63 for the binary tree). A rule runs on the first shape that it covers."""

PREFERRED = (Law.WITHOUT_REPLACEMENT, Law.IID, *Law)
"""Laws in order of preference: children are drawn by the first law that the rule covers."""

VOCAB, REPEATS = 128_256, 40
GOAL = 0.35
GOAL_RULES = ("greedy", "naive", "onehot", "rrs", "rrsw")
SETTINGS = {"T=1": Sampling(), "T=1, top_p=0.9": Sampling(top_p=0.9)}
SPREAD, NOISE = 2.5, 1.2
"""Standard deviations of the target's logits and of the draft's noise; acceptance is about 0.6."""


class CountedRows(SampledRows):
    """Rows that count how many of them were computed."""

    @property
    def computed(self) -> int:
        """Number of rows that were read so far."""
        return len(self._rows)


def drafted(shape: TreeShape, law: Law, target: Tensor, sampling: Sampling, seed: int) -> TokenTree:
    """A drafted tree over random logits; the draft's logits are the target's plus noise."""
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


def way(rule: Rule) -> tuple[str, Law]:
    """The name of the shape that a rule runs on, and the law of its children."""
    law = next(law for law in PREFERRED if law in rule.laws)
    return next(name for name, s in SHAPES.items() if rule.covers(s, law) is None), law


def measure(vocab: int, repeats: int, setting: str) -> dict[str, Any]:
    """Median milliseconds of each rule and of the softmax, all measured in one loop."""
    sampling = SETTINGS[setting]
    logits = {
        name: SPREAD * torch.randn(s.size, vocab, generator=torch.Generator().manual_seed(i))
        for i, (name, s) in enumerate(SHAPES.items())
    }
    rules = {
        str(rule): rule for rule in verify.RULES.values() if rule is not verify.optimal_transport
    }
    settings = {name: way(rule) for name, rule in rules.items()}
    trees = {
        (shape, law): drafted(SHAPES[shape], law, logits[shape], sampling, seed=7)
        for shape, law in settings.values()
    }
    visited: dict[str, list[int]] = {name: [] for name in rules}

    def decide(name: str) -> float:
        rule, (shape, law) = rules[name], settings[name]
        settled = Sampling(temperature=0.0) if rule.one_hot else sampling
        rows, coins = CountedRows(logits[shape], settled), TorchCoins(len(visited[name]))
        spent = seconds_of(lambda: rule(trees[shape, law], rows, coins))
        visited[name].append(rows.computed)
        return spent

    softmax = partial(seconds_of, lambda: logits["tree"].softmax(-1))
    ways = {
        "softmax": softmax,
        "softmax again": softmax,
        **{name: partial(decide, name) for name in rules},
    }
    ms = {
        name: [1e3 * spent for spent in seconds]
        for name, seconds in in_turns(ways, repeats, title=setting).items()
    }
    medians = {name: statistics.median(values) for name, values in ms.items()}
    target, draft = sampling(logits["tree"][:2])
    ceiling = [
        1e3 * seconds_of(lambda: verify.optimal_acceptance(target, draft, 16, Law.IID))
        for _ in range(7)
    ]

    def row(name: str) -> dict[str, Any]:
        rows = statistics.mean(visited[name][1:])  # without the warm-up
        return {
            "ms": round(medians[name], 3),
            "of_softmax": round(median_ratio(ms[name], ms["softmax"]), 3),
            "rows_visited": rows,
            "floor": round(rows / 64, 3),
            "tree": settings[name][0],
        }

    return {
        "softmax_ms": round(medians["softmax"], 3),
        "optimal_acceptance_iid_16_ms": round(statistics.median(ceiling), 3),
        "noise": round(medians["softmax again"] / medians["softmax"], 3),
        "rules": {name: row(name) for name in rules},
    }


def table_of(setting: str, figures: dict[str, Any]) -> Table:
    """A table of the rules under one setting, and whether rules with a goal meet it."""

    def goal(name: str, share: float) -> str:
        if name not in GOAL_RULES or setting != "T=1":
            return ""
        return "met" if share <= GOAL else "MISSED"

    columns = (
        keyed("rule", "rule", left=True),
        keyed("tree", "tree", left=True),
        keyed("ms", "ms", ".2f"),
        keyed("of softmax", "of_softmax", ".2f"),
        keyed("rows visited", "rows_visited", ".1f"),
        keyed("floor", "floor", ".2f"),
        keyed("goal", "goal", left=True),
    )
    rows = [
        {"rule": name, "goal": goal(name, row["of_softmax"]), **row}
        for name, row in figures["rules"].items()
    ]
    return Table(f"{setting}: softmax over 64 rows {figures['softmax_ms']} ms", columns, rows)


def main(
    vocab: Annotated[int, typer.Option(help="Tokens of the vocabulary.")] = VOCAB,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds that count.")] = REPEATS,
) -> None:
    """Measure the cost of a verdict by every rule; print it, and save it for the default vocabulary."""
    figures = {setting: measure(vocab, repeats, setting) for setting in SETTINGS}
    shown = [
        (
            table_of(setting, row),
            f"optimal_acceptance, 16 i.i.d. drafts: {row['optimal_acceptance_iid_16_ms']} ms",
        )
        for setting, row in figures.items()
    ]
    print_and_save(
        "verify_cost",
        {"vocab": vocab, "repeats": repeats, **figures},
        *chain.from_iterable(shown),
        saved=vocab == VOCAB,
    )


if __name__ == "__main__":
    typer.run(main)
