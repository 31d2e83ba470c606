"""One budget over a batch: the best nodes of all texts, and every text keeps its law."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec import Law, Sampling, TorchCoins, TreeShape, verify
from treespec.batch import Failed, Text, decode_many
from treespec.draft import ModelDrafter
from treespec.search.errors import InvalidGrowth
from treespec.search.growth import EqualShares, SharedBudget, SpecExec
from treespec.target import ModelTarget
from treespec.testing import TabularModel, laws, output_law, random_table, target_law

PROMPT = (0, 1)
T0 = Sampling(temperature=0.0)


def text_of(model, growth, *, rule=verify.greedy, sampling=T0, seed=0, tokens=8, prompt=PROMPT):
    target = TabularModel(random_table(model.vocab_size, seed=9), model.vocab_size)
    return Text(
        ModelTarget(target), ModelDrafter(model, growth, Law.DETERMINISTIC, sampling), rule,
        torch.tensor(prompt), sampling, TorchCoins(seed), max_new_tokens=tokens,
    )  # fmt: skip


def first_trees(drafts, growth):
    """The first tree of each text, as token paths."""
    steps = decode_many([text_of(draft.model, growth) for draft in drafts])
    trees = [next(steps)[1].tree for _ in drafts]
    return [
        [
            tuple(tree.token_ids[n] for n in tree.shape.path(node)[1:])
            for node in range(1, tree.shape.size)
        ]
        for tree in trees
    ]


@settings(max_examples=25)
@given(
    st.integers(0, 500), st.integers(1, 4), st.integers(0, 12), st.integers(1, 4), st.booleans(),
    st.sampled_from([4, 2]),
)  # fmt: skip
def test_the_nodes_kept_are_the_best_of_all_texts(
    growing, seed, texts, spare, depth, calibrated, branching
):
    calibration = (lambda p: p**0.5) if calibrated else None
    drafts = [growing.Draft(seed + i, vocab=4, spread=0.5 + i) for i in range(texts)]
    nodes = max(2, texts + spare)
    growth = SharedBudget(nodes, depth, branching, calibration)
    found = [
        draft.value(path, calibration)
        for draft, paths in zip(drafts, first_trees(drafts, growth), strict=True)
        for path in paths
    ]
    every = [
        value
        for draft in drafts
        for value in draft.all_nodes(depth, branching, calibration).values()
    ]
    best = sorted(every, reverse=True)[: nodes - texts]
    assert sorted(found, reverse=True) == pytest.approx(best)


def test_it_drafts_only_what_can_be_kept(growing):
    """With the nodes of all texts in view, an uncertain text drafts less than it would by itself."""
    drafts = [growing.Draft(i, vocab=5, spread=spread) for i, spread in enumerate((8.0, 0.1))]
    uncertain = drafts[1]
    uncertain.paths(SpecExec(12, 4, 4))
    alone = sum(uncertain.passes)
    uncertain.passes.clear()
    first_trees(drafts, SharedBudget(12, 4, 4))
    assert 0 < sum(uncertain.passes) < alone


@pytest.mark.parametrize("growth", [SharedBudget(7, 3, 4), EqualShares(7, 3, 4)])
def test_alone_it_is_spec_exec(growing, growth):
    for seed in range(4):
        draft = growing.Draft(seed)
        assert draft.paths(growth) == draft.paths(SpecExec(7, 4, 3))


def test_equal_shares_are_those_of_each_text(growing):
    drafts = [growing.Draft(i, spread=1.0 + i) for i in range(3)]
    found = first_trees(drafts, EqualShares(11, 3, 4))
    assert found == [
        draft.paths(SpecExec(n, 4, 3)) for draft, n in zip(drafts, (4, 4, 3), strict=True)
    ]


def test_a_child_as_certain_as_a_root_does_not_displace_it(growing):
    drafts = [growing.Draft(i) for i in range(3)]
    found = first_trees(drafts, SharedBudget(4, 3, 3, calibration=lambda p: p * 0 + 1.0))
    assert [len(paths) for paths in found] == [1, 0, 0]


def test_texts_that_remain_share_the_nodes(growing):
    drafts = [growing.Draft(i) for i in range(2)]
    growth = SharedBudget(8, 4, 5)
    sizes = {}
    texts = [text_of(d.model, growth, tokens=n) for d, n in zip(drafts, (2, 30), strict=True)]
    for i, step in decode_many(texts):
        sizes.setdefault(i, []).append(step.tree.shape.size)
    together = len(sizes[0])
    assert all(a + b == 8 for a, b in zip(sizes[0], sizes[1][:together], strict=True))
    assert set(sizes[1][together:-4]) == {8}


def test_more_texts_than_nodes(growing):
    texts = [text_of(growing.Draft(i).model, SharedBudget(2, 2, 1)) for i in range(3)]
    errors = [step.error for _, step in decode_many(texts) if isinstance(step, Failed)]
    assert len(errors) == 3
    with pytest.raises(InvalidGrowth, match="2 nodes cannot hold the roots of 3 texts"):
        raise errors[0]


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("growth", [SharedBudget(8, 2, 3), EqualShares(8, 2, 3)], ids=str)
@pytest.mark.parametrize("rule", [verify.onehot, verify.naive], ids=str)
def test_a_text_keeps_its_law(growth, rule, monkeypatch):
    """Every branch of one text is walked beside two that play, whose trees decide the size of its own."""
    target, draft = (TabularModel(random_table(3, seed=seed), 3) for seed in (0, 1))
    sampling = Sampling()
    sizes = set()

    def among(target, drafter, verifier, prompt, **settings):
        beside = [
            text_of(draft, growth, rule=verify.onehot, sampling=sampling, seed=i, tokens=2 + i, prompt=own)
            for i, own in enumerate(((1, 1), (2, 0, 1)))
        ]  # fmt: skip
        text = Text(target, drafter, verifier, prompt, **settings)
        for i, step in decode_many([beside[0], text, beside[1]]):
            if isinstance(step, Failed):
                raise step.error
            if i == 1:
                sizes.add(step.tree.shape.size)
                yield step

    monkeypatch.setattr(laws, "decode", among)
    found = output_law(
        rule, TreeShape.chain(2), Law.DETERMINISTIC, target=target, draft=draft, tokens=3, prompt=PROMPT,
        sampling=sampling,
        draft_with=lambda *_: ModelDrafter(draft, growth, Law.DETERMINISTIC, sampling),
    )  # fmt: skip
    right = target_law(target, PROMPT, 3, sampling)
    assert float((found.probs - right).abs().max()) <= 1e-12
    assert len(sizes) > 1
