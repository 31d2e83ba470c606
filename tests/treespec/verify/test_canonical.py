from itertools import product

import pytest
import torch

from treespec import Law, TokenTree, TorchCoins, TreeShape, verify
from treespec.errors import RefusedTree
from treespec.testing import NotLossless, assert_lossless, outcomes
from treespec.testing.rationals import Rationals
from treespec.verify.canonical import canonical, tournament
from treespec.verify.optimal_acceptance import optimal_acceptance


@pytest.fixture
def module(monkeypatch):
    """The module of the rule, with an empty cache of tournaments before and after the test."""
    import sys

    module = sys.modules[canonical.__module__]
    module._cached.cache_clear()
    yield module
    module._cached.cache_clear()


def random_rows(size, seed, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, size, generator=generator, dtype=torch.float64) * spread
    return logits.softmax(-1)


def acceptance(target, draft, k):
    """Acceptance of the selected draft, without residual tokens that hit another child."""
    return float(torch.minimum(target, tournament(target, draft, k).law).sum())


def law_by_all_drafts(plan, draft, k):
    """The law of the selected token, by enumeration of all tuples of drafts."""
    law = [0] * len(draft)
    for drafts in product(range(len(draft)), repeat=k):
        mass = 1
        for token in drafts:
            mass = mass * draft[token]
        winners = {drafts[0]: mass}
        for token, play in zip(drafts[1:], plan.rounds, strict=True):
            next_winners = {}
            for winner, weight in winners.items():
                wins = 1
                if winner != token:
                    wins = play.replaces(plan.places[winner], plan.places[token])
                next_winners[token] = next_winners.get(token, 0) + weight * wins
                next_winners[winner] = next_winners.get(winner, 0) + weight * (1 - wins)
            winners = next_winners
        for token, weight in winners.items():
            law[token] += weight
    return law


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("inside", [0, 2, 3])
def test_lossless_with_tokens_outside_the_programme(module, monkeypatch, inside):
    monkeypatch.setattr(module, "LP_TOKENS", inside)
    shapes = [TreeShape.expansion([k]) for k in (2, 3)]
    assert assert_lossless(canonical, shapes=shapes, vocab=4, tables=1).cases


@pytest.mark.usefixtures("without_shape_checks")
def test_lossless_whatever_the_weights(module, monkeypatch):
    monkeypatch.setattr(module, "largest_flow", lambda supply, *_: [(0, s / 3) for s in supply])
    assert assert_lossless(canonical, shapes=[TreeShape.expansion([3])], vocab=4).cases


@pytest.mark.usefixtures("without_shape_checks")
def test_a_law_that_is_not_that_of_the_weights_is_caught(module, monkeypatch):
    play = module._play

    def wrong(target, draft, k):
        plan = play(target, draft, k)
        return module.Tournament(plan.places, plan.rounds, draft)

    monkeypatch.setattr(module, "_play", wrong)
    with pytest.raises(NotLossless):
        assert_lossless(canonical, shapes=[TreeShape.expansion([2])])


@pytest.mark.parametrize("inside", [0, 3, 48])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_law_is_that_of_the_selected_token(module, monkeypatch, inside, k):
    monkeypatch.setattr(module, "LP_TOKENS", inside)
    for seed in range(5):
        target, draft = random_rows(5, seed)
        plan = tournament(target, draft, k)
        assert plan.law.tolist() == pytest.approx(
            law_by_all_drafts(plan, draft.tolist(), k), abs=1e-14
        )


@pytest.mark.parametrize("inside", [0, 3, 48])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_in_fractions_the_law_is_exact(module, monkeypatch, inside, k):
    monkeypatch.setattr(module, "LP_TOKENS", inside)
    target, draft = Rationals([1, 2, 4, 3, 0]), Rationals([3, 1, 0, 2, 5])
    target, draft = target / target.sum(), draft / draft.sum()
    plan = tournament(target, draft, k)
    assert plan.law.tolist() == law_by_all_drafts(plan, draft.tolist(), k)
    assert sum(plan.law.tolist()) == 1


def test_two_drafts_reach_the_optimum():
    for seed in range(60):
        target, draft = random_rows(2 + seed % 47, seed, spread=1 + seed % 4)
        best = optimal_acceptance(target, draft, 2, Law.IID)
        assert acceptance(target, draft, 2) == pytest.approx(best, abs=1e-9)


