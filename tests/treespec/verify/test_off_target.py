"""The price of lossy rules: how far the law of their tokens is from the target's, against enumeration."""

from itertools import product

import pytest
import torch

from treespec.step import Verdict
from treespec.testing import outcomes
from treespec.tree import Law, TokenTree, TreeShape
from treespec.verify import lenient, rrs, typical

P = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
Q = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


def star(tokens, law=Law.IID, draft_probs=Q):
    shape = TreeShape.independent_chains(len(tokens), 1)
    rows = None if law is Law.DETERMINISTIC else draft_probs[None]
    return TokenTree(shape, torch.tensor([0, *tokens]), rows, law)


def next_token_law(rule, tree, rows):
    """The law of the first emitted token, over all coins, by the rule's own code."""
    law = torch.zeros_like(P)
    for weight, verdict in outcomes(lambda coins: rule(tree, rows, coins)):
        path = verdict.path
        law[tree.token_ids[path[1]] if len(path) > 1 else verdict.bonus] += float(weight)
    return law


@pytest.mark.parametrize("children", [1, 2, 3])
@pytest.mark.parametrize("lenience", [1.0, 0.7, 0.25, 0.0])
def test_lenience_costs_what_enumeration_says(children, lenience):
    rule = lenient.using(lenience=lenience)
    law = torch.zeros_like(P)
    for tokens in product(range(4), repeat=children):
        tree = star(tokens)
        law += Q[list(tokens)].prod() * next_token_law(rule, tree, P.expand(tree.shape.size, 4))
    found = rule.off_target(star([0] * children), P[None], Verdict((0,), 1))
    assert found == pytest.approx(float((law - P).abs().sum()) / 2, abs=1e-12)
    assert (found > 1e-3) == (lenience < 1)


def test_typical_acceptance_costs_what_the_accepted_token_is_not():
    tree = star([1, 3], Law.DETERMINISTIC)
    rows = P.expand(3, 4)
    verdict = next(iter(outcomes(lambda coins: typical(tree, rows, coins))))[1]
    assert verdict.path == (0, 1)
    law = next_token_law(typical, tree, rows)
    assert typical.off_target(tree, rows, verdict) == pytest.approx(
        float((law - P).abs().sum()) / 2
    )
    assert typical.off_target(tree, rows, Verdict((0,), 1)) == 0.0


def test_a_lossless_rule_costs_nothing():
    assert rrs.off_target(star([1]), P[None], Verdict((0, 1), 1)) == 0.0
