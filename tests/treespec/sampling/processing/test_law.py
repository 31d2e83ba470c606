"""The law of a text under processors that depend on its path, by exact enumeration, and planted faults."""

import pytest
import torch

from treespec import Law, Sampling, TreeShape, verify
from treespec.draft.model import ModelDrafter
from treespec.models.tabular import TabularModel, random_table
from treespec.sampling.processing import processed_model
from treespec.sampling.processing import rows as processed_rows
from treespec.sampling.processors import Processors
from treespec.testing.laws import output_law, target_law

V = 4
PENALTY = Processors(
    repetition_penalty=1.7,
    frequency_penalty=0.6,
    no_repeat_ngram_size=3,
    min_new_tokens=2,
    ends=(3,),
)
WARM = Sampling(0.8, processors=PENALTY)
TREE = TreeShape((-1, 0, 0, 1))
CASES = [
    (verify.rrs, Law.IID, TREE),
    (verify.rrsw, Law.WITHOUT_REPLACEMENT, TREE),
    (verify.traversal, Law.WITHOUT_REPLACEMENT, TREE),
    (verify.onehot, Law.DETERMINISTIC, TREE),
    (verify.chain, Law.IID, TreeShape.chain(1)),
    (verify.block, Law.IID, TreeShape.chain(2)),
]


def _distance(rule, law, shape, sampling=WARM, prompt=(0, 1)):
    target, draft = (TabularModel(random_table(V, seed, 2.0), V) for seed in (2, 1))
    tokens = 3 if shape.is_chain or sampling.greedy else 2
    law_of_text = output_law(
        rule,
        shape,
        law,
        target=target,
        draft=draft,
        tokens=tokens,
        prompt=prompt,
        sampling=sampling,
    ).probs
    return float((law_of_text - target_law(target, prompt, tokens, sampling)).abs().max())


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(("rule", "law", "shape"), CASES)
def test_the_law_is_that_of_the_processed_target(rule, law, shape):
    assert _distance(rule, law, shape) < 1e-12


@pytest.mark.usefixtures("without_shape_checks")
def test_greedy_text_is_that_of_the_processed_target():
    cold = Sampling(0.0, processors=PENALTY)
    assert _distance(verify.greedy, Law.DETERMINISTIC, TREE, cold) == 0
    target = TabularModel(random_table(V, 2, 2.0), V)
    plain = target_law(target, (0, 1), 3, Sampling(0.0))
    assert not torch.equal(plain, target_law(target, (0, 1), 3, cold))


def _last_accepted_only(parents, tokens, node):
    return [tokens[node]]


def _swapped(parents, tokens, node):
    """The path of a sibling."""
    other = {1: 2, 2: 1}.get(node, node)
    return _path_to(parents, tokens, other)


_path_to = processed_rows.path_to


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("fault", [_last_accepted_only, _swapped])
@pytest.mark.parametrize("where", [processed_rows, processed_model])
def test_faults_in_paths_are_seen(monkeypatch, fault, where):
    """In the target's rows they change the law; in the draft's, which rows are stated as drawn from."""
    monkeypatch.setattr(where, "path_to", fault)
    if where is processed_rows:
        assert _distance(verify.rrs, Law.IID, TREE) > 1e-3
        return
    draft = TabularModel(random_table(V, 1, 2.0), V)
    drafter = ModelDrafter(draft, TREE, Law.DETERMINISTIC, WARM)
    wrong = _rows_run(drafter)
    monkeypatch.undo()
    right = _rows_run(ModelDrafter(draft, TREE, Law.DETERMINISTIC, WARM))
    assert not torch.equal(wrong, right)


def _rows_run(drafter):
    drafter.prefill(torch.tensor([0, 1]))
    tokens, parents = torch.tensor([1, 2, 3, 2]), (-1, 0, 0, 1)
    return drafter.model.run(tokens, parents).logits


@pytest.mark.usefixtures("without_shape_checks")
def test_drafts_follow_the_committed_text():
    """A drafter after some steps has the rows of a new one on the whole text: nothing rejected is kept."""
    draft = TabularModel(random_table(V, 1, 2.0), V)
    grown = ModelDrafter(draft, TREE, Law.DETERMINISTIC, WARM)
    grown.prefill(torch.tensor([0, 1]))
    model = grown.model
    model.run(torch.tensor([1, 2, 3, 2]), (-1, 0, 0, 1))
    model.keep([0, 1])
    fresh = ModelDrafter(draft, TREE, Law.DETERMINISTIC, WARM).model
    fresh.start(torch.tensor([0]))
    fresh.inner.prefill(torch.tensor([0, 1, 2]))
    fresh.follow([1, 2])
    again = torch.tensor([3, 0])
    assert torch.equal(model.run(again, (-1, 0)).logits, fresh.run(again, (-1, 0)).logits)


@pytest.mark.usefixtures("without_shape_checks")
def test_unprocessed_drafts_keep_the_law_and_unprocessed_targets_do_not(monkeypatch):
    """Any stated row is lossless; a target that forgets its processors has another law."""
    target, draft = (TabularModel(random_table(V, seed, 2.0), V) for seed in (2, 1))

    def plain_draft(model, growth, law, sampling):
        return ModelDrafter(model, growth, law, sampling.without_processors)

    both = {"target": target, "draft": draft, "tokens": 2, "prompt": (0, 1), "sampling": WARM}
    expected = target_law(target, (0, 1), 2, WARM)
    law = output_law(verify.rrs, TREE, Law.IID, draft_with=plain_draft, **both).probs
    assert float((law - expected).abs().max()) < 1e-12
    forgetful = {**both, "sampling": WARM.without_processors}
    law = output_law(verify.rrs, TREE, Law.IID, **forgetful).probs
    assert float((law - expected).abs().max()) > 1e-3
