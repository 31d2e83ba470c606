"""Steps whose rows move before the host knows the verdict, against steps operation by operation.

Runs itself in a process with TRITON_INTERPRET=1 (`test_through_the_interpreter`).
"""

import os
from unittest import mock

import pytest
import torch

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, verify
from treespec.draft import ModelDrafter
from treespec.errors import NonFiniteLogits
from treespec.models.cache import TreeCache
from treespec.models.pass_kinds import Passes
from treespec.models.passes.captured_runner import Places
from treespec.target import ModelTarget
from treespec.target.graph import GraphTarget
from treespec.tree.kept_rows import kept_paths
from treespec.tree.unread_tree import UnreadTree
from treespec.verify.engine.fused import fused

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="see test_through_the_interpreter")
plain = pytest.mark.skipif(INTERPRETED, reason="runs in the process outside")

WARM, COLD = Sampling(), Sampling(temperature=0.0)
TREE = TreeShape.from_parents([-1, 0, 0, 0, 1, 1, 2, 4, 4, 6])
PAIRS = TreeShape((-1, 0, 0, 1, 1, 2, 2))
CASES = [
    (TREE, Law.WITHOUT_REPLACEMENT, WARM, verify.rrsw),
    (TREE, Law.IID, WARM, verify.rrs),
    (TREE, Law.IID, WARM, verify.naive),
    (TREE, Law.DETERMINISTIC, COLD, verify.greedy),
    (TreeShape.chain(3), Law.IID, WARM, verify.chain),
    (TREE, Law.TOP_THEN_SAMPLE, WARM, verify.greedy_multidraft),
    (PAIRS, Law.HUB, Sampling(0.8), verify.spechub),
    (TREE, Law.DETERMINISTIC, Sampling(0.8), verify.onehot),
]


@pytest.fixture(autouse=True)
def _quick(request):
    if INTERPRETED:
        request.getfixturevalue("quick_interpreter")


def captured(model):
    twin = model.fresh()
    twin.run_by(Places().copying_runner, Passes("captured"))
    return twin


def rows(model):
    cache = model.runner.cache
    return [x[:, :, : cache.length] for layer in cache.layers for x in (layer.keys, layer.values)]


def steps(target, drafter, rule, sampling, coins):
    prompt = torch.randint(96, (9,), generator=torch.Generator().manual_seed(3))
    return [
        (step.tokens, step.verdict)
        for step in decode(
            target, drafter, rule, prompt, sampling=sampling, coins=coins, max_new_tokens=20
        )
    ]


@interpreted
@pytest.mark.parametrize(("shape", "law", "sampling", "rule"), CASES)
def test_verdicts_rows_and_coins(shape, law, sampling, rule, make_model, taped, monkeypatch):
    monkeypatch.setattr("treespec.sampling.children.LEAST_TOKENS_FOR_TOPK", 1000)
    model, draft = make_model(), make_model(seed=0)
    with torch.no_grad():  # drafts are accepted often, but not always
        draft.model.get_output_embeddings().weight.add_(
            0.1 * torch.randn(96, 32, generator=torch.Generator().manual_seed(1))
        )
    found, moves = [], []
    whole = TreeCache.keep_ahead
    monkeypatch.setattr(
        TreeCache, "keep_ahead", lambda self, *given: (moves.append(self), whole(self, *given))[1]
    )
    for ahead in (True, False):
        target = (GraphTarget if ahead else ModelTarget)(model)
        drafter = ModelDrafter(captured(draft) if ahead else draft, shape, law, sampling)
        coins = TorchCoins(5)
        told = steps(target, drafter, fused(rule) if ahead else rule, sampling, coins)
        found.append((told, [rows(target.model), rows(drafter.model)], coins.uniform()))
    (ours, our_rows, rest), (theirs, their_rows, their_rest) = found
    assert ours == theirs
    assert rest == their_rest
    assert any(len(verdict.path) > 1 for _, verdict in ours)
    for mine, right in zip(our_rows, their_rows, strict=True):
        for one, other in zip(mine, right, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert len(moves) == (0 if shape.is_chain else 2 * len(ours))


@interpreted
@pytest.mark.parametrize("refused", [False, True])
def test_a_step_is_read_once(refused, make_model, taped):
    """Ids and verdict in one transfer; a refused verdict is the rule's, and moves rows afterwards."""
    model = make_model()
    target, drafter = GraphTarget(model), ModelDrafter(captured(model), TREE, Law.IID, WARM)
    prompt = torch.arange(9)
    target.prefill(prompt)
    drafter.prefill(prompt)
    tree = drafter.propose(TorchCoins(0))
    assert isinstance(tree, UnreadTree)
    assert tree.is_unread
    scores = target.score(tree)
    decision = fused(verify.rrs).decide_ahead(tree, WARM.rows(scores.logits), TorchCoins(1))
    assert tree.is_unread
    if refused:
        decision.out[0] = 1
    before = target.model.runner.cache.layers[0].keys.clone()
    target.commit_ahead(tree, decision)
    assert torch.equal(before, target.model.runner.cache.layers[0].keys) is refused
    assert tree.is_unread
    with mock.patch.object(type(target.model.runner.cache._pools[0]), "move") as move:
        verdict = decision.verdict()
        assert verdict.path[-1] != len(verdict.path) - 1, "a path that moves"
        assert decision.stands is not refused
        assert not tree.is_unread
        target.model.keep(verdict.path)
    assert move.called is refused


@interpreted
def test_a_draft_that_is_not_finite_is_named_in_the_step(make_model, taped):
    model, draft = make_model(), make_model(seed=1)
    with torch.no_grad():
        draft.model.get_output_embeddings().weight[3] = torch.nan
    drafter = ModelDrafter(captured(draft), TREE, Law.IID, WARM)
    with pytest.raises(NonFiniteLogits, match=r"draft.*"):
        steps(GraphTarget(model), drafter, fused(verify.rrs), WARM, TorchCoins(0))


@interpreted
def test_rows_move_by_the_kernel(make_model):
    """The kernel skips the -1 behind the rows to move, and a source of -1 only."""
    from attention_masks import commit_kernel
    from attention_masks.commit_rows import _launch

    keys = torch.arange(12.0).reshape(1, 1, 1, 12, 1).clone()
    _launch(commit_kernel, keys, None, torch.tensor([5, 8, -1, -1]), 4)
    assert keys.flatten().tolist() == [0, 1, 2, 3, 5, 8, 6, 7, 8, 9, 10, 11]
    _launch(commit_kernel, keys, None, torch.tensor([-1, -1]), 4)
    assert keys.flatten().tolist() == [0, 1, 2, 3, 5, 8, 6, 7, 8, 9, 10, 11]


@plain
def test_paths_that_stay():
    assert kept_paths(TreeShape.chain(4), torch.device("cpu")) is None


@plain
def test_through_the_interpreter(interpret):
    assert "failed" not in interpret(__file__)
