"""Rules on the host: decided from copies of tensors on a device, or by the rule itself on the CPU."""

import importlib
import pickle
from unittest import mock

import pytest
import torch

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, verify
from treespec.errors import InvalidSetting, RefusedTree, Unavailable
from treespec.testing import assert_lossless
from treespec.verify.engine.on_host import on_host

on_host_module = importlib.import_module("treespec.verify.engine.on_host")

RULES = [
    *(verify.greedy, verify.naive, verify.chain, verify.rrs, verify.rrsw, verify.onehot),
    verify.traversal,
]


@pytest.mark.parametrize("rule", verify.RULES.values(), ids=str)
def test_attributes_are_the_rules(rule):
    verifier = pickle.loads(pickle.dumps(on_host(rule)))
    for name in ("laws", "lossless", "one_hot", "reference", "settings", "__name__"):
        assert getattr(verifier, name) == getattr(rule, name)
    assert (str(verifier), repr(verifier)) == (str(rule), f"on_host({rule})")
    foreign = TokenTree(TreeShape((-1, 0, 0)), torch.zeros(3).long(), torch.ones(1, 1), Law.HUB)
    if Law.HUB not in rule.laws:
        with pytest.raises(RefusedTree, match=f"'{rule}' does not cover"):
            verifier.require(foreign)


def test_other_settings():
    usual, never = on_host(verify.typical), on_host(verify.typical).using(epsilon=1.0, delta=1.0)
    assert never.settings == {"epsilon": 1.0, "delta": 1.0}
    assert usual.settings == verify.typical.settings
    tree = TokenTree(TreeShape((-1, 0)), torch.tensor([0, 1]), None, Law.DETERMINISTIC)
    rows = torch.tensor([[0.6, 0.4]]).expand(2, -1)  # exp(-H) is 0.51: more than 0.4 = p(1)
    for verifier, path in ((usual, (0, 1)), (pickle.loads(pickle.dumps(never)), (0,))):
        assert verifier(tree, rows, TorchCoins(0)).path == path
    with pytest.raises(InvalidSetting, match="settings: none"):
        on_host(verify.rrs).using(lenience=0.5)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("wrong", ["rrs", verify.rrs.__wrapped__, None])
def test_arguments_that_are_not_a_rule(wrong):
    with pytest.raises(TypeError, match=r"not an acceptance rule.*give a rule of treespec\.verify"):
        on_host(wrong)


def test_nothing_is_copied_on_the_cpu(random_tree, outcome):
    tree, logits = random_tree(verify.rrs, torch.Generator().manual_seed(0), 9, 6)
    with mock.patch.object(on_host_module, "_copy", side_effect=AssertionError("copied")):
        for rows in (Sampling().rows(logits), logits.softmax(-1), [*logits.softmax(-1)]):
            for seed in range(5):
                expected = outcome(verify.rrs, tree, rows, TorchCoins(seed))
                assert outcome(on_host(verify.rrs), tree, rows, TorchCoins(seed)) == expected


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("exact", [False, True])
def test_proofs_accept_the_verifier(exact):
    """The oracle's rows are neither tensors nor `SampledRows`, and are read one at a time."""
    shapes = [TreeShape((-1, 0, 0))]
    proof = assert_lossless(on_host(verify.rrs), shapes=shapes, tables=1, exact=exact)
    assert proof == assert_lossless(verify.rrs, shapes=shapes, tables=1, exact=exact)


def test_rows_of_unknown_kind_with_a_tree_on_a_device():
    draft = torch.ones(1, 1, device="meta")
    tree = TokenTree(TreeShape((-1, 0)), torch.zeros(2, dtype=torch.int64), draft, Law.IID)
    with pytest.raises(Unavailable, match=r"on_host\(rrs\) copies `Sampling.rows.*not list"):
        on_host(verify.rrs)(tree, [torch.ones(1), torch.ones(1)], TorchCoins(0))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_decides_by_the_copies(rule, random_tree, outcome):
    """Simulates a device: the originals count as remote, and are zeroed once they are copied."""
    for seed in range(10):
        tree, logits = random_tree(rule, torch.Generator().manual_seed(seed), 13, 7)
        sampling = Sampling(temperature=0.0) if rule.one_hot else Sampling(top_p=0.9)
        for rows in (sampling.rows(logits, "far"), sampling(logits)):
            expected = outcome(rule, tree, rows, TorchCoins(seed))
            remote = TokenTree(tree.shape, tree.tokens.clone(), tree.draft_probs.clone(), tree.law)
            originals = [remote.tokens, remote.draft_probs]

            def copy(tensor, originals=originals):
                clone = tensor.clone()
                if any(tensor is original for original in originals):
                    tensor.fill_(0)
                return clone

            with (
                mock.patch.object(
                    on_host_module, "_accelerators", return_value={torch.device("meta")}
                ),
                mock.patch.object(on_host_module, "_copy", copy),
            ):
                assert outcome(on_host(rule), remote, rows, TorchCoins(seed)) == expected
            assert not remote.draft_probs.any()
