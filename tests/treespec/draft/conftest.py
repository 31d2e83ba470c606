"""Growths that return to nodes and prune, scripted or random, and a drafter that checks its cache."""

from types import SimpleNamespace

import numpy as np
import pytest
from taped_passes import make_model, taped

from treespec.draft import ModelDrafter

__all__ = ["make_model", "taped"]


class Scripted:
    """Grows by a script, one entry per call."""

    def __init__(self, *calls, max_depth=4):
        self.calls, self.max_depth = calls, max_depth
        self.sizes = [1]
        for call in calls:
            self.sizes.append(self.sizes[-1] + sum(k for _, k in call))

    def next(self, shape, probs):
        call = self.sizes.index(shape.size)
        return self.calls[call] if call < len(self.calls) else ()


class Keeping(Scripted):
    """Keeps the given nodes of the drafted tree."""

    def __init__(self, *calls, keep, max_depth=4):
        super().__init__(*calls, max_depth=max_depth)
        self.kept = keep

    def keep(self, shape, probs):
        return self.kept


class Random:
    """Expands random nodes, new and known, with random numbers of children; a function of the shape."""

    max_depth = 5

    def __init__(self, seed, size=9, widest=4):
        self.seed, self.size, self.widest = seed, size, widest

    def rng(self, shape, use):
        return np.random.default_rng([self.seed, use, *(p + 1 for p in shape.parents)])

    def next(self, shape, probs):
        if shape.size >= self.size:
            return ()
        rng, places = self.rng(shape, 0), []
        for node in rng.permutation(shape.size)[: rng.integers(1, 4)].tolist():
            room = self.widest - len(shape.children[node])
            if room > 0 and shape.depths[node] < self.max_depth:
                places.append((node, int(rng.integers(1, room + 1))))
        return places


class RandomPruned(Random):
    """Also keeps a random subtree."""

    def keep(self, shape, probs):
        rng, kept = self.rng(shape, 1), {0}
        for node, parent in enumerate(shape.parents[1:], start=1):
            if parent in kept and rng.random() < 0.7:
                kept.add(node)
        return rng.permutation(sorted(kept)).tolist()


class Watched(ModelDrafter):
    """Checks that cache and pending tokens together are the text, and that no node is run twice."""

    def prefill(self, tokens):
        super().prefill(tokens)
        self.text, self.ends = tuple(tokens.tolist()), []
        self.check()

    def commit(self, step):
        # Whether the last accepted node had been run, and how many rows lie between those accepted.
        self.ends.append((step.verdict.path[-1] in self._rows, step.verdict.path, len(self._rows)))
        super().commit(step)
        path = [step.tree.token_ids[node] for node in step.verdict.path[1:]]
        self.text += (*path, step.verdict.bonus)
        self.check()

    def check(self):
        assert (*self.model._committed, *self._pending, self._root) == self.text


@pytest.fixture(scope="session")
def growths():
    return SimpleNamespace(
        Scripted=Scripted,
        Keeping=Keeping,
        Random=Random,
        RandomPruned=RandomPruned,
        Watched=Watched,
    )
