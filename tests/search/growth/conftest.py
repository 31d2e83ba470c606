"""A tabular draft, trees drafted from it, and all of its nodes with their values."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch

from treespec import Law, Sampling, TorchCoins
from treespec.draft import ModelDrafter
from treespec.search import LatencyModel
from treespec.testing import TabularModel, random_table

PROMPT = (0, 1)


class Draft:
    """A table over `vocab` tokens; paths are tuples of the tokens below the root."""

    def __init__(self, seed, vocab=5, spread=1.5, row=None):
        self.vocab, self.row, self.passes = vocab, row or random_table(vocab, seed, spread), []
        passes = self.passes

        class Counting(TabularModel):
            def run(self, tokens, parents, first=0):
                passes.append(len(tokens))
                return super().run(tokens, parents, first)

        self.model = Counting(self.row, vocab)

    def probs(self, path=()):
        return self.row((*PROMPT, *path)).softmax(-1)

    def tree(self, growth, law=Law.DETERMINISTIC, sampling=None, coins=0):
        drafter = ModelDrafter(self.model, growth, law, sampling or Sampling())
        drafter.prefill(torch.tensor(PROMPT))
        self.passes.clear()
        return drafter.propose(TorchCoins(coins))

    def paths(self, growth, **settings):
        """The drafted nodes as token paths, in order, without the root."""
        tree = self.tree(growth, **settings)
        return [
            tuple(tree.token_ids[n] for n in tree.shape.path(node)[1:])
            for node in range(1, tree.shape.size)
        ]

    def value(self, path, calibration=None):
        value = 1.0
        for i, token in enumerate(path):
            prob = float(self.probs(path[:i])[token])
            value *= prob if calibration is None else float(calibration(prob))
        return value

    def best_children(self, path, k):
        return [(*path, token) for token in self.probs(path).topk(k).indices.tolist()]

    def all_nodes(self, depth, branching=None, calibration=None):
        """Values of all nodes in which each token is among the best `branching`."""
        branching = branching or self.vocab
        order = {}
        for length in range(depth):
            for path in product(range(self.vocab), repeat=length):
                order[path] = self.probs(path).topk(branching).indices.tolist()
        return {
            path: self.value(path, calibration)
            for length in range(1, depth + 1)
            for path in product(range(self.vocab), repeat=length)
            if all(token in order[path[:i]] for i, token in enumerate(path))
        }


def times(fixed=1.0, slope=0.0, draft=0.0, wide=0.0):
    """Times linear in the nodes: `fixed` plus `slope` each to verify, `draft` plus `wide` each to draft."""
    verify = {size: fixed + slope * size for size in (1, 4096)}
    return LatencyModel.from_tables(
        verify=verify, draft={width: draft + wide * width for width in (1, 4096)}
    )


@pytest.fixture(scope="session")
def growing():
    return SimpleNamespace(Draft=Draft, Times=times, PROMPT=PROMPT)
