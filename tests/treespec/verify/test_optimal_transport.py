from fractions import Fraction
from importlib import import_module
from itertools import product
from subprocess import run
from sys import executable

import pytest
import torch

from treespec import Law, TokenTree, TorchCoins, TreeShape, verify
from treespec.errors import InvalidTree, RefusedTree
from treespec.testing import assert_lossless, outcomes
from treespec.testing.rationals import Rationals
from treespec.verify.drafted_sets import count_sets, drafted_sets
from treespec.verify.largest_flow import largest_flow
from treespec.verify.optimal_acceptance import optimal_acceptance
from treespec.verify.optimal_transport import optimal_transport, transport_plan

LAWS = [Law.IID, Law.WITHOUT_REPLACEMENT]


def random_rows(size, seed, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, size, generator=generator, dtype=torch.float64) * spread
    return logits.softmax(-1)


def tree_of(law, tokens, draft):
    shape = TreeShape.expansion([len(tokens)])
    return TokenTree(shape, torch.tensor([0, *tokens]), draft[None], law)


def acceptance(rule, law, target, draft, k):
    """P(a child is accepted) at one node, over all drafts and coins."""
    total = 0.0
    for drafted, tokens in outcomes(lambda c: c.draw_many(draft[None], k, law)[0].tolist()):
        tree, rows = tree_of(law, tokens, draft), target.expand(k + 1, -1)
        total += drafted * sum(
            w for w, v in outcomes(lambda c, t=tree, r=rows: rule(t, r, c)) if v.accepted
        )
    return total


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_lossless_with_more_tokens_and_children(law):
    shapes = [TreeShape.expansion([3]), TreeShape.expansion([2])]
    assert assert_lossless(optimal_transport, laws=[law], shapes=shapes, vocab=4, seed=3).cases
    # Four distinct children from four tokens: some tables exhaust the draft's support.
    shape = TreeShape.expansion([4])
    assert assert_lossless(optimal_transport, laws=[law], shapes=[shape], vocab=4, tables=1).cases


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_accepts_as_often_as_can_be(law):
    for seed in range(12):
        target, draft = random_rows(4, seed)
        if seed % 3 == 0:
            draft = draft.masked_fill(torch.arange(4) == seed % 4, 0)
            draft = draft / draft.sum()
        for k in (1, 2, 3):
            best = optimal_acceptance(target, draft, k, law)
            assert acceptance(optimal_transport, law, target, draft, k) == pytest.approx(
                best, abs=1e-9
            )
            in_turn = verify.rrs if law is Law.IID else verify.rrsw
            assert acceptance(in_turn, law, target, draft, k) <= best + 1e-12


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize(("size", "k"), [(5, 1), (6, 2), (12, 2), (7, 4), (40, 2)])
def test_a_plan_is_a_coupling_of_the_best_value(law, size, k):
    target, draft = random_rows(size, seed=size)
    plan = transport_plan(target, draft, k, law)
    assert plan.value == pytest.approx(optimal_acceptance(target, draft, k, law), abs=1e-9)
    output = list(plan.residual)
    for tokens, place in plan.sets.items():
        assert sum(plan.masses[place]) <= plan.probs[place] * (1 + 1e-14)
        for token, mass in zip(tokens, plan.masses[place], strict=True):
            assert mass >= 0
            output[token] += mass
    assert output == pytest.approx(target.tolist(), abs=1e-15)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_in_fractions_the_output_is_the_target_exactly(law):
    target, draft = Rationals([1, 2, 4, 3, 0]), Rationals([3, 1, 0, 2, 5])
    target, draft = target / target.sum(), draft / draft.sum()
    for k in (1, 2, 3, 4):
        plan = transport_plan(target, draft, k, law)
        assert sum(plan.probs) == 1
        output = list(plan.residual)
        for tokens, place in plan.sets.items():
            assert sum(plan.masses[place]) <= plan.probs[place]
            for token, mass in zip(tokens, plan.masses[place], strict=True):
                output[token] += mass
        assert output == target.tolist()
        assert all(type(share) is not float for masses in plan.masses for share in masses)
        # The residual holds exactly what the children do not supply.
        assert sum(plan.residual) == 1 - plan.value
        assert float(plan.value) == pytest.approx(optimal_acceptance(target, draft, k, law))
    half = Rationals([1, 1])
    half = half / half.sum()
    transport_plan(torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5]), 2, law)
    plan = transport_plan(half, half, 2, law)
    assert isinstance(plan.probs[0], Fraction)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_law_of_the_drafted_set(law):
    rows = [[0.5, 0.2, 0.3], [0.7, 0.0, 0.3], [0.0, 1.0, 0.0]]
    for draft, k in product(rows, (1, 2, 3)):
        expected = {}
        for weight, tokens in outcomes(
            lambda c, d=draft, k=k: c.draw_many(torch.tensor([d]).double(), k, law)[0].tolist()
        ):
            key = tuple(sorted(set(tokens)))
            expected[key] = expected.get(key, 0) + weight
        found = drafted_sets(draft, k, law)
        assert found == pytest.approx(expected)
        assert count_sets(draft, k, law) == (len(found), sum(map(len, found)))


