"""Steps on a CUDA device: trees drafted as one graph, rows moved ahead, and one synchronisation."""

import warnings
from itertools import pairwise

import pytest
import torch

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, verify
from treespec.draft import ModelDrafter
from treespec.models.pass_kinds import Passes
from treespec.models.passes.captured_runner import Places
from treespec.models.passes.layers_trial import compiled_layers
from treespec.target import ModelTarget
from treespec.target.graph import GraphTarget
from treespec.tree.unread_tree import UnreadTree

pytestmark = pytest.mark.gpu

WARM, COLD = Sampling(), Sampling(temperature=0.0)
TREE = TreeShape.from_parents([-1, 0, 0, 0, 1, 1, 2, 4, 4, 6])
CASES = [
    (TREE, Law.WITHOUT_REPLACEMENT, WARM, verify.rrsw),
    (TREE, Law.IID, Sampling(0.8, top_p=0.9), verify.rrs),
    (TREE, Law.DETERMINISTIC, COLD, verify.greedy),
    (TreeShape.expansion([3, 2, 1, 1]), Law.DETERMINISTIC, COLD, verify.greedy),
    (TreeShape.chain(4), Law.IID, WARM, verify.chain),
    (TREE, Law.TOP_THEN_SAMPLE, Sampling(0.8, top_k=20), verify.greedy_multidraft),
    (TreeShape((-1, 0, 0, 1, 1, 2, 2)), Law.HUB, Sampling(eta_cutoff=0.01), verify.spechub),
]


def captured(model):
    twin = model.fresh()
    layers = compiled_layers(model).layers
    assert layers is not None, "layers of these models compile"
    twin.run_by(Places(layers).copying_runner, Passes("captured"))
    return twin


def rows(model):
    cache = model.runner.cache
    return [x[:, :, : cache.length] for layer in cache.layers for x in (layer.keys, layer.values)]


@pytest.mark.parametrize(("shape", "law", "sampling", "rule"), CASES)
def test_texts_rows_and_coins(shape, law, sampling, rule, make_model):
    model, draft = (make_model(device="cuda", attention="triton") for _ in range(2))
    with torch.no_grad():  # drafts are accepted often, but not always
        head = draft.model.get_output_embeddings().weight
        head += 0.1 * torch.randn(96, 32, generator=torch.Generator().manual_seed(1)).cuda()
    prompt, found = torch.arange(20).cuda(), []
    for ahead in (True, False):
        target = (GraphTarget if ahead else ModelTarget)(model)
        drafter = ModelDrafter(captured(draft) if ahead else draft, shape, law, sampling)
        verifier = verify.verifier_for(rule, model) if ahead else rule
        coins = TorchCoins(5)
        told = []
        for step in decode(
            target, drafter, verifier, prompt, sampling=sampling, coins=coins, max_new_tokens=60
        ):
            assert isinstance(step.tree, UnreadTree) is ahead
            told.append((step.tokens, step.verdict))
        found.append((told, [rows(target.model), rows(drafter.model)], coins.uniform()))
    (ours, our_rows, rest), (theirs, their_rows, their_rest) = found
    assert ours == theirs
    assert rest == their_rest
    for mine, right in zip(our_rows, their_rows, strict=True):
        for one, other in zip(mine, right, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("shape", "law", "sampling", "rule"), CASES)
def test_a_step_waits_once(shape, law, sampling, rule, make_model):
    model, draft = (make_model(seed=seed, device="cuda") for seed in (0, 1))
    draft = captured(draft)
    for each in (model, draft):
        each.reserve(256)
    verifier = verify.verifier_for(rule, model)
    for warm in (True, False):  # graphs are captured and kernels compiled by the first text
        drafter, waits = ModelDrafter(draft, shape, law, sampling), []
        steps = decode(
            GraphTarget(model), drafter, verifier, torch.arange(20).cuda(), sampling=sampling,
            coins=TorchCoins(5), max_new_tokens=60,
        )  # fmt: skip
        next(steps)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                for _ in steps:
                    waits.append(len(caught))
            finally:
                torch.cuda.set_sync_debug_mode("default")
        if not warm:
            assert {b - a for a, b in pairwise(waits)} <= {1}
