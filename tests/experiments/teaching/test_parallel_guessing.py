"""Parallel guessing against brute force: every law here is small enough to enumerate."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec import Law, Sampling, TreeShape, Verdict, verify
from treespec.errors import InvalidTree
from treespec.experiments.teaching import parallel_guessing
from treespec.experiments.teaching.parallel_guessing import (
    PairLaw,
    ParallelDrafter,
    guessing,
    head_rows,
    independent_law,
    next_two_tokens,
    sticky_model,
    total_variation,
)
from treespec.search.growth import Eagle2
from treespec.testing import (
    NotLossless,
    TabularModel,
    assert_lossless,
    output_law,
    random_table,
    target_law,
)

PLAIN = Sampling()
marginals = st.lists(st.floats(0.05, 1.0), min_size=2, max_size=4)
shares = st.floats(0.0, 1.0)


@settings(max_examples=12)
@given(marginals, shares)
def test_two_neighbours_are_off_by_dependence_times_what_squares_leave(marginal, dependence):
    model = sticky_model(marginal, dependence)
    law = target_law(model, (0,), 2, PLAIN)
    guessed = independent_law(head_rows(model, (0,), 2, PLAIN))
    probs = [value / sum(marginal) for value in marginal]
    by_hand = dependence * (1 - sum(p * p for p in probs))
    assert total_variation(guessed, law) == pytest.approx(by_hand, abs=1e-12)


@settings(max_examples=6)
@given(marginals, shares)
def test_every_token_of_the_sticky_model_has_the_marginal(marginal, dependence):
    rows = head_rows(sticky_model(marginal, dependence), (1,), 3, PLAIN)
    probs = torch.tensor(marginal, dtype=torch.float64)
    assert torch.allclose(rows, (probs / probs.sum()).expand(3, -1), atol=1e-12)


def test_heads_and_their_law_by_brute_force():
    model = TabularModel(random_table(3, 5), 3)
    joint = {}
    for text in product(range(3), repeat=3):
        weight, context = 1.0, (0,)
        for token in text:
            weight *= float(model.row(context).softmax(-1)[token])
            context += (token,)
        joint[text] = weight
    rows = head_rows(model, (0,), 3, PLAIN)
    for place, token in product(range(3), range(3)):
        by_hand = sum(weight for text, weight in joint.items() if text[place] == token)
        assert float(rows[place, token]) == pytest.approx(by_hand, abs=1e-12)
    law = independent_law(rows)
    distance = 0.0
    for text, weight in joint.items():
        guessed = float(rows[0, text[0]] * rows[1, text[1]] * rows[2, text[2]])
        assert float(law[text]) == pytest.approx(guessed, abs=1e-12)
        distance += abs(guessed - weight) / 2
    assert total_variation(law, target_law(model, (0,), 3, PLAIN)) == pytest.approx(distance)
    assert head_rows(model, (0,), 1, PLAIN)[0] == pytest.approx(model.row((0,)).softmax(-1))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("rule", "shape"),
    [
        (verify.chain, TreeShape.chain(2)),
        (verify.rrs, TreeShape.expansion([2])),
        (verify.rrsw, TreeShape.expansion([2])),
    ],
)
def test_verification_repairs_parallel_guesses(rule, shape):
    assert_lossless(rule, shapes=[shape], tables=1, draft_with=ParallelDrafter)


def test_taking_the_guesses_as_they_are_is_refuted(without_shape_checks):
    def gullible(tree, target_probs, coins):
        path = tree.shape.path(tree.shape.size - 1)
        return Verdict(path, coins.draw(target_probs[path[-1]]))

    with pytest.raises(NotLossless, match="gullible"):
        assert_lossless(
            gullible, laws=[Law.IID], shapes=[TreeShape.chain(2)], draft_with=ParallelDrafter
        )


def test_heads_see_what_was_kept_before(without_shape_checks):
    target, draft = (TabularModel(random_table(2, seed), 2) for seed in (3, 4))
    found = output_law(
        verify.chain, TreeShape.chain(2), Law.IID, target=target, draft=draft, tokens=3,
        draft_with=ParallelDrafter,
    ).probs  # fmt: skip
    assert total_variation(found, target_law(target, (0,), 3, PLAIN)) < 1e-12


def test_the_sweep_at_its_ends(without_shape_checks):
    marginal = (0.5, 0.3, 0.2)
    found = guessing((1, 2), (0.0, 1.0), marginal=marginal)
    squares = sum(p * p for p in marginal)
    assert found.unverified == pytest.approx(np.array([[0, 0], [0, 1 - squares]]), abs=1e-12)
    assert found.verified.max() < 1e-12
    # independent tokens are guessed rightly; of equal ones the second guess must repeat the first
    right = np.array([[1, 1], [2, 1 + squares]])
    assert found.accepted == pytest.approx(right)


def test_other_shapes_of_input():
    root = ParallelDrafter(sticky_model((0.5, 0.5), 0.1), TreeShape.chain(0), Law.IID, PLAIN)
    root.prefill(torch.tensor([1]))
    assert root.propose(None).token_ids == (1,)  # no coin is needed
    with pytest.raises(InvalidTree, match="static shapes only"):
        ParallelDrafter(sticky_model((0.5, 0.5), 0.1), Eagle2(2, 2, 4), Law.DETERMINISTIC, PLAIN)


def test_the_law_of_two_tokens_of_a_table(monkeypatch):
    monkeypatch.setattr(parallel_guessing, "CHUNK", 2)
    model = TabularModel(random_table(5, 1), 5)
    found = next_two_tokens(model, torch.tensor([3, 0]))
    assert torch.allclose(found.joint, target_law(model, (3, 0), 2, PLAIN), atol=1e-12)
    rows = head_rows(model, (3, 0), 2, PLAIN)
    assert torch.allclose(found.independent, independent_law(rows), atol=1e-12)


def test_the_law_of_two_tokens_of_a_model(loaded_pair):
    ids = torch.tensor(loaded_pair.tokenizer.encode("def walk"))
    found = next_two_tokens(loaded_pair.target, ids)
    with loaded_pair.target.as_transformers() as model, torch.inference_mode():
        first = model(ids[None]).logits[0, -1].softmax(-1)
        for token in (0, 200, 280):
            text = torch.cat([ids, torch.tensor([token])])
            row = model(text[None]).logits[0, -1].softmax(-1)
            assert torch.allclose(found.joint[token], (first[token] * row).double(), atol=1e-6)
    assert float(found.joint.sum()) == pytest.approx(1, abs=1e-4)


def test_inventions_come_worst_first():
    found = PairLaw(torch.tensor([[0.5, 0.0], [0.1, 0.4]], dtype=torch.float64))
    assert found.distance == pytest.approx(0.4)  # 0.2 in each of the four cells
    (worst,) = found.inventions(1)
    assert worst == (0, 1, pytest.approx(0.2), 0.0)
    assert [pair[:2] for pair in found.inventions(2)] == [(0, 1), (1, 0)]
