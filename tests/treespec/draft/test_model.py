from contextlib import contextmanager
from itertools import repeat

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, verify
from treespec.draft import ModelDrafter, StaticGrowth, growth
from treespec.errors import InvalidTree, NonFiniteLogits, NotADistribution
from treespec.target import ModelTarget
from treespec.testing import TabularModel, random_table

TABLE = random_table(6, 1)


@st.composite
def shapes(draw):
    size = draw(st.integers(1, 14))
    return TreeShape.from_parents([-1, *(draw(st.integers(0, i - 1)) for i in range(1, size))])


def propose(growth, law, sampling=None, seed=0, prompt=(0, 1)):
    drafter = ModelDrafter(TabularModel(TABLE, 6), growth, law, sampling or Sampling())
    drafter.prefill(torch.tensor(prompt))
    return drafter, drafter.propose(TorchCoins(seed))


@given(shapes(), st.sampled_from([Law.IID, Law.DETERMINISTIC, Law.WITHOUT_REPLACEMENT]))
def test_any_static_shape_is_drafted_breadth_first(shape, law):
    if max(map(len, shape.children)) > 6:
        return
    _, tree = propose(shape, law)
    assert tree.shape == shape.breadth_first()
    assert tree.token_ids[0] == 1
    assert tree.laws == (frozenset({law}) if shape.size > 1 else frozenset())


@given(shapes())
def test_reported_rows_are_the_models_own_after_the_path(shape):
    _, tree = propose(shape, Law.IID, Sampling(temperature=0.7, top_p=0.9))
    for node in tree.shape.internal:
        context = (0, *(tree.token_ids[n] for n in tree.shape.path(node)))
        expected = Sampling(temperature=0.7, top_p=0.9)(TABLE(context))
        assert torch.equal(tree.draft_probs_of(node), expected)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_deterministic_children_are_the_best_logits_at_any_temperature(temperature):
    _, tree = propose(TreeShape.expansion([3, 2]), Law.DETERMINISTIC, Sampling(temperature))
    assert tree.draft_probs is None
    for node in tree.shape.internal:
        children = tree.shape.children[node]
        context = (0, *(tree.token_ids[n] for n in tree.shape.path(node)))
        best = TABLE(context).topk(len(children)).indices.tolist()
        assert [tree.token_ids[c] for c in children] == best


class Own(Sampling):
    """A sampling that may compute other rows."""


class Nothing(Sampling):
    """Whose rows are no distributions."""

    def __call__(self, logits):
        return torch.zeros_like(logits)


def test_only_rows_of_sampling_itself_are_trusted():
    for sampling, vouched in ((Sampling(), True), (Own(), False)):
        for grown in (TreeShape.chain(2), BestFirst()):
            _, tree = propose(grown, Law.WITHOUT_REPLACEMENT, sampling)
            assert tree.is_vouched == vouched
    with pytest.raises(NotADistribution):
        propose(TreeShape.chain(2), Law.IID, Nothing())


def test_without_replacement_siblings_differ():
    for seed in range(30):
        _, tree = propose(TreeShape.kary(4, 2), Law.WITHOUT_REPLACEMENT, seed=seed)
        for node in tree.shape.internal:
            tokens = [tree.token_ids[c] for c in tree.shape.children[node]]
            assert len(set(tokens)) == len(tokens)


def test_only_nodes_with_children_are_run():
    class Counting(TabularModel):
        ran = 0

        def run(self, tokens, parents, first=0):
            Counting.ran += len(tokens)
            return super().run(tokens, parents, first)

    drafter = ModelDrafter(Counting(TABLE, 6), TreeShape.expansion([3, 2]), Law.IID, Sampling())
    drafter.prefill(torch.tensor([0, 1]))
    drafter.propose(TorchCoins(0))
    assert Counting.ran == 1 + 3


class BestFirst:
    """Expands the most probable leaf three times: a dynamic growth."""

    max_depth = 3

    def next(self, shape, probs):
        if shape.size >= 7:
            return ()
        path = [1.0]
        for node, parent in enumerate(shape.parents[1:], start=1):
            path.append(path[parent] * float(probs()[node]))
        return [(max(shape.leaves, key=lambda leaf: path[leaf]), 2)]


