"""The closed forms of some rules for the probability that each child is accepted."""

import numpy as np
import pytest
import torch

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, verify
from treespec.testing import tree_acceptance

RULES = [
    ("naive", Law.DETERMINISTIC), ("naive", Law.IID), ("naive", Law.WITHOUT_REPLACEMENT),
    ("onehot", Law.DETERMINISTIC), ("rrs", Law.IID), ("rrsw", Law.WITHOUT_REPLACEMENT),
    ("greedy", Law.DETERMINISTIC),
]  # fmt: skip


def test_only_lossless_rules_that_test_children_in_order_have_one():
    with_formula = {name: rule for name, rule in verify.RULES.items() if rule.child_acceptance}
    assert set(with_formula) == {name for name, _ in RULES}
    for rule in with_formula.values():
        assert rule.lossless
        assert rule.scope is verify.Scope.ELDERS


@pytest.mark.parametrize(("rule", "law"), RULES)
def test_acceptance_of_children_is_that_of_the_rules_own_code(rule, law, without_shape_checks):
    generator = torch.Generator().manual_seed(1)
    chosen = verify.RULES[rule]
    shape = TreeShape.expansion([4])
    for i in range(40):
        logits = 1.5 * torch.randn(2, 6, generator=generator, dtype=torch.float64)
        if i % 4 == 1:
            logits[1] += torch.tensor([0.0, 0, 0, -1e4, -1e4, -1e4])  # a draft of three tokens
        if i % 4 == 2:
            logits[0] = logits[1]
        if i % 4 == 3:
            logits[0] += torch.tensor([-1e4, -1e4, 0, 0, 0, 0])
        target, draft = Sampling(temperature=0.0 if chosen.one_hot else 1.0)(logits)
        if law is Law.DETERMINISTIC:
            children = logits[1:].topk(4).indices
        else:
            children = TorchCoins(i).draw_many(draft[None], 4, law)
        tokens = torch.cat([torch.zeros(1, dtype=torch.long), children[0]])
        probs = None if law is Law.DETERMINISTIC else draft[None]
        rows = torch.stack([target, *torch.eye(6, dtype=torch.float64)[:4]])
        right = tree_acceptance(chosen, TokenTree(shape, tokens, probs, law), rows).by_rank()
        found = chosen.child_acceptance(target, draft, children[0].tolist())
        np.testing.assert_allclose(found, right, atol=1e-12)
