"""Skip sets: judged by acceptance along texts, searched, and stored in a file."""

import json
from itertools import combinations

import pytest
import torch

from treespec import Sampling
from treespec.draft.skip_set import SkipSet, SkipSets
from treespec.errors import InvalidArgument, Unreadable
from treespec.models.variants.sublayers import sublayers_of
from treespec.sampling.processing.rows import processed_row
from treespec.sampling.processors import Processors
from treespec.testing import TabularModel, random_table

V, LAYERS = 5, 3
TEXTS = [[0, 1, 2, 3, 4, 0, 2], [3, 3, 1]]


class Layered(TabularModel):
    """A table to whose logits each sublayer adds its own contribution, as layers do."""

    layer_count = LAYERS

    def __init__(self, skip=()):
        base = random_table(V, 1)
        parts = {name: random_table(V, 10 + i) for i, name in enumerate(sublayers_of(LAYERS))}
        left = [(0.1 + 0.3 * i) for i in range(len(parts))]

        def row(context):
            scaled = zip(left, parts.items(), strict=True)
            return base(context) + sum(
                w * part(context) for w, (s, part) in scaled if s not in skip
            )

        super().__init__(row, V)

    def fresh(self):
        return TabularModel(self.row, V)

    def without(self, skip):
        return Layered(frozenset(skip))


def judged(skip, sampling):
    """The acceptance of a skip set, computed text by text and token by token."""
    draft, total = Layered(skip), 0.0
    for text in TEXTS:
        for end in range(1, len(text) + 1):
            logits = [m.row(tuple(text[:end])).float() for m in (Layered(), draft)]
            rows = [
                sampling.without_processors(processed_row(sampling, row, text[:end], 1))
                for row in logits
            ]
            total += float(torch.minimum(*rows).sum())
    return total / sum(map(len, TEXTS))


@pytest.mark.parametrize(
    "sampling",
    [Sampling(0.0), Sampling(), Sampling(processors=Processors(repetition_penalty=1.5))],
    ids=["greedy", "sampled", "processed"],
)
def test_acceptance_is_the_mean_overlap_of_rows(sampling):
    sets = SkipSets(Layered(), TEXTS, sampling)
    assert sets.tokens == 10
    assert sets.acceptance([]) == pytest.approx(1.0)
    for skip in (["mlp.2"], ["attention.0", "mlp.1", "attention.2"]):
        wanted = judged({s for s in sublayers_of(LAYERS) if str(s) in skip}, sampling)
        assert sets.acceptance(skip) == pytest.approx(wanted, abs=1e-6)


class Indifferent(Layered):
    """All of whose sublayers can be left out without a difference."""

    def without(self, skip):
        return self


def test_an_exchange_that_betters_nothing_ends_the_search():
    told = []

    def say(tried, acceptance):
        told.append(acceptance)
        assert len(told) <= 2

    assert SkipSets(Indifferent(), TEXTS).search(2, say=say).acceptance == pytest.approx(1.0)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_no_exchange_betters_what_was_searched(size):
    sets = SkipSets(Layered(), TEXTS)
    told = []
    found = sets.search(size, say=lambda tried, acceptance: told.append((tried, acceptance)))
    skip = {s for s in sublayers_of(LAYERS) if str(s) in found.skip}
    assert len(skip) == size
    assert found.acceptance == sets.acceptance(skip) == told[-1][1]
    others = [s for s in sublayers_of(LAYERS) if s not in skip]
    for out in skip:
        for into in others:
            assert sets.acceptance((skip - {out}) | {into}) <= found.acceptance
    every = [sets.acceptance(frozenset(s)) for s in combinations(sublayers_of(LAYERS), size)]
    assert found.acceptance == max(every)  # on this table, exchanges reach the best
    assert (found.layers, found.tokens) == (LAYERS, 10)


def test_a_search_stops_at_the_sets_that_it_may_try():
    sets = SkipSets(Layered(), TEXTS)
    found = sets.search(2, most=6 + 5)
    assert found.tried <= 11
    with pytest.raises(InvalidArgument, match="most = 10, but must be an integer of at least 11"):
        SkipSets(Layered(), TEXTS).search(2, most=10)
    for size, said in ((0, "in 1..5"), (6, "in 1..5")):
        with pytest.raises(InvalidArgument, match=said):
            sets.search(size)
    with pytest.raises(InvalidArgument, match="texts has no token"):
        SkipSets(Layered(), [[]])
    with pytest.raises(InvalidArgument, match=r"texts\[0\]\[1\] = 5 is not a token id"):
        SkipSets(Layered(), [[0, 5]])


def test_a_file_says_what_was_written(tmp_path):
    found = SkipSets(Layered(), TEXTS).search(2)
    found.save(tmp_path / "skip.json")
    assert SkipSet.load(tmp_path / "skip.json") == found


DAMAGED = {
    "No such file": None,
    "not JSON": "{",
    "must be an object": "[]",
    "skip is missing": {"skip": ...},
    "unknown key": {"more": 1},
    "version = 2: must be 1": {"version": 2},
    "version = True: must be 1": {"version": True},
    "must be 'treespec skip set'": {"format": "x"},
    "skip names mlp.3, but the model has 3 layers": {"skip": ["mlp.3"]},
    "'x' is not a sublayer": {"skip": ["x"]},
}


@pytest.mark.parametrize("said", DAMAGED)
def test_damaged_files_are_refused_by_name(said, tmp_path):
    path, change = tmp_path / "skip.json", DAMAGED[said]
    whole = SkipSets(Layered(), TEXTS).search(1).model_dump()
    if isinstance(change, dict):
        data = {key: value for key, value in (whole | change).items() if value is not ...}
        path.write_text(json.dumps(data))
    elif change is not None:
        path.write_text(change)
    with pytest.raises(Unreadable, match=said) as refused:
        SkipSet.load(path)
    assert str(refused.value).startswith(str(path))