@pytest.mark.parametrize(
    ("law", "temperature"),
    [(Law.DETERMINISTIC, 1.0), (Law.DETERMINISTIC, 0.0), (Law.WITHOUT_REPLACEMENT, 1.0)],
)
def test_a_dynamic_growth_sees_probabilities_and_decides_where(law, temperature):
    _, tree = propose(BestFirst(), law, Sampling(temperature))
    assert tree.shape.size == 7
    first = [TABLE((0, 1)).softmax(-1)[t] for t in tree.token_ids[1:3]]
    expanded = 1 if first[0] > first[1] else 2
    assert tree.shape.children[expanded] == (3, 4)


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}], ids=str)
def test_greedy_children_are_ranked_without_truncation(cut):
    """At temperature 0 truncations change neither the tokens nor the probabilities that a growth sees."""
    seen = []

    class Asking(BestFirst):
        def next(self, shape, probs):
            seen.append(probs().tolist())
            return super().next(shape, probs)

    _, tree = propose(Asking(), Law.DETERMINISTIC, Sampling(0.0, **cut))
    _, plain = propose(BestFirst(), Law.DETERMINISTIC, Sampling(0.0))
    assert tree.token_ids == plain.token_ids
    assert tree.shape == plain.shape
    row = TABLE((0, 1)).softmax(-1)
    assert seen[-1][1:3] == pytest.approx([float(row[token]) for token in tree.token_ids[1:3]])


def test_a_dynamic_growth_decodes_through_the_loop():
    cold = Sampling(temperature=0.0)
    target, drafter = TabularModel(random_table(6, 2), 6), TabularModel(TABLE, 6)
    steps = decode(
        ModelTarget(target), ModelDrafter(drafter, BestFirst(), Law.DETERMINISTIC, cold), verify.greedy,
        torch.tensor([0]), sampling=cold, coins=TorchCoins(0), max_new_tokens=15,
    )  # fmt: skip
    text = [0]
    for _ in range(15):
        text.append(int(target.row(tuple(text)).argmax()))
    assert [t for step in steps for t in step.tokens] == text[1:]


def test_bad_draft_logits_name_their_node():
    shape = TreeShape.expansion([3, 1])
    _, tree = propose(shape, Law.DETERMINISTIC)
    second = tree.token_ids[2]

    def row(context):
        return TABLE(context) * (torch.nan if context == (0, 1, second) else 1)

    drafter = ModelDrafter(TabularModel(row, 6), shape, Law.DETERMINISTIC, Sampling())
    drafter.prefill(torch.tensor([0, 1]))
    with pytest.raises(NonFiniteLogits, match=r"draft model.*node 2"):
        drafter.propose(TorchCoins(0))


@given(shapes())
def test_static_growth_asks_for_each_child_once(shape):
    growth, parents = StaticGrowth(shape), [-1]
    while places := growth.next(TreeShape(tuple(parents)), probs=lambda: pytest.fail("not needed")):
        for node, k in places:
            parents += [node] * k
    assert tuple(parents) == shape.breadth_first().parents
    assert growth.max_depth == shape.depth


class Answering:
    """Always gives the same answer."""

    def __init__(self, answer):
        self.answer, self.max_depth = answer, 2

    def next(self, shape, probs):
        return self.answer(shape)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda shape: [(0, 1)], "more than 100 times"),
        (lambda shape: [(shape.size - 1, 1)], "does not end"),
        (lambda shape: ((0, 1) for _ in repeat(None)), "a node twice at once"),
        (lambda shape: [(0, 2**16 + 1)], "more than 65,536 nodes"),
    ],
)
def test_a_growth_that_never_ends_is_stopped(answer, said, monkeypatch):
    monkeypatch.setattr(growth, "MOST_ROUNDS", 100)
    with pytest.raises(InvalidTree, match=f"growth 'Answering' .*{said}"):
        propose(Answering(answer), Law.IID)
    _, tree = propose(Answering(lambda shape: iter(())), Law.IID)
    assert tree.shape.size == 1


class Noting:
    """An observer that records the names of stages."""

    def __init__(self):
        self.begun, self.ended = [], []

    @contextmanager
    def stage(self, name):
        self.begun.append(name)
        yield
        self.ended.append(name)


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_an_observer_is_told_of_each_level(depth):
    noting, shape = Noting(), TreeShape.chain(depth)
    drafter = ModelDrafter(TabularModel(TABLE, 6), shape, Law.IID, Sampling(), noting)
    drafter.prefill(torch.tensor([0, 1]))
    assert drafter.propose(TorchCoins(0)).shape == shape
    assert noting.begun == noting.ended == ["level"] * depth
