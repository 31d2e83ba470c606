"""Functions that are not valid rules: `assert_lossless` refuses each with a message of its own."""

import random

import pytest

from treespec import Law, TreeShape, Verdict, verify
from treespec.errors import RefusedTree
from treespec.testing import NotLossless, assert_lossless

pytestmark = pytest.mark.usefixtures("without_shape_checks")

IID = {Law.IID}


def test_a_rule_that_writes_to_its_inputs_is_no_proof():
    def writes(tree, target_probs, coins):
        verdict = verify.rrs(tree, target_probs, coins)
        target_probs[0].mul_(0.5)
        return verdict

    def writes_to_the_draft(tree, target_probs, coins):
        verdict = verify.rrs(tree, target_probs, coins)
        if tree.draft_probs is not None:
            tree.draft_probs.add_(0)
        return verdict

    with pytest.raises(NotLossless, match=r"writes to its inputs, the target's row after \[0\]"):
        assert_lossless(writes, laws=IID)
    with pytest.raises(NotLossless, match="writes to its inputs, tokens or draft_probs"):
        assert_lossless(writes_to_the_draft, laws=IID)


def test_chance_that_is_not_the_coins_is_no_proof():
    chance = random.Random(0)

    def moved(row):
        row = row + chance.random() / 10
        return row / row.sum()

    def of_its_own(tree, target_probs, coins):
        return verify.rrs(tree, [moved(row) for row in every(tree, target_probs)], coins)

    with pytest.raises(NotLossless, match="not a function of the tree, the rows and the coins"):
        assert_lossless(of_its_own, laws=IID)


def test_a_rule_that_counts_its_calls_is_no_proof():
    calls = []

    def every_other_time(tree, target_probs, coins):
        calls.append(None)
        rule = verify.rrs if len(calls) % 2 else verify.naive
        return rule(tree, target_probs, coins)

    with pytest.raises(NotLossless, match="not a function of the tree, the rows and the coins"):
        assert_lossless(every_other_time, laws=IID)


def test_a_path_that_does_not_descend_is_no_proof():
    def jumps(tree, target_probs, coins):
        return Verdict((0, tree.shape.size - 1), coins.draw(target_probs[0]))

    with pytest.raises(NotLossless, match="the path does not descend from the root"):
        assert_lossless(jumps, laws=IID, shapes=[TreeShape.chain(2)])


def every(tree, rows):
    return [rows[node] for node in range(tree.shape.size)]


def test_a_rule_that_refuses_is_told_in_its_own_words():
    def refuses(tree, target_probs, coins):
        raise RefusedTree("two children at most")

    with pytest.raises(NotLossless, match=r"it refuses: two children at most$"):
        assert_lossless(refuses, laws=IID, shapes=[TreeShape.chain(2)])
