"""Children by a kernel and by torch operations are equal, given the same logits and uniforms."""

import pytest
import torch

from treespec import Law, Sampling, TorchCoins, TreeShape
from treespec.draft import ModelDrafter
from treespec.draft.choosing import BY_KERNEL, KernelHead, TensorHead, head_of
from treespec.draft.levels import levels_of
from treespec.errors import InvalidTree, NonFiniteLogits
from treespec.models.passes import compiled_pass
from treespec.step import Scores
from treespec.testing import EnumeratingCoins, TabularModel, random_table


class Own(Sampling):
    """A sampling that may compute other rows."""


DRAWN = [Law.IID, Law.WITHOUT_REPLACEMENT]
MIXED = TreeShape.from_parents([-1, 0, 0, 0, 1, 1, 2, 4, 4, 6])
CPU = torch.device("cpu")


class Compiled:
    """A model whose logits the kernels can read."""

    draws_by_kernel = True


class Table(TabularModel):
    """Such a model that can run."""

    draws_by_kernel = True

    def run(self, tokens, parents, first=0):
        return Scores(super().run(tokens, parents, first).logits.float())


@pytest.fixture(autouse=True, scope="module")
def compiler():
    if (missing := compiled_pass.missing_for_compiling()) is not None:
        pytest.skip(missing)


def drafted(head, shape, logits):
    levels, begin, children = levels_of(shape, CPU), 0, []
    for level in levels.levels:
        children.append(head.children(level, logits[begin : begin + len(level.nodes)]))
        begin += len(level.nodes)
    return torch.cat(children), head.probs(), head.extremes()


@pytest.mark.parametrize("law", sorted(BY_KERNEL, key=str))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_a_tree_of_nodes_with_different_numbers_of_children(law, dtype, temperature):
    sampling, levels = Sampling(temperature), levels_of(MIXED, CPU)
    for seed in range(20):
        logits = 3 * torch.randn(6, 999, generator=torch.Generator().manual_seed(seed))
        coins = [TorchCoins(seed), TorchCoins(seed)]
        heads = (
            KernelHead(levels, law, temperature, coins[0]),
            TensorHead(law, sampling, coins[1]),
        )
        ours, theirs = (drafted(head, MIXED, logits.to(dtype)) for head in heads)
        assert torch.equal(ours[0], theirs[0])
        assert (ours[1] is None) == (theirs[1] is None) == (law is Law.DETERMINISTIC)
        if ours[1] is not None:
            torch.testing.assert_close(ours[1], theirs[1], rtol=2e-5, atol=1e-9)
        assert torch.equal(ours[2], theirs[2].float())
        assert coins[0].uniform() == coins[1].uniform()


@pytest.mark.parametrize("law", DRAWN)
def test_drafters_draw_by_it(law, monkeypatch):
    trees = []
    for known in (True, False):
        monkeypatch.setattr(Table, "draws_by_kernel", known)
        drafter = ModelDrafter(Table(random_table(6, 1), 6), MIXED, law, Sampling(0.8))
        drafter.prefill(torch.tensor([0, 1]))
        coins = TorchCoins(3)
        trees.append([drafter.propose(coins) for _ in range(3)])
    for ours, theirs in zip(*trees, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert not torch.equal(ours.draft_probs, theirs.draft_probs)
        torch.testing.assert_close(ours.draft_probs, theirs.draft_probs, rtol=1e-5, atol=1e-9)


def test_the_node_whose_logits_are_not_finite_is_named():
    def row(context):
        logits = random_table(6, 1)(context)
        if len(context) == 4 and context[-1] == first:
            logits[3] = torch.nan
        return logits

    first = -1
    for bad in (False, True):
        drafter = ModelDrafter(Table(row, 6), TreeShape.expansion([3, 1, 1]), Law.IID, Sampling())
        drafter.prefill(torch.tensor([0, 1, 2]))
        if bad:
            with pytest.raises(NonFiniteLogits, match="node 1"):
                drafter.propose(TorchCoins(0))
        else:
            first = drafter.propose(TorchCoins(0)).token_ids[1]


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_another_default_dtype(default):
    levels, logits = levels_of(MIXED, CPU), torch.randn(6, 40)
    right = drafted(KernelHead(levels, Law.IID, 1.0, TorchCoins(0)), MIXED, logits)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        found = drafted(KernelHead(levels, Law.IID, 1.0, TorchCoins(0)), MIXED, logits)
    finally:
        torch.set_default_dtype(before)
    assert all(torch.equal(one, other) for one, other in zip(found, right, strict=True))


def test_more_distinct_children_than_tokens():
    for width in (4, 256):
        shape = TreeShape.expansion([width + 1])
        head = KernelHead(levels_of(shape, CPU), Law.WITHOUT_REPLACEMENT, 1.0, TorchCoins(0))
        with pytest.raises(InvalidTree, match=f"the vocabulary has {width}"):
            drafted(head, shape, torch.randn(1, width))


@pytest.mark.slow
@pytest.mark.parametrize("law", DRAWN)
def test_one_of_a_hundred_thousand_draws_differs_at_most(law):
    pairs = (1 + i for i in range(500) for _ in range(2))
    levels = levels_of(TreeShape.from_parents([-1, *[0] * 500, *pairs]), CPU)
    generator, different = torch.Generator().manual_seed(0), 0
    for seed in range(100):
        logits = 2 * torch.randn(500, 4096, generator=generator)
        ours = KernelHead(levels, law, 1.0, TorchCoins(seed)).children(levels.levels[1], logits)
        theirs = TensorHead(law, Sampling(), TorchCoins(seed)).children(levels.levels[1], logits)
        different += int((ours != theirs).sum())
    assert different <= 1


@pytest.mark.parametrize(
    ("model", "law", "sampling", "coins"),
    [
        (object(), Law.IID, Sampling(), TorchCoins(0)),
        (object(), Law.DETERMINISTIC, Sampling(), TorchCoins(0)),
        (Compiled(), Law.TOP_THEN_SAMPLE, Sampling(), TorchCoins(0)),
        (Compiled(), Law.IID, Sampling(0.0), TorchCoins(0)),
        (Compiled(), Law.IID, Sampling(top_k=5), TorchCoins(0)),
        (Compiled(), Law.IID, Sampling(top_p=0.9), TorchCoins(0)),
        (Compiled(), Law.IID, Sampling(min_p=0.1), TorchCoins(0)),
        (Compiled(), Law.IID, Sampling(), EnumeratingCoins([])),
        (Compiled(), Law.IID, Own(), TorchCoins(0)),
    ],
)
def test_what_the_kernel_does_not_know_is_left_to_operations(model, law, sampling, coins):
    assert isinstance(head_of(model, levels_of(MIXED, CPU), law, sampling, coins), TensorHead)


@pytest.mark.parametrize("law", sorted(BY_KERNEL, key=str))
def test_what_the_kernel_knows(law):
    for temperature in (0.0, 0.7) if law is Law.DETERMINISTIC else (0.7,):
        sampling, levels = Sampling(temperature), levels_of(MIXED, CPU)
        assert isinstance(head_of(Compiled(), levels, law, sampling, TorchCoins(0)), KernelHead)
