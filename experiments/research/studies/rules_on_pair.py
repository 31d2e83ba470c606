"""Measure and predict what every rule accepts on the embedded pair at temperature 1.

    python -m treespec.experiments.research.studies.rules_on_pair [--prompts 24] [--contexts 12]

Contexts are positions in texts that the target itself decoded at temperature 1 from the held-out prompts;
all rules use the same contexts. At each context the drafter's own code drafts trees by every law, and

- *measured* is the number of draft tokens that the rule keeps, with random coins;
- *predicted* is the exact expectation given another drafted tree (`treespec.testing.tree_acceptance`: the
  rule's own code runs with every outcome of every coin), so it shares neither drafts nor coins with the
  measurement.

Both estimate the same number; z is their difference in standard errors. Intervals are 95 %, over prompts.
The rules are compared on one 3 x 3 tree (three children of the root, and three of each child). Rules that
do not cover it run on shapes that they do cover: chains on `chain 3`, paths on `3 chains x 3`, pairs on `2
x 2`, each next to rules that cover both shapes. `optimal_transport` is a programme for small vocabularies;
its place is taken by the ceiling, the largest share of first levels that any rule could accept
(`optimal_acceptance`).
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from math import sqrt
from typing import Annotated, Any

import torch
import typer
from rich.progress import track

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, decode, load_pair, verify
from treespec.draft import ModelDrafter, NoDrafter
from treespec.experiments.report.table import Column, Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.experiments.run.prompts import embedded_prompts
from treespec.models.load import Pair
from treespec.sampling.distributions import SampledRows
from treespec.search.intervals import Interval
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

PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 24, 48, 32
COINS, PREDICTIONS = 4, 2
"""Per context: verdicts measured on one drafted tree, and further drafted trees for the prediction."""
SAMPLING = Sampling()
CEILING = "ceiling"


@dataclass
class Samples:
    """Samples of one rule on one shape, by prompt and in the order of the prompts.

    The ceiling of a shape and a law stands among the rules, as `CEILING`; it only has values for the first
    level.
    """

    measured: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    predicted: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    first: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))


def mean_and_error(by_prompt: dict[int, list[float]]) -> tuple[float, float]:
    means = [statistics.mean(values) for values in by_prompt.values()]
    return statistics.mean(means), statistics.stdev(means) / sqrt(len(means))


def difference(left: dict[int, list[float]], right: dict[int, list[float]]) -> tuple[float, float]:
    """Mean difference of two samples over the prompts, and its standard error."""
    return mean_and_error(
        {
            prompt: [statistics.mean(left[prompt]) - statistics.mean(right[prompt])]
            for prompt in left
        }
    )


def contexts_of(pair: Pair, prompts: int, each: int) -> list[tuple[int, list[int]]]:
    """Prompt index and token ids of each context, a prefix of a text that the target decoded."""
    encoded = embedded_prompts(pair.tokenizer, prompts, PROMPT_TOKENS)
    places = []
    for prompt in track(encoded, description="texts of the target"):
        text = list(prompt.ids)
        for step in decode(
            ModelTarget(pair.target), NoDrafter(), verify.naive, torch.tensor(text),
            sampling=SAMPLING, coins=TorchCoins(prompt.index), max_new_tokens=NEW_TOKENS,
        ):  # fmt: skip
            text += step.tokens
        stride = NEW_TOKENS // each
        places += [(prompt.index, text[: len(prompt.ids) + i * stride]) for i in range(each)]
    return places


def cases() -> dict[tuple[str, Law], list[Rule]]:
    """The rules to run on the trees of each shape and law."""
    rules: dict[tuple[str, Law], list[Rule]] = defaultdict(list)
    for name, shape in SHAPES.items():
        for rule in map(verify.RULES.__getitem__, RULES_ON[name]):
            for law in Law:  # keep the order of Law: coins are numbered by the place of a case
                if law in rule.laws and rule.covers(shape, law) is None:
                    rules[name, law].append(rule)
    return rules


def measure(pair: Pair, places: list[tuple[int, list[int]]]) -> dict[tuple[str, Law, str], Samples]:
    """Run every case at every context."""
    samples: dict[tuple[str, Law, str], Samples] = defaultdict(Samples)
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
            if law is not Law.DETERMINISTIC:
                k = len(SHAPES[shape].children[0])
                ceiling = optimal_acceptance(rows[0], tree.draft_probs_of(0), k, law)
                samples[shape, law, CEILING].first[prompt].append(ceiling)
            for rule in rules:
                sample = samples[shape, law, str(rule)]
                for coin in range(COINS):
                    verdict = rule(tree, rows, TorchCoins(10**6 + COINS * index + coin))
                    sample.measured[prompt].append(verdict.accepted)
                for other, other_rows in drafted[1:]:
                    exact = tree_acceptance(rule, other, other_rows)
                    sample.predicted[prompt].append(float(exact.expected))
                    sample.first[prompt].append(sum(map(float, exact.by_rank())))
    return samples


def summary(samples: dict[tuple[str, Law, str], Samples]) -> list[dict[str, Any]]:
    """One row for each rule, shape and law."""
    rows = []
    for (shape, law, rule), sample in samples.items():
        if rule == CEILING:
            continue
        ceiling = samples.get((shape, law, CEILING))
        measured, predicted = mean_and_error(sample.measured), mean_and_error(sample.predicted)
        gap = difference(sample.measured, sample.predicted)
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
                "first_level": mean_and_error(sample.first)[0],
                "ceiling": ceiling and mean_and_error(ceiling.first)[0],
            }
        )
    return sorted(rows, key=lambda r: (list(SHAPES).index(r["shape"]), r["law"], r["predicted"]))


def _around(name: str, row: Mapping[str, Any]) -> str:
    """An estimate ± half the width of its interval."""
    return Interval.around(row[name], row[f"{name}_95"]).plus_minus(3)


COLUMNS = (
    keyed("tree", "shape", left=True),
    keyed("children drawn", "law", left=True),
    keyed("rule", "rule", left=True),
    Column[Mapping[str, Any]]("measured", partial(_around, "measured")),
    Column[Mapping[str, Any]]("predicted", partial(_around, "predicted")),
    keyed("z", "z", "+.1f"),
    keyed("first level", "first_level", ".3f"),
    keyed("ceiling there", "ceiling", ".3f"),
)


def main(
    prompts: Annotated[int, typer.Option(min=2, help="Number of texts.")] = PROMPTS,
    contexts: Annotated[int, typer.Option(min=1, help="Contexts in each text.")] = 12,
) -> None:
    """Measure and predict what every rule accepts; print it, and save it for the default texts."""
    pair = load_pair("embedded", dtype="float32")
    samples = measure(pair, contexts_of(pair, prompts, contexts))
    rows = summary(samples)
    print_and_save(
        "rules_on_pair",
        {"prompts": prompts, "contexts": prompts * contexts, "rules": rows},
        Table("accepted draft tokens per step, temperature 1", COLUMNS, rows),
        width=120,
        saved=prompts == PROMPTS,
    )


if __name__ == "__main__":
    typer.run(main)
