"""The oracle itself: laws, acceptance, cases."""

from fractions import Fraction

import pytest
import torch

from treespec import Law, Sampling, TokenTree, TreeShape, Verdict, verify
from treespec.errors import InvalidTree
from treespec.testing import (
    NotLossless,
    Rationals,
    TabularModel,
    acceptance,
    adversarial_pairs,
    assert_lossless,
    covers,
    output_law,
    random_table,
    step_law,
    target_law,
    tree_acceptance,
)
from treespec.testing.exact import exactly

pytestmark = pytest.mark.usefixtures("without_shape_checks")

P, Q = [0.5, 0.3, 0.2], [0.2, 0.6, 0.2]


def table(row):
    logits = torch.tensor(row, dtype=torch.float64).log()
    return TabularModel(lambda context: logits, len(row))


def tables(seed, vocab=3):
    return {
        "target": TabularModel(random_table(vocab, seed), vocab),
        "draft": TabularModel(random_table(vocab, seed + 1), vocab),
    }


def test_acceptance_of_one_draft_is_the_overlap():
    found = acceptance(verify.rrs, TreeShape.chain(1), Law.IID, target=table(P), draft=table(Q))
    assert found.expected == pytest.approx(0.2 + 0.3 + 0.2)
    assert found.reached == pytest.approx((1, 0.7))


def test_acceptance_by_rank():
    """Naive sampling of the top two accepts each with probability p; the first child has no children."""
    found = acceptance(
        verify.naive, TreeShape.expansion([2]), Law.DETERMINISTIC, target=table(P), draft=table(Q)
    )
    assert found.by_rank() == pytest.approx((0.3, 0.5))
    shape = TreeShape.from_parents([-1, 0, 0, 1])
    found = acceptance(verify.naive, shape, Law.DETERMINISTIC, target=table(P), draft=table(Q))
    assert found.by_rank(1) == pytest.approx((0.3,))
    assert found.expected == pytest.approx(0.3 + 0.5 + 0.3 * 0.3)


def test_a_node_that_is_never_accepted():
    found = acceptance(
        verify.naive, TreeShape.chain(2), Law.DETERMINISTIC, target=table([1, 1e-300, 1e-300]),
        draft=table([0.1, 0.8, 0.1]),
    )  # fmt: skip
    assert found.by_rank(1) == (0,) or found.reached[1] < 1e-200


def test_exact_laws_sum_to_one_without_rounding():
    found = step_law(verify.rrs, TreeShape.expansion([2]), Law.IID, exact=True, **tables(0))
    assert sum(found.probs.flatten(0).tolist()) == 1
    assert isinstance(found.probs, Rationals)


def test_exact_output_law_is_the_targets():
    parts = tables(4)
    found = output_law(verify.rrs, TreeShape.chain(1), Law.IID, tokens=2, exact=True, **parts)
    right = target_law(parts["target"], (0,), 2, Sampling())
    assert sum(found.probs.flatten(0).tolist()) == 1
    assert torch.allclose(torch.tensor(found.probs.numpy()), right, atol=1e-12)


def test_exact_acceptance_is_a_fraction():
    found = acceptance(verify.rrs, TreeShape.expansion([2]), Law.IID, exact=True, **tables(0))
    floats = acceptance(verify.rrs, TreeShape.expansion([2]), Law.IID, **tables(0))
    assert isinstance(found.expected, Fraction)
    assert float(found.expected) == pytest.approx(floats.expected)


def test_acceptance_of_one_tree_at_a_large_vocabulary():
    generator = torch.Generator().manual_seed(0)
    p, q = (2 * torch.randn(2, 5000, generator=generator, dtype=torch.float64)).softmax(-1)
    token = int(q.argmax())
    tree = TokenTree(TreeShape.chain(1), torch.tensor([0, token]), q[None], Law.IID)
    found = tree_acceptance(verify.rrs, tree, p.expand(2, -1))
    assert found.expected == pytest.approx(min(1, float(p[token] / q[token])))
    assert found.runs <= 4
    found = tree_acceptance(verify.naive, tree, p.expand(2, -1))
    assert found.expected == pytest.approx(float(p[token]))


