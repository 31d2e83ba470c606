"""Batches whose passes are captured, with a tape of the pass's operations instead of a graph.

Whether a kernel is interpreted is decided when Triton is imported, so this file runs itself in a process
with TRITON_INTERPRET=1.
"""

import os

import pytest
import torch
from many_texts import Told, alone, together

from treespec import Law, Sampling, TorchCoins, TreeShape, verify
from treespec.batch import Text, decode_many
from treespec.draft import ModelDrafter, NoDrafter, PromptLookup
from treespec.errors import StaleScores
from treespec.models.pass_kinds import Passes
from treespec.models.passes import captured_runner
from treespec.models.passes.captured_runner import Places
from treespec.target import ModelTarget
from treespec.target.graph import GraphTarget

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="see test_through_the_interpreter")
plain = pytest.mark.skipif(INTERPRETED, reason="runs in the process outside")

COLD, WARM = Sampling(temperature=0.0), Sampling(temperature=1.0)
SHAPES = (TreeShape.expansion([2, 1]), TreeShape.chain(2), TreeShape((-1, 0, 0, 0, 1)))
LENGTHS = (20, 1, 33, 7)


@pytest.fixture(autouse=True)
def _quick(request):
    if INTERPRETED:
        request.getfixturevalue("quick_interpreter")


def prompt(i):
    return torch.randint(1, 96, (LENGTHS[i % 4],), generator=torch.Generator().manual_seed(i))


def text(i, target, draft, kind=GraphTarget, sampling=COLD):
    """Text i: unequal prompts and trees, ends at different steps, one without a model that drafts."""
    law = Law.DETERMINISTIC if sampling is COLD else Law.WITHOUT_REPLACEMENT
    rule = verify.greedy if sampling is COLD else verify.rrsw
    drafter = (
        PromptLookup(3) if i == 3 else ModelDrafter(draft, SHAPES[i % 3], law, sampling)
    )  # fmt: skip
    if i == 3 and sampling is WARM:
        drafter = NoDrafter()
    return Text(kind(target), drafter, rule, prompt(i), sampling, TorchCoins(i), 5 + 3 * i)


def captured(draft):
    """A draft model with captured passes."""
    draft.run_by(Places().copying_runner, Passes("captured"))
    return draft


def require_same(found: Told, expected: Told) -> None:
    assert found.error is None
    assert found.tokens == expected.tokens
    assert found.accepted == expected.accepted
    torch.testing.assert_close(found.chances, expected.chances, rtol=0, atol=1e-4)


@interpreted
@pytest.mark.parametrize("sampling", [COLD, WARM], ids=["cold", "warm"])
@pytest.mark.parametrize("family", ["Llama", "Gemma2"])
def test_texts_are_what_they_are_alone(family, sampling, make_model, taped):
    """Each alone with captured passes, and with ordinary ones."""
    target, draft = make_model(family), captured(make_model(family, seed=1))
    texts = [text(i, target, draft, sampling=sampling) for i in range(4)]
    found = together(texts)
    assert texts[0].target.model.joins == texts[1].target.model.joins is not None
    assert draft.joins is not None
    ordinary = make_model(family, seed=1)
    for i, told in enumerate(found):
        require_same(told, alone(text(i, target, draft, sampling=sampling)))
        require_same(told, alone(text(i, target, ordinary, ModelTarget, sampling)))
    assert len({token for told in found for step in told.tokens for token in step}) > 8


def plainly(i, target):
    """Text i by plain decoding, in four steps."""
    return Text(GraphTarget(target), NoDrafter(), verify.greedy, prompt(i), COLD, TorchCoins(i), 4)


@interpreted
def test_one_pass_a_step_whatever_texts_are_in_the_batch(make_model, taped):
    """A graph for the batch, in which texts begin and end."""
    target = make_model()
    target.reserve(128)
    found = together([plainly(i, target) for i in range(6)], places=2)
    assert [tape.replays for tape in taped] == [12]  # each of them for two texts
    for i, told in enumerate(found):
        require_same(told, alone(plainly(i, target)))


@interpreted
def test_scores_are_lent_until_the_next_pass_of_the_batch(make_model, taped):
    target = make_model()
    draft = make_model(seed=1)
    steps = decode_many([text(i, target, draft) for i in range(2)])
    first, second = next(steps)[1], next(steps)[1]
    for step in (first, second):
        assert step.scores.logits.shape[1] == 96
    next(steps)
    for step in (first, second):
        with pytest.raises(StaleScores, match="overwritten by a later step"):
            _ = step.scores.logits
    steps.close()


@interpreted
def test_scores_of_a_text_that_has_ended_are_taken_back(make_model, taped):
    target = make_model()
    target.reserve(128)
    last = dict(decode_many([plainly(i, target) for i in range(4)], places=2))
    for i in (0, 1):
        with pytest.raises(StaleScores):
            _ = last[i].scores.logits
    assert last[3].scores.logits.isfinite().all()


@interpreted
def test_passes_that_differ_are_said_and_texts_run_alone(make_model, taped, monkeypatch, caplog):
    target, draft = make_model(), make_model(seed=1)

    def refused(*given):
        raise captured_runner.UnsupportedModel("they differ")

    monkeypatch.setattr(captured_runner, "require_joined", refused)
    found = together([text(i, target, draft) for i in range(2)])
    assert "each text of a batch of llama models runs alone: they differ" in caplog.text
    for i, told in enumerate(found):
        require_same(told, alone(text(i, target, draft)))


@plain
def test_a_batch_through_the_interpreter(interpret):
    interpret(__file__, "-k", "whatever_texts or until_the_next")


@plain
@pytest.mark.slow
def test_through_the_interpreter(interpret):
    interpret(__file__)
