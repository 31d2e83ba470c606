"""What every rule accepts on the embedded pair at temperature 1, measured and predicted.

    python -m treespec.experiments.studies.rules_on_pair [--prompts 24] [--contexts 12]

Contexts are places in texts that the target itself decoded at temperature 1 from the held-out prompts, the
same for all rules. At each, trees are drafted by every law, with the drafter's own code, and

- *measured* is the number of draft tokens that the rule keeps, with real coins;
- *predicted* is the exact expectation given another drafted tree (`treespec.testing.tree_acceptance`: every
  coin of the rule's own code on every side), so it shares neither drafts nor coins with what is measured.

Both estimate the same number; z is their difference in standard errors. Intervals are 95 %, over prompts.
The rules are compared on one 3 x 3 tree (three children of the root, three of each of those). Rules that
cannot take it run on what they can: chains on `chain 3`, paths on `3 chains x 3`, pairs on `2 x 2`, each
beside rules that take both. `optimal_transport` is a programme for small vocabularies: in its place stands
the ceiling, the largest share of first levels that any rule could accept (`optimal_acceptance`).
"""

import argparse
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from math import sqrt
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, decode, load_pair, verify
from treespec.distributions import SampledRows
from treespec.draft import ModelDrafter, NoDrafter
from treespec.experiments.benchmarks.results_file import save
from treespec.experiments.config.schema import EmbeddedPrompts
from treespec.experiments.run.prompts import encode, read_prompts
from treespec.models.load import Pair
from treespec.target import ModelTarget
from treespec.testing import tree_acceptance
from treespec.verify import Rule, optimal_acceptance

SHAPES = {
    "3 x 3": TreeShape.expansion([3, 3]),
    "chain 3": TreeShape.chain(3),
    "3 chains x 3": TreeShape.independent_chains(3, 3),
    "2 x 2": TreeShape.expansion([2, 2]),
}
RULES_ON = {
    "3 x 3": (
        *("naive", "onehot", "rrs", "rrsw", "kseq", "canonical", "greedy_multidraft", "traversal"),
        *("typical", "lenient"),
    ),
    "chain 3": ("chain", "block", "traversal"),
    "3 chains x 3": ("rrs", "kseq", "traversal", "gbv"),
    "2 x 2": ("spechub", "rrs", "rrsw", "kseq", "canonical"),
}
"""The rules shown on each tree."""

PROMPT_TOKENS, NEW_TOKENS = 48, 32
DOUBT = 3.3
"""Standard errors by which a difference must have the wrong sign to disagree with theory."""

COINS, PREDICTIONS = 4, 2
"""At each context: verdicts measured on one drafted tree, and other trees that the prediction is over."""
SAMPLING = Sampling()


@dataclass
class Samples:
    """One rule on one shape: means by prompt, in the order of the prompts."""

    measured: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    predicted: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    first: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    ceiling: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))


def mean_and_error(by_prompt: dict[int, list[float]]) -> tuple[float, float]:
    """Mean over prompts and its standard error."""
    means = [statistics.mean(values) for values in by_prompt.values()]
    return statistics.mean(means), statistics.stdev(means) / sqrt(len(means))


def difference(one: dict[int, list[float]], two: dict[int, list[float]]) -> tuple[float, float]:
    """Of two that share contexts: mean difference and its standard error."""
    return mean_and_error(
        {p: [statistics.mean(one[p]) - statistics.mean(two[p])] for p in one if p in two}
    )


def contexts(pair: Pair, prompts: int, each: int) -> list[tuple[int, list[int]]]:
    """Prompt index and token ids: prefixes of texts that the target decoded."""
    config = EmbeddedPrompts(kind="embedded", count=prompts, tokens=PROMPT_TOKENS)
    encoded = encode(read_prompts(config)[:prompts], config, pair.tokenizer)
    found = []
    for prompt in track(encoded, description="texts of the target"):
        text = list(prompt.ids)
        for step in decode(
            ModelTarget(pair.target), NoDrafter(), verify.naive, torch.tensor(text),
            sampling=SAMPLING, coins=TorchCoins(prompt.index), max_new_tokens=NEW_TOKENS,
        ):  # fmt: skip
            text += step.tokens
        stride = NEW_TOKENS // each
        found += [(prompt.index, text[: len(prompt.ids) + i * stride]) for i in range(each)]
    return found


def cases() -> dict[tuple[str, Law], list[Rule]]:
    """The rules to run on the trees of each shape and law."""
    found: dict[tuple[str, Law], list[Rule]] = defaultdict(list)
    for name, shape in SHAPES.items():
        for rule in map(verify.RULES.__getitem__, RULES_ON[name]):
            for law in rule.laws:
                if rule.covers(shape, law) is None:
                    found[name, law].append(rule)
    return found