def test_the_adversarial_cases_are_what_they_say():
    pairs = {pair.name: pair for pair in adversarial_pairs(3, seed=0)}

    def rows(name):
        pair = pairs[name]
        return (pair.sampling(model.row((0,))) for model in (pair.target, pair.draft))

    p, q = rows("disjoint supports")
    assert float(torch.minimum(p, q).sum()) == 0
    p, q = rows("p = q")
    assert torch.equal(p, q)
    p, q = rows("a draft of one token")
    assert q.tolist() == [1, 0, 0]
    p, q = rows("a tie of the draft's best")
    assert q.tolist().count(float(q.max())) >= 1
    p, q = rows("top-k 2")
    assert (p == 0).sum() == (q == 0).sum() == 1
    assert len(pairs) >= 15


def test_what_a_rule_covers():
    assert covers(verify.rrs, TreeShape.kary(2, 2), Law.IID, 3)
    assert not covers(verify.block, TreeShape.kary(2, 2), Law.IID, 3)
    assert not covers(verify.naive, TreeShape.expansion([4]), Law.WITHOUT_REPLACEMENT, 3)
    assert not covers(verify.spechub, TreeShape.expansion([3]), Law.HUB, 5)


def test_a_rule_of_ones_own_needs_no_decorator():
    def own(tree, target_probs, coins):
        return verify.naive(tree, target_probs, coins)

    assert assert_lossless(own, laws=[Law.IID], shapes=[TreeShape.chain(2)]).cases > 0


class OneOrTwo:
    """Adds a second child unless the first is likely."""

    laws, max_depth = frozenset({Law.WITHOUT_REPLACEMENT, Law.IID}), 1

    def next(self, shape, probs):
        return [(0, 1)] if shape.size == 1 or (shape.size == 2 and probs()[1] < 0.5) else ()


def test_growths_are_tried_with_the_laws_of_both_and_no_shapes_beside_them():
    growth = assert_lossless(verify.rrsw, growths=[OneOrTwo()], tables=1)
    in_float32 = 1 + 2
    assert growth.cases == len(list(adversarial_pairs(3, 0))) + 1 + in_float32
    beside = assert_lossless(
        verify.rrsw, growths=[OneOrTwo()], shapes=[TreeShape.chain(1)], tables=1
    )
    assert beside.cases == 2 * growth.cases
    assert assert_lossless(verify.naive, growths=[OneOrTwo()], tables=1).cases == beside.cases
    with pytest.raises(NotLossless, match="nothing was enumerated for rule onehot"):
        assert_lossless(verify.onehot, growths=[OneOrTwo()], tables=1)


def test_a_rule_that_fails_on_a_growth_names_it():
    def always(tree, target_probs, coins):
        return Verdict(tuple(tree.shape.path(tree.shape.leaves[0])), coins.draw(target_probs[0]))

    with pytest.raises(NotLossless, match="OneOrTwo"):
        assert_lossless(always, laws=[Law.IID], growths=[OneOrTwo()], tables=1)


def test_laws_may_be_given_by_name():
    by_name = acceptance(verify.rrs, TreeShape.expansion([2]), "iid", **tables(0))
    by_law = acceptance(verify.rrs, TreeShape.expansion([2]), Law.IID, **tables(0))
    assert by_name.expected == by_law.expected
    assert assert_lossless(verify.rrs, laws=["iid"], shapes=[TreeShape.chain(1)]).cases > 0
    row = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    by_name, by_law = (
        verify.optimal_acceptance(row.flip(0), row, 2, law) for law in ("iid", Law.IID)
    )
    assert by_name == by_law
    with pytest.raises(InvalidTree, match="law = 'idd' is not a law: choose one of iid"):
        verify.optimal_acceptance(row, row, 2, "idd")


def test_fractions_of_small_denominators_lose_no_token():
    flat = TabularModel(lambda context: torch.zeros(60, dtype=torch.float64), 60)
    row = exactly(flat, Sampling(), denominator=24).row((0,))
    assert row.tolist() == [Fraction(1, 60)] * 60


def test_acceptance_of_one_tree_by_the_transport_rule():
    row = torch.tensor([0.2, 0.3, 0.1, 0.2, 0.2], dtype=torch.float64)
    tree = TokenTree(TreeShape.expansion([2]), torch.tensor([0, 3, 4]), row[None], Law.IID)
    found = tree_acceptance(verify.optimal_transport, tree, row.expand(3, -1))
    assert found.expected == pytest.approx(1)