@pytest.mark.usefixtures("without_shape_checks")
def test_the_rule_itself_reaches_the_optimum_with_two_drafts():
    shape, law = TreeShape.expansion([2]), Law.IID
    for seed in range(6):
        target, draft = random_rows(3, seed)
        total = 0.0
        for drafted, tokens in outcomes(
            lambda c, d=draft: c.draw_many(d[None], 2, law)[0].tolist()
        ):
            tree = TokenTree(shape, torch.tensor([0, *tokens]), draft[None], law)
            play = lambda c, t=tree, p=target: canonical(t, p.expand(3, -1), c)  # noqa: E731
            total += drafted * sum(w for w, v in outcomes(play) if v.accepted)
        assert total == pytest.approx(optimal_acceptance(target, draft, 2, law), abs=1e-9)


@pytest.mark.parametrize("size", [6, 48, 300])
@pytest.mark.parametrize("k", [3, 4, 8])
def test_more_drafts_come_close_to_the_optimum(size, k):
    for seed in range(4):
        target, draft = random_rows(size, seed)
        best = optimal_acceptance(target, draft, k, Law.IID)
        found = acceptance(target, draft, k)
        assert found <= best + 1e-12
        assert found >= best - 0.02
        assert found >= acceptance(target, draft, k - 1) - 1e-3


def test_one_draft_is_the_rule_of_chains():
    target, draft = random_rows(4, 0)
    shape = TreeShape.chain(1)
    for seed in range(50):
        tree = TokenTree(shape, torch.tensor([0, seed % 4]), draft[None], Law.IID)
        rows = target.expand(2, -1)
        found = canonical(tree, rows, TorchCoins(seed))
        right = verify.chain(tree, rows, TorchCoins(seed))
        # Both accept with the same coin, and the residual never yields the rejected token.
        assert found == right


@pytest.mark.parametrize("size", [4096, 128_256])
def test_large_vocabularies(size):
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(2, size, generator=generator)
    target, draft = logits[0].softmax(0), (logits[0] + logits[1] / 3).softmax(0)
    tokens = draft.multinomial(3, replacement=True, generator=generator)
    tree = TokenTree(
        TreeShape.expansion([3]), torch.cat([tokens.new_zeros(1), tokens]), draft[None], "iid"
    )
    for seed in range(2):
        verdict = canonical(tree, target.expand(4, -1), TorchCoins(seed))
        assert 0 <= verdict.bonus < size
    # Float32 rows of this many tokens sum to 1 only within about 1e-6.
    target, draft = (row.double() / row.double().sum() for row in (target, draft))
    plan = tournament(target, draft, 3)
    assert float(plan.law.sum()) == pytest.approx(1, abs=1e-12)
    best = optimal_acceptance(target, draft, 3, Law.IID)
    assert best - 0.01 < float(torch.minimum(target, plan.law).sum()) < best + 1e-9


def test_refusals():
    never = torch.tensor([1.0, 0.0, 0.0])
    tree = TokenTree(TreeShape.expansion([2]), torch.tensor([0, 0, 1]), never[None], Law.IID)
    with pytest.raises(RefusedTree, match="token 1 cannot have been drawn"):
        canonical(tree, never.expand(3, -1), TorchCoins(0))
    tree = TokenTree(
        TreeShape.expansion([2]), torch.tensor([0, 0, 1]), never[None], Law.WITHOUT_REPLACEMENT
    )
    with pytest.raises(RefusedTree, match="for iid only"):
        canonical(tree, never.expand(3, -1), TorchCoins(0))


def test_the_law_of_a_selected_token_is_never_rounded_away():
    """A token that is hardly ever drafted, drafted twice: its law is tiny, but not 0."""
    draft = torch.tensor([[1e-18, 1.0, 1e-20]], dtype=torch.float64)
    for k in (2, 3, 4):
        shape = TreeShape.expansion([k])
        tree = TokenTree(shape, torch.tensor([0] * (k + 1)), draft, Law.IID)
        rows = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64).expand(k + 1, -1)
        assert canonical(tree, rows, TorchCoins(0)).bonus in range(3)
        plan = tournament(rows[0], draft[0], k)
        assert bool((plan.law > 0).all())
