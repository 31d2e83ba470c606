"""Relations between rules that theory states, checked exactly on random tables."""

import itertools
import math
from collections import defaultdict

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from treespec import Law, Sampling, TokenTree, TreeShape, verify
from treespec.draft import ModelDrafter
from treespec.testing import (
    StepOracle,
    TabularModel,
    acceptance,
    outcomes,
    plane_trees,
    random_table,
    tree_acceptance,
)
from treespec.verify import optimal_acceptance

pytestmark = pytest.mark.usefixtures("without_shape_checks")

ROUNDING = 1e-9
VOCAB = 4


@st.composite
def rows(draw, vocab=VOCAB):
    """A target's and a draft's row; some tokens have no mass in one of them."""
    weights = st.lists(st.integers(0, 12), min_size=vocab, max_size=vocab)
    pair = draw(weights.filter(any)), draw(weights.filter(any))
    return tuple(torch.tensor(w, dtype=torch.float64) / sum(w) for w in pair)


def at_node(rule, law, k, probs, draft_probs):
    """Acceptance of a rule at one node with k children."""
    target, draft = (
        TabularModel(lambda context, row=row: row.log().clamp(min=-1e4), len(row))
        for row in (probs, draft_probs)
    )
    return acceptance(rule, TreeShape.expansion([k]), law, target=target, draft=draft).expected


@settings(max_examples=20)
@given(rows(), st.integers(1, 3))
def test_naive_rrs_kseq_optimal(pair, k):
    rates = [at_node(rule, Law.IID, k, *pair) for rule in (verify.naive, verify.rrs, verify.kseq)]
    rates.append(at_node(verify.optimal_transport, Law.IID, k, *pair))
    ceiling = optimal_acceptance(*pair, k, Law.IID)
    assert rates == sorted(rates) or max(a - b for a, b in itertools.pairwise(rates)) < (ROUNDING)
    assert rates[-1] == pytest.approx(ceiling, abs=ROUNDING)


@settings(max_examples=10)
@given(rows(), st.integers(1, 3))
def test_no_rule_passes_the_ceiling_of_its_law(pair, k):
    for rule in verify.RULES.values():
        if not rule.lossless or rule.one_hot:
            continue
        for law in rule.laws:
            if law is Law.HUB and k > 2:
                continue
            if k > 1 and str(rule) in ("chain", "block"):
                continue
            rate = at_node(rule, law, k, *pair)
            assert rate <= optimal_acceptance(*pair, k, law) + ROUNDING, (str(rule), law)


@settings(max_examples=20)
@given(rows())
def test_rules_that_reach_the_ceiling(pair):
    """Greedy multi-draft for any k, the canonical decomposition for two drafts."""
    for k in (1, 2, 3):
        rate = at_node(verify.greedy_multidraft, Law.TOP_THEN_SAMPLE, k, *pair)
        ceiling = optimal_acceptance(*pair, k, Law.TOP_THEN_SAMPLE)
        assert rate == pytest.approx(ceiling, abs=ROUNDING)
    rate = at_node(verify.canonical, Law.IID, 2, *pair)
    assert rate == pytest.approx(optimal_acceptance(*pair, 2, Law.IID), abs=ROUNDING)


@settings(max_examples=20)
@given(rows(), st.integers(1, 3))
def test_rrs_is_at_most_rrsw(pair, k):
    with_replacement = at_node(verify.rrs, Law.IID, k, *pair)
    assert with_replacement <= at_node(verify.rrsw, Law.WITHOUT_REPLACEMENT, k, *pair) + ROUNDING


def test_kseq_can_beat_rrsw():
    """K-SEQ uses all drafts at once, rrsw one after the other: neither dominates."""
    probs, draft_probs = torch.tensor([[0, 7, 9], [2, 5, 9]], dtype=torch.float64) / 16
    kseq = at_node(verify.kseq, Law.IID, 2, probs, draft_probs)
    rrsw = at_node(verify.rrsw, Law.WITHOUT_REPLACEMENT, 2, probs, draft_probs)
    assert kseq > rrsw + 1e-3


