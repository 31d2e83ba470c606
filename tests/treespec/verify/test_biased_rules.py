"""Rules and drafters with classic bugs of the field. `assert_lossless` must catch each of them."""

from dataclasses import replace
from functools import wraps
from itertools import pairwise

import pytest
import torch

from treespec import Law, Sampling, TreeShape, Verdict, verify
from treespec.draft import ModelDrafter
from treespec.sampling.children import top_k
from treespec.sampling.distributions import residual
from treespec.testing import NotLossless, assert_lossless
from treespec.verify import NodeChoice, top_down
from treespec.verify.block import block_along
from treespec.verify.rrs import in_draw_order
from treespec.verify.rule import ratio

pytestmark = pytest.mark.usefixtures("without_shape_checks")

IID, WITHOUT = [Law.IID], [Law.WITHOUT_REPLACEMENT]


def per_node(decide):
    @wraps(decide)
    def rule(tree, target_probs, coins):
        return top_down(tree, target_probs, coins, decide)

    return rule


def name_of(value):
    return getattr(value, "__name__", getattr(value, "parents", None))


@per_node
def residual_not_renormalised(p, q, children, coins):
    left = p
    for child, token in enumerate(children):
        if coins.accept(left[token] / q[token]):
            return NodeChoice(child=child)
        left = (left - q).clamp_min(0)
        if left.sum() == 0:
            left = p
    return NodeChoice(token=coins.draw(left))


@per_node
def residual_forgotten(p, q, children, coins):
    for child, token in enumerate(children):
        if coins.accept(p[token] / q[token]):
            return NodeChoice(child=child)
    return NodeChoice(token=coins.draw(p))


@per_node
def draft_not_masked_after_a_rejection(p, q, children, coins):
    left = p
    for child, token in enumerate(children):
        if coins.accept(left[token] / q[token]):
            return NodeChoice(child=child)
        left = residual(left, q)
    return NodeChoice(token=coins.draw(left))


@per_node
def redraw_on_mismatch(p, q, children, coins):
    for child, token in enumerate(children):
        if coins.draw(p) == token:
            return NodeChoice(child=child)
    return NodeChoice(token=coins.draw(p))


def bonus_from_the_root(tree, target_probs, coins):
    verdict = verify.naive(tree, target_probs, coins)
    return Verdict(verdict.path, coins.draw(target_probs[0])) if verdict.accepted else verdict


@per_node
def bonus_without_the_sampling_settings(p, q, children, coins):
    """After a rejection, the bonus is drawn from a row without top-k and top-p."""
    choice = in_draw_order(p, q, children, coins)
    if choice.token is None:
        return choice
    return NodeChoice(token=coins.draw(p + 0.01))


@per_node
def kseq_with_a_factor_too_small(p, q, children, coins):
    for child, token in enumerate(children):
        if coins.accept(p[token] / q[token]):
            return NodeChoice(child=child)
    return NodeChoice(token=coins.draw(residual(p, q)))


@per_node
def greedy_multidraft_against_the_whole_draft(p, q, children, coins):
    """q in place of q~, which is 0 on the deterministic tokens."""
    if coins.accept(p[children[-1]] / q[children[-1]]):
        return NodeChoice(child=len(children) - 1)
    return NodeChoice.of(coins.draw(residual(p, q)), children)


@per_node
def spechub_that_forgets_what_the_hub_took(p, q, children, coins):
    hub = int(q.argmax())
    if len(children) < 2 or q[hub] == 1:
        return in_draw_order(p, q, children, coins)
    spoke = children[0] if children[1] == hub else children[1]
    if coins.accept(p[spoke] / q[spoke]):
        return NodeChoice(child=children.index(spoke))
    return NodeChoice.of(coins.draw(residual(p, q.index_fill(0, torch.tensor(hub), 0))), children)


def block_without_the_joint_share(tree, target_probs, coins):
    """Tests each prefix by its last token alone."""
    path = tree.shape.path(tree.shape.leaves[0])
    for i in range(len(path) - 1, 0, -1):
        p, q = target_probs[path[i - 1]], tree.draft_probs_of(path[i - 1])
        token = tree.token_ids[path[i]]
        if coins.accept(p[token] / q[token]):
            return Verdict(path[: i + 1], coins.draw(target_probs[path[i]]))
    p = target_probs[0]
    left = residual(p, tree.draft_probs_of(0)) if len(path) > 1 else p
    return Verdict((0,), coins.draw(left))


def traversal_without_deleting_the_token(tree, target_probs, coins):
    """Treats children drawn without replacement as independent."""
    relabelled = replace(tree, law=Law.IID)
    return verify.traversal(relabelled, target_probs, coins)


def gbv_with_the_law_of_a_single_path(tree, target_probs, coins):
    """Verifies the best of K paths as if it were the only one."""
    token = max(
        (tree.token_ids[c] for c in tree.shape.children[0]),
        key=lambda t: float(target_probs[0][t] / tree.draft_probs_of(0)[t]),
    )
    child = next(c for c in tree.shape.children[0] if tree.token_ids[c] == token)
    path = next(tree.shape.path(n) for n in tree.shape.leaves if child in tree.shape.path(n))
    odds = [
        ratio(target_probs[node], tree.draft_probs_of(node), tree.token_ids[below])
        for node, below in pairwise(path)
    ]
    return block_along(path, odds, target_probs, lambda i: tree.draft_probs_of(path[i]), coins)


