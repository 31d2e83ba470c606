"""A synthetic head whose next token is right at known rates, on the spine and after a sibling.

    python tests/helpers/known_rates.py [SEEDS]

decodes texts with it by our own loop, records the steps, and prints in how many of the seeds the report's
intervals hold the rates. No model runs here.
"""

import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import torch

from treespec import Sampling, Scores, TokenTree, TorchCoins, TreeShape, decode, verify
from treespec.experiments.records.outcome import StepOutcome
from treespec.experiments.records.rows import StepRow, to_frame
from treespec.experiments.report.next_right import next_rights
from treespec.experiments.report.right_shares import BELOW, SIBLING, SPINE
from treespec.experiments.run.right_marks import fresh_right, next_right

VOCABULARY, DEPTH = 6, 4

ROOT_RATE, SPINE_RATE, SIBLING_RATE = 0.7, 0.8, 0.35
RESCUED = 0.6
"""How often the second child is right where the first is not."""

TRUTH = {
    (SPINE, "root", "right"): ROOT_RATE,
    (SPINE, BELOW, "right"): SPINE_RATE,
    (SPINE, BELOW, "fresh"): ROOT_RATE,
    (SPINE, "depth 1", "right"): SPINE_RATE,
    (SPINE, "depth 3", "right"): SPINE_RATE,
    (SIBLING, BELOW, "right"): SIBLING_RATE,
    (SIBLING, BELOW, "fresh"): ROOT_RATE,
    (SIBLING, BELOW, "less_fresh"): SIBLING_RATE - ROOT_RATE,
    (SIBLING, "depth 1", "right"): SIBLING_RATE,
    (SIBLING, "depth 2", "right"): SIBLING_RATE,
}


class FixedText:
    """A target that continues with the same text whatever it accepted."""

    vocab_size, max_length = VOCABULARY, 10_000

    def __init__(self, text):
        self._text = text

    def prefill(self, tokens):
        self._place = len(tokens)

    def score(self, tree):
        places = self._place + torch.tensor(tree.shape.depths)
        return Scores(torch.nn.functional.one_hot(self._text[places], VOCABULARY).float())

    def commit(self, step):
        self._place += step.verdict.emitted


class KnownHead:
    """Ranks two tokens at each depth, at the last one too, whose nodes have no children."""

    max_depth, max_length = DEPTH, 10_000

    def __init__(self, text, seed):
        self._text, self._rng = text.tolist(), np.random.default_rng(seed)

    def prefill(self, tokens):
        self._place = len(tokens)

    def propose(self, coins):
        parents, tokens, self._best = [-1], [self._text[self._place - 1]], [None]
        node, sibling = 0, False
        for depth in range(DEPTH + 1):
            true = self._text[self._place + depth]
            rate = SIBLING_RATE if sibling else SPINE_RATE if depth else ROOT_RATE
            right = self._rng.random() < rate
            ranked = [true, (true + 1) % VOCABULARY]
            if not right:
                rescued = self._rng.random() < RESCUED
                ranked = [(true + 1) % VOCABULARY, true if rescued else (true + 2) % VOCABULARY]
            self._best[node] = ranked[0]
            if depth == DEPTH or true not in ranked:
                if depth < DEPTH:
                    parents += [node, node]
                    tokens += ranked
                    self._best += [None, None]
                break
            parents += [node, node]
            tokens += ranked
            self._best += [None, None]
            node, sibling = len(parents) - 2 + ranked.index(true), sibling or not right
        shape = TreeShape(tuple(parents))
        return TokenTree(shape, torch.tensor(tokens), None, "deterministic")

    def best_next(self):
        return self._best

    def commit(self, step):
        self._place += step.verdict.emitted


def rows_of_text(prompt, seed, tokens, fresh=True):
    """The rows of the steps of one text."""
    text = torch.from_numpy(np.random.default_rng((seed, 0)).integers(VOCABULARY, size=tokens + 20))
    drafter, given = KnownHead(text, (seed, 1)), text[:1]
    steps = []
    for step in decode(
        FixedText(text), drafter, verify.greedy, given, sampling=Sampling(temperature=0.0),
        coins=TorchCoins(0), max_new_tokens=tokens,
    ):  # fmt: skip
        marks = next_right(drafter, step)
        steps.append(
            StepOutcome(
                step.tree.shape, step.tree.token_ids, step.verdict, len(step.tokens), {}, 0.0, 0.0,
                spine=marks.spine, right=marks.right,
            )
        )  # fmt: skip
    new = [None] * len(steps)
    if fresh:
        head = KnownHead(text, (seed, 2))
        new = fresh_right(FixedText(text), head, Sampling(temperature=0.0), given, steps)
    key = {"prompt": prompt, "sampling": "T=0", "method": "head", "repeat": 0}
    return [step.row(key, i, new[i]) for i, step in enumerate(steps)]


def report_of(seed, prompts=16, tokens=48, fresh=True):
    """What the report says about the head, from the steps of so many texts."""
    rows = [
        row
        for prompt in range(prompts)
        for row in rows_of_text(prompt, 1000 * seed + prompt, tokens, fresh)
    ]
    run = SimpleNamespace(
        steps=to_frame(rows, StepRow),
        samplings=["T=0"],
        methods=[SimpleNamespace(name="head", group="tree")],
        files_of=lambda prompts: None,
    )
    return next_rights(run)["T=0", "head"]


def held(seeds, **texts):
    """In how many of the seeds each interval holds the truth; an interval without bounds does not."""
    counts = Counter(dict.fromkeys((*TRUTH, "less spine"), 0))
    for seed in seeds:
        found = report_of(seed, **texts)
        for (place, band, what), truth in TRUTH.items():
            interval = getattr(found.shares[place, band], what)
            counts[place, band, what] += interval.bounded and interval.contains(truth)
        interval = found.less_spine(BELOW)
        counts["less spine"] += interval.bounded and interval.contains(SIBLING_RATE - SPINE_RATE)
    return counts


if __name__ == "__main__":
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    for key, count in held(range(seeds)).items():
        print(key, f"{count} of {seeds}")