def verdicts(rule, shape, law, seed):
    """The exact law of a rule's verdicts together with the drafted tokens."""
    target, draft = (TabularModel(random_table(3, 2 * seed + i), 3) for i in (0, 1))
    oracle = StepOracle(
        shape, law, target=target, draft=draft, prompt=(0,), sampling=Sampling(),
        draft_with=ModelDrafter,
    )  # fmt: skip
    found = defaultdict(float)
    for weight, tree, verdict in oracle.verdicts(rule):
        found[tree.token_ids, verdict.path, verdict.bonus] += weight
    return found


def assert_same_law(left, right):
    assert left.keys() | right.keys()
    for key in left.keys() | right.keys():
        assert left[key] == pytest.approx(right[key], abs=1e-12), key


@pytest.mark.parametrize("law", [Law.IID, Law.WITHOUT_REPLACEMENT], ids=str)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_traversal_of_a_chain_is_block_verification(depth, law):
    for seed in range(5):
        shape = TreeShape.chain(depth)
        assert_same_law(
            verdicts(verify.traversal, shape, law, seed), verdicts(verify.block, shape, law, seed)
        )


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_gbv_of_one_path_is_block_verification(depth):
    for seed in range(5):
        shape = TreeShape.chain(depth)
        assert_same_law(
            verdicts(verify.gbv, shape, Law.IID, seed), verdicts(verify.block, shape, Law.IID, seed)
        )


@pytest.mark.parametrize("size", [2, 3, 4])
def test_one_hot_is_naive_sampling_on_distinct_children(size):
    for shape in plane_trees(size):
        for seed in range(3):
            laws = []
            for rule in (verify.onehot, verify.naive):
                law = verdicts(rule, shape, Law.DETERMINISTIC, seed)
                assert math.isclose(sum(law.values()), 1)
                laws.append(law)
            assert_same_law(*laws)


@pytest.mark.parametrize("depth", [2, 3])
def test_block_accepts_at_least_as_much_as_chain_rejection(depth):
    better = 0
    for seed in range(30):
        target, draft = (TabularModel(random_table(3, 2 * seed + i), 3) for i in (0, 1))
        block, chain = (
            acceptance(rule, TreeShape.chain(depth), Law.IID, target=target, draft=draft).expected
            for rule in (verify.block, verify.chain)
        )
        assert block >= chain - 1e-12
        better += block > chain + 1e-6
    assert better > 0


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(TreeShape.kary(2, 2), marks=pytest.mark.slow),
        TreeShape.independent_chains(2, 2),
    ],
)
def test_rules_of_whole_paths_accept_at_least_as_much_as_rrs(shape):
    for seed in range(5):
        target, draft = (TabularModel(random_table(3, 2 * seed + i), 3) for i in (0, 1))
        rates = {
            rule: acceptance(rule, shape, Law.IID, target=target, draft=draft).expected
            for rule in (verify.rrs, verify.traversal)
        }
        assert rates[verify.traversal] >= rates[verify.rrs] - 1e-12


@given(rows(), st.data())
def test_acceptance_of_one_drafted_tree_lumps_the_tokens_that_it_does_not_hold(pair, data):
    """The oracle for large vocabularies against full enumeration."""
    probs, draft_probs = pair
    drawn = [t for t in range(VOCAB) if draft_probs[t] > 0]
    assume(len(drawn) >= 1)
    tokens = data.draw(st.lists(st.sampled_from(drawn), min_size=2, max_size=2))
    tree = TokenTree(
        TreeShape.expansion([2]), torch.tensor([0, *tokens]), draft_probs[None], Law.IID
    )
    table = probs.expand(3, -1)
    for rule in (verify.naive, verify.rrs, verify.kseq, verify.traversal, verify.gbv):
        full = sum(w for w, v in outcomes(lambda c, r=rule: r(tree, table, c)) if v.accepted)
        assert tree_acceptance(rule, tree, table).expected == pytest.approx(full, abs=1e-12)