def resorted(drafter):
    """A drafter that sorts children by token after drawing them."""

    class Resorted(drafter):
        def propose(self, coins):
            tree = super().propose(coins)
            tokens = list(tree.token_ids)
            for children in tree.shape.children:
                for node, token in zip(children, sorted(tokens[c] for c in children), strict=True):
                    tokens[node] = token
            return replace(tree, tokens=torch.tensor(tokens))

    return Resorted


class TopKCalledIID(ModelDrafter):
    """Takes the k most probable tokens, but labels them as drawn."""

    def propose(self, coins):
        class Fixed(type(coins)):
            def draw_many(self, probabilities, k, law):
                return top_k(probabilities, k)

        return super().propose(Fixed())


WIDE = [TreeShape.expansion([2]), TreeShape.expansion([2, 1])]


@pytest.mark.parametrize(
    ("rule", "laws"),
    [
        (residual_not_renormalised, IID),
        (residual_forgotten, IID),
        (draft_not_masked_after_a_rejection, WITHOUT),
        (redraw_on_mismatch, [Law.DETERMINISTIC]),
        (bonus_from_the_root, IID),
        (bonus_without_the_sampling_settings, IID),
        (kseq_with_a_factor_too_small, IID),
        (greedy_multidraft_against_the_whole_draft, [Law.TOP_THEN_SAMPLE]),
        (spechub_that_forgets_what_the_hub_took, [Law.HUB]),
        (traversal_without_deleting_the_token, WITHOUT),
    ],
    ids=name_of,
)
def test_a_biased_rule_fails(rule, laws):
    with pytest.raises(NotLossless) as failure:
        assert_lossless(rule, laws=laws)
    text = str(failure.value)
    assert "largest error" in text
    assert "instead of" in text


@pytest.mark.parametrize(
    ("rule", "shape"),
    [
        (block_without_the_joint_share, TreeShape.chain(2)),
        (gbv_with_the_law_of_a_single_path, TreeShape.independent_chains(2, 1)),
        (gbv_with_the_law_of_a_single_path, TreeShape.independent_chains(2, 2)),
    ],
    ids=name_of,
)
def test_a_biased_rule_of_paths_fails(rule, shape):
    with pytest.raises(NotLossless):
        assert_lossless(rule, laws=IID, shapes=[shape])


def test_top_p_that_only_the_accepted_tokens_know_fails():
    """The bonus is drawn from rows before top-p: correct without top-p, wrong with it."""

    def rule(tree, target_probs, coins):
        verdict = verify.rrs(tree, target_probs, coins)
        blunt = (target_probs[verdict.path[-1]] + 0.05) / (1 + 0.05 * 3)
        return Verdict(verdict.path, coins.draw(blunt)) if verdict.accepted else verdict

    with pytest.raises(NotLossless):
        assert_lossless(rule, laws=IID, tables=0, samplings=[Sampling(top_p=0.7)])


@pytest.mark.parametrize("rule", [verify.typical, verify.lenient], ids=str)
def test_lossy_rules_are_not_lossless(rule):
    with pytest.raises(NotLossless):
        assert_lossless(rule)
    assert assert_lossless(verify.lenient.using(lenience=1), shapes=WIDE).cases > 0


def test_rrs_on_top_k_children_fails():
    with pytest.raises(NotLossless):
        assert_lossless(verify.rrs, draft_with=TopKCalledIID)


@pytest.mark.parametrize(("rule", "laws"), [(verify.rrs, IID), (verify.rrsw, WITHOUT)], ids=str)
def test_drawn_children_resorted_by_token_fail(rule, laws):
    with pytest.raises(NotLossless):
        assert_lossless(rule, laws=laws, shapes=WIDE, draft_with=resorted(ModelDrafter))


def test_the_failure_names_the_smallest_tree():
    with pytest.raises(NotLossless) as failure:
        assert_lossless(residual_forgotten, laws=IID)
    assert "\n0\n└─ 1\nlargest" in str(failure.value)


@per_node
def residual_divided_by_nothing(p, q, children, coins):
    left = p
    for child, token in enumerate(children):
        if coins.accept(left[token] / q[token]):
            return NodeChoice(child=child)
        left = (left - q).clamp_min(0)
        left = left / left.sum()
    return NodeChoice(token=coins.draw(left))


def test_proofs_include_a_residual_without_mass():
    with pytest.raises(NotLossless, match=r"a residual without mass(.|\n)*without positive mass"):
        assert_lossless(residual_divided_by_nothing, laws=IID)


def test_a_bonus_outside_the_vocabulary_fails():
    def rule(tree, target_probs, coins):
        return Verdict((0,), 3)

    with pytest.raises(NotLossless, match="the bonus is not one of the 3 tokens"):
        assert_lossless(rule, laws=IID)


def test_the_failure_shows_the_first_law_that_is_wrong():
    """The first token has the right law; the token after it has not."""

    def rule(tree, target_probs, coins):
        verdict = verify.rrs(tree, target_probs, coins)
        return Verdict(verdict.path, 0) if verdict.accepted else verdict

    with pytest.raises(NotLossless, match=r"law after \[\d\]: \[1.0, 0.0, 0.0\] instead of"):
        assert_lossless(rule, laws=IID)