def test_a_wrong_solution_is_repaired(monkeypatch):
    """Whatever the solver returns, the flow respects supply and capacity."""
    from treespec.verify import largest_flow as module

    supply, choices, capacity = [0.5, 0.3, 0.2], [(0, 1), (1, 2), (2,)], [0.25, 0.25, 0.1]
    for wrong in ([1.0] * 5, [0.25, 0.25 + 1e-6, -1e-7, 0.1, 0.0]):
        monkeypatch.setattr(module, "_solve", lambda *_, w=wrong: w)
        masses = largest_flow(supply, choices, capacity)
        received = [0.0] * 3
        for limit, sinks, sent in zip(supply, choices, masses, strict=True):
            assert sum(sent) <= limit + 1e-15
            for sink, mass in zip(sinks, sent, strict=True):
                assert mass >= 0
                received[sink] += mass
        for mass, limit in zip(received, capacity, strict=True):
            assert mass <= limit + 1e-15


@pytest.mark.usefixtures("without_shape_checks")
def test_lossless_whatever_the_solver_returns(monkeypatch):
    from treespec.verify import largest_flow as module

    rule_module = import_module(
        "treespec.verify.optimal_transport"
    )  # in the package, this name is the rule

    monkeypatch.setattr(module, "_solve", lambda supply, ends, capacity: [0.3] * len(ends))
    rule_module._plan.cache_clear()
    try:
        assert assert_lossless(optimal_transport, shapes=[TreeShape.expansion([2, 1])]).cases
    finally:
        rule_module._plan.cache_clear()


def test_a_residual_token_that_is_a_child_is_that_child():
    draft = torch.tensor([1.0, 0.0], dtype=torch.float64)
    target = torch.tensor([0.5, 0.5], dtype=torch.float64)
    # The children can supply 0.5 to token 0 only; token 1 is drawn second, without replacement.
    tree = tree_of(Law.WITHOUT_REPLACEMENT, [0, 1], draft)
    for seed in range(20):
        assert optimal_transport(tree, target.expand(3, -1), TorchCoins(seed)).accepted == 1


def test_rows_that_leave_nothing():
    p = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    for law, tokens in ((Law.IID, [0, 0]), (Law.WITHOUT_REPLACEMENT, [0, 1])):
        for seed in range(20):
            verdict = optimal_transport(tree_of(law, tokens, p), p.expand(3, -1), TorchCoins(seed))
            assert verdict.accepted == 1
            assert verdict.bonus in (0, 1)


def test_refusals():
    uniform = torch.full((40,), 1 / 40)
    rows = uniform.expand(5, -1)
    with pytest.raises(RefusedTree, match=r"658008 sets .*3290040 variables.*`optimal_acceptance`"):
        transport_plan(uniform, uniform, 5, Law.WITHOUT_REPLACEMENT)
    with pytest.raises(RefusedTree, match=r"node 0.*variables"):
        optimal_transport(tree_of(Law.IID, [0, 1, 2, 3], uniform), rows, TorchCoins(0))
    with pytest.raises(RefusedTree, match="of law deterministic: it is made for iid"):
        optimal_transport(tree_of(Law.DETERMINISTIC, [0, 1], uniform), rows[:3], TorchCoins(0))
    with pytest.raises(RefusedTree, match="needs distinct children"):
        optimal_transport(
            tree_of(Law.WITHOUT_REPLACEMENT, [1, 1], uniform), rows[:3], TorchCoins(0)
        )
    with pytest.raises(RefusedTree, match="hub"):
        transport_plan(uniform, uniform, 2, Law.HUB)
    with pytest.raises(InvalidTree, match="41 distinct children"):
        transport_plan(uniform, uniform, 41, Law.WITHOUT_REPLACEMENT)
    never = torch.tensor([1.0, 0.0, 0.0])
    with pytest.raises(RefusedTree, match="cannot have been drawn"):
        optimal_transport(tree_of(Law.IID, [0, 1], never), never.expand(3, -1), TorchCoins(0))


def test_one_law_where_nodes_branch():
    shape = TreeShape.from_parents([-1, 0, 0, 1, 1])
    rows = torch.full((2, 3), 1 / 3)
    laws = [Law.IID, Law.WITHOUT_REPLACEMENT, *[Law.IID] * 3]
    mixed = TokenTree(shape, torch.tensor([0, 1, 2, 0, 1]), rows, laws)
    with pytest.raises(RefusedTree, match="needs one law at all nodes"):
        optimal_transport(mixed, torch.full((5, 3), 1 / 3), TorchCoins(0))
    # For a single child both laws coincide.
    shape = TreeShape.from_parents([-1, 0, 1, 1])
    mixed = TokenTree(shape, torch.tensor([0, 1, 2, 0]), rows, laws[:4])
    assert optimal_transport(mixed, torch.full((4, 3), 1 / 3), TorchCoins(0)).emitted >= 1


def test_large_vocabularies_of_few_possible_tokens():
    target, draft = torch.zeros(2, 50_000)
    target[:6], draft[3:8] = 1 / 6, 1 / 5
    plan = transport_plan(target, draft, 2, Law.WITHOUT_REPLACEMENT)
    assert plan.value == pytest.approx(
        optimal_acceptance(target, draft, 2, Law.WITHOUT_REPLACEMENT), abs=1e-6
    )


def test_importing_the_rules_loads_no_scipy():
    code = (
        "import sys, treespec.verify.optimal_transport, treespec.verify.canonical, "
        "treespec.verify.optimal_acceptance; assert 'scipy' not in sys.modules"
    )
    run([executable, "-c", code], check=True)


def test_the_bound_of_the_programme_is_on_its_variables():
    """400 tokens give 80,200 sets of one or two tokens, but 160,000 variables."""
    flat = torch.full((400,), 1 / 400, dtype=torch.float64)
    with pytest.raises(RefusedTree, match="80200 sets of drafts and 160000 variables"):
        transport_plan(flat, flat, 2, Law.IID)
