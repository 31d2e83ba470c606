"""Draft models while they are trained, on texts that are given and on their own."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tiny_models import build
from torch import Tensor
from torch.nn.functional import kl_div

from treespec.errors import InvalidArgument
from treespec.experiments.run.transformers_hooks import plain_twin
from treespec.experiments.training.fresh_heads import LayerSizes
from treespec.experiments.training.losses import LOSSES
from treespec.experiments.training.on_policy import BEGINNING, continued
from treespec.experiments.training.packing import Packed, PackedTexts, Texts
from treespec.experiments.training.students.draft_models import (
    DraftModelStudent,
    fresh_draft_model,
)
from treespec.experiments.training.teacher import Teacher
from treespec.models.load import Pair, load_pair, with_drafts
from treespec.models.transformers_model import TransformersModel
from treespec.sampling.coins import TorchCoins
from treespec.tree import TreeShape

PROMPTS = (3, 0, 5, 2, 4)


@pytest.fixture
def packed() -> Packed:
    """Two rows of 40 tokens, of five texts, some of which are cut."""
    random = np.random.default_rng(0)
    ids = [random.integers(1, 290, size) for size in (11, 19, 8, 30, 17)]
    return PackedTexts(Texts(ids, PROMPTS), rows=2, length=40, seed=0)[0]


def student_of(pair: Pair, loss: str = "forward_kl", **options: float) -> DraftModelStudent:
    draft = fresh_draft_model(pair.target, LayerSizes(48, layers=2), 0)
    with torch.no_grad():
        for name, parameter in draft.model.named_parameters():
            if "layers" in name and parameter.ndim == 2:  # far from the start, as after training
                parameter *= 20
    return DraftModelStudent(draft, pair, loss=LOSSES[loss], **options)


def student_of_gpt2(pair: Pair) -> DraftModelStudent:
    """Of a draft whose positions are not only told apart by their distance."""
    model = build("gpt2", vocab_size=pair.target.vocab_size)
    return DraftModelStudent(TransformersModel(model), pair, loss=LOSSES["forward_kl"])


def texts_of(packed: Packed) -> list[tuple[int, slice]]:
    """Row and columns of each text in a batch."""
    found = []
    for row, numbers in enumerate(packed.text.tolist()):
        starts = [t for t in range(len(numbers)) if not t or numbers[t] != numbers[t - 1]]
        ends = [*starts[1:], len(numbers)]
        found += [(row, slice(*both)) for both in zip(starts, ends, strict=True)]
    return found


def alone(model: torch.nn.Module, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(input_ids=ids[None]).logits[0]


@pytest.mark.parametrize("made", [student_of, student_of_gpt2])
def test_texts_in_a_row_are_run_as_if_each_was_alone(
    loaded_pair: Pair, packed: Packed, made: Callable[[Pair], DraftModelStudent]
) -> None:
    student = made(loaded_pair)
    texts = texts_of(packed)
    assert len(texts) >= 5
    logits = student.logits(packed)
    for row, columns in texts:
        torch.testing.assert_close(
            logits[row, columns], alone(student.net, packed.ids[row, columns]), atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("loss", ["forward_kl", "cross_entropy"])
def test_the_loss_is_the_mean_over_answers_of_the_row_before_each(
    loaded_pair: Pair, packed: Packed, loss: str
) -> None:
    student, target = student_of(loaded_pair, loss), plain_twin(loaded_pair.target)
    expected = []
    for row, columns in texts_of(packed):
        ids, answer = packed.ids[row, columns], packed.answer[row, columns]
        draft, said = (alone(m, ids).log_softmax(-1) for m in (student.net, target))
        for place in range(1, len(ids)):
            if answer[place]:
                of_token = -draft[place - 1, ids[place]]
                divergence = kl_div(
                    draft[place - 1], said[place - 1], log_target=True, reduction="sum"
                )
                expected.append(of_token if loss == "cross_entropy" else divergence)
    assert 0 < len(expected) < packed.ids.numel() - len(texts_of(packed))  # prompts are not counted
    taught = Teacher(loaded_pair.target, student.reads, student.kept)(packed)
    learned = student(taught, torch.Generator())
    torch.testing.assert_close(learned.loss, torch.stack(expected).mean(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(learned.by_depth, learned.loss.detach()[None])


@pytest.mark.parametrize("width", [None, 16])
def test_what_is_trained_is_the_drafts_own(
    loaded_pair: Pair, packed: Packed, width: int | None
) -> None:
    draft = fresh_draft_model(loaded_pair.target, LayerSizes(24, head_dim=8), 0, width=width)
    student = DraftModelStudent(draft, loaded_pair, loss=LOSSES["total_variation"])
    trained = student.trained()
    assert any("embed" in name for name in trained) == (width is not None)
    assert student.size == sum(p.numel() for p in draft.model.parameters() if p.requires_grad)
    before = {name: p.clone() for name, p in loaded_pair.target.model.named_parameters()}
    taught = Teacher(loaded_pair.target, student.reads, student.kept)(packed)
    student(taught, torch.Generator()).loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in trained.values())
    torch.optim.SGD(trained.values(), lr=1.0).step()
    for name, parameter in loaded_pair.target.model.named_parameters():
        assert parameter.grad is None
        assert torch.equal(parameter, before[name])


def test_it_drafts_with_the_present_weights(loaded_pair: Pair) -> None:
    student, prompt = student_of(loaded_pair), torch.arange(5, 12)
    drafter = student.drafter(TreeShape((-1, 0, 1, 2)))
    for change in (1.0, -1.5):
        with torch.no_grad():
            for parameter in student.trained().values():
                parameter *= change
        ids = prompt
        for _ in range(3):
            ids = torch.cat([ids, alone(student.net, ids)[-1].argmax()[None]])
        drafter.prefill(prompt)
        assert drafter.propose(TorchCoins(0)).token_ids == tuple(ids[-4:].tolist())


def test_a_stored_draft_is_the_trained_one_and_can_be_trained_on(
    loaded_pair: Pair, packed: Packed, tiny_pair, tmp_path
) -> None:
    student, folder = student_of(loaded_pair), tmp_path / "made" / "draft"
    student.save(folder)
    with pytest.raises(InvalidArgument, match="is not empty"):
        student.save(folder)
    pair = load_pair(tiny_pair / "target", folder)
    again = DraftModelStudent(pair.draft, pair, loss=LOSSES["forward_kl"])
    assert torch.equal(again.logits(packed), student.logits(packed))
    assert again.trained().keys() == student.trained().keys()  # the embedding is the target's again
    stored = with_drafts(loaded_pair, [str(folder)]).others[str(folder)]
    assert stored.fingerprint == pair.draft.fingerprint


def test_on_policy_batches_depend_on_the_seed_alone(loaded_pair: Pair, packed: Packed) -> None:
    student = student_of(loaded_pair, on_policy=1.0)
    first, second, other = (
        student.batch(packed, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first.ids, second.ids)
    assert not torch.equal(first.ids, other.ids)
    own = packed.answer & (packed.positions >= BEGINNING)
    assert own.sum() > 5
    assert torch.equal(first.answer, own)
    assert torch.equal(first.ids[~own], packed.ids[~own])
    assert first.ids[own].ne(packed.ids[own]).float().mean() > 0.9
    sometimes = student_of(loaded_pair, on_policy=0.25)
    drawn = [
        sometimes.batch(packed, torch.Generator().manual_seed(seed)) is not packed
        for seed in range(100)
    ]
    assert 10 < sum(drawn) < 40


def test_on_policy_tokens_have_the_drafts_law(loaded_pair: Pair) -> None:
    """Both tokens that the second of two texts in a row goes on with, of a vocabulary of four tokens.

    A frequency of a right law deviates by five standard deviations once in 1.7 million.
    """
    rows, net = 3000, student_of_gpt2(loaded_pair).net
    lengths = (BEGINNING + 1, BEGINNING + 2)
    text = torch.repeat_interleave(torch.arange(2), torch.tensor(lengths)).expand(rows, -1)
    ids = torch.randint(1, 290, (text.shape[1],), generator=torch.Generator().manual_seed(0))
    packed = Packed(ids.expand(rows, -1), text, torch.ones_like(text, dtype=torch.bool))
    made = continued(net, packed, torch.Generator().manual_seed(0), vocab_size=4, ends=())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = continued(net, packed, torch.Generator().manual_seed(0), vocab_size=4, ends=())
    assert torch.equal(made.ids, again.ids)
    begin = ids[lengths[0] : -2]
    first = alone(net, begin)[-1, :4].softmax(-1)
    for token in range(4):
        rest = alone(net, torch.cat([begin, torch.tensor([token])]))[-1, :4].softmax(-1)
        for after in range(4):
            law = (first[token] * rest[after]).item()
            found = (made.ids[:, -2:] == torch.tensor([token, after])).all(1).float().mean()
            assert found.item() == pytest.approx(law, abs=5 * (law * (1 - law) / rows) ** 0.5)


def test_what_follows_the_end_of_a_text_is_no_answer(loaded_pair: Pair) -> None:
    ids = np.random.default_rng(0).integers(1, 290, 50)
    packed = PackedTexts(Texts([ids] * 4, [9] * 4), rows=2, length=100, seed=0)[0]
    net, ends = student_of(loaded_pair).net, range(0, 290, 8)
    made = continued(net, packed, torch.Generator().manual_seed(0), vocab_size=290, ends=ends)
    counts = []
    for row, columns in texts_of(packed):
        answers = made.ids[row, columns][made.answer[row, columns]].tolist()
        assert not any(token in ends for token in answers[:-1])
        assert answers[-1] in ends or len(answers) == len(ids) - BEGINNING
        counts.append(len(answers))
    assert len(set(counts)) > 2


def test_a_draft_does_not_learn_its_own_tokens(loaded_pair: Pair) -> None:
    with pytest.raises(InvalidArgument, match="on_policy"):
        student_of(loaded_pair, "cross_entropy", on_policy=0.5)