def measure(pair: Pair, places: list[tuple[int, list[int]]]) -> dict[tuple[str, Law, str], Samples]:
    """Run every case at every context."""
    found: dict[tuple[str, Law, str], Samples] = defaultdict(Samples)
    for index, (prompt, ids) in enumerate(track(places, description="rules")):
        target = ModelTarget(pair.target)
        target.prefill(torch.tensor(ids))
        for number, ((shape, law), rules) in enumerate(cases().items()):
            drafter = ModelDrafter(pair.draft, SHAPES[shape], law, SAMPLING)
            drafter.prefill(torch.tensor(ids))
            drafted: list[tuple[TokenTree, SampledRows]] = []
            for repeat in range(1 + PREDICTIONS):
                tree = drafter.propose(TorchCoins(1000 * index + 10 * number + repeat))
                drafted.append((tree, SAMPLING.rows(target.score(tree).logits.clone())))
            tree, rows = drafted[0]
            ceiling = None
            if law is not Law.DETERMINISTIC:
                k = len(SHAPES[shape].children[0])
                ceiling = optimal_acceptance(rows[0], tree.draft_probs_of(0), k, law)
            for rule in rules:
                own = found[shape, law, str(rule)]
                for coin in range(COINS):
                    verdict = rule(tree, rows, TorchCoins(10**6 + COINS * index + coin))
                    own.measured[prompt].append(verdict.accepted)
                for other, other_rows in drafted[1:]:
                    exact = tree_acceptance(rule, other, other_rows)
                    own.predicted[prompt].append(float(exact.expected))
                    own.first[prompt].append(sum(map(float, exact.by_rank())))
                if ceiling is not None:
                    own.ceiling[prompt].append(ceiling)
    return found


def summary(found: dict[tuple[str, Law, str], Samples]) -> list[dict[str, Any]]:
    """One row for each rule, shape and law."""
    rows = []
    for (shape, law, rule), own in found.items():
        measured, predicted = mean_and_error(own.measured), mean_and_error(own.predicted)
        gap = difference(own.measured, own.predicted)
        rows.append(
            {
                "shape": shape,
                "law": str(law),
                "rule": rule,
                "measured": measured[0],
                "measured_95": 1.96 * measured[1],
                "predicted": predicted[0],
                "predicted_95": 1.96 * predicted[1],
                "z": gap[0] / gap[1] if gap[1] else 0.0,
                "first_level": mean_and_error(own.first)[0],
                "ceiling": mean_and_error(own.ceiling)[0] if own.ceiling else None,
            }
        )
    return sorted(rows, key=lambda r: (list(SHAPES).index(r["shape"]), r["law"], r["predicted"]))


IID, WITHOUT = Law.IID, Law.WITHOUT_REPLACEMENT
ORDER = [
    ("3 x 3", "first", [(IID, "naive"), (IID, "rrs"), (IID, "kseq"), (IID, "ceiling")]),
    ("3 x 3", "first", [(IID, "rrs"), (IID, "canonical"), (IID, "ceiling")]),
    ("3 x 3", "first", [(IID, "rrs"), (WITHOUT, "rrsw"), (WITHOUT, "ceiling")]),
    ("3 x 3", "first", [(WITHOUT, "naive"), (WITHOUT, "rrsw")]),
    ("2 x 2", "first", [(IID, "rrs"), (IID, "kseq"), (IID, "canonical"), (IID, "ceiling")]),
    ("2 x 2", "first", [(IID, "rrs"), (WITHOUT, "rrsw"), (WITHOUT, "ceiling")]),
    ("2 x 2", "first", [(Law.HUB, "spechub"), (Law.HUB, "ceiling")]),
    ("chain 3", "predicted", [(IID, "chain"), (IID, "block")]),
]
"""What theory says of rules at the same contexts, the smaller first: at one node, so of the first level;
for block verification of the expected number of tokens. Across laws the drafts differ."""


def ordered(found: dict[tuple[str, Law, str], Samples]) -> list[dict[str, Any]]:
    """For each pair that theory orders: the difference of exact expectations on the same trees."""
    rows = []
    for shape, what, names in ORDER:

        def of(law: Law, rule: str, shape=shape, what=what) -> dict[int, list[float]]:
            if rule != "ceiling":
                return getattr(found[shape, law, rule], what)
            return next(
                s.ceiling for (tree, of, _), s in found.items() if (tree, of) == (shape, law)
            )

        for less, more in pairwise(names):
            mean, error = difference(of(*more), of(*less))
            rows.append(
                {
                    "shape": shape, "of": what,
                    "less": f"{less[1]} ({less[0]})", "more": f"{more[1]} ({more[0]})",
                    "difference": mean, "difference_95": 1.96 * error,
                    "agrees": mean >= -DOUBT * error,
                }
            )  # fmt: skip
    return rows


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m treespec.experiments.studies.rules_on_pair")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--contexts", type=int, default=12, help="places in each text")
    options = parser.parse_args()
    pair = load_pair("embedded", dtype="float32")
    found = measure(pair, contexts(pair, options.prompts, options.contexts))
    rows, order, console = summary(found), ordered(found), Console(width=120)
    table = Table("tree", "children drawn", "rule", box=None)
    for name in ("measured", "predicted", "z", "first level", "ceiling there"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row["shape"], row["law"], row["rule"],
            f"{row['measured']:.3f}±{row['measured_95']:.3f}",
            f"{row['predicted']:.3f}±{row['predicted_95']:.3f}", f"{row['z']:+.1f}",
            f"{row['first_level']:.3f}",
            "" if row["ceiling"] is None else f"{row['ceiling']:.3f}",
        )  # fmt: skip
    console.print("accepted draft tokens per step, temperature 1")
    console.print(table)
    for row in order:
        verdict = "agrees" if row["agrees"] else "DISAGREES"
        console.print(
            f"{row['shape']}, {row['of']}: {row['more']} - {row['less']} = "
            f"{row['difference']:+.4f}±{row['difference_95']:.4f}, {verdict}",
            highlight=False,
        )
    if options.prompts == parser.get_default("prompts"):
        where = {"prompts": options.prompts, "contexts": options.prompts * options.contexts}
        print(save("rules_on_pair", {**where, "rules": rows, "order": order}))


if __name__ == "__main__":
    main()
