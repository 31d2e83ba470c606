"""Heads are trained as they draft: a step of the training is a row of a draft, and only heads learn."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import build

from treespec.experiments.training.fresh_heads import LayerSizes, fresh_eagle, fresh_eagle3
from treespec.experiments.training.losses import LOSSES
from treespec.experiments.training.packing import Packed, PackedTexts, Texts
from treespec.experiments.training.students.autoregressive import (
    Eagle3Student,
    EagleStudent,
    HeadStudent,
)
from treespec.experiments.training.teacher import Teacher
from treespec.models.transformers_model import TransformersModel
from treespec.sampling.coins import TorchCoins
from treespec.target import ModelTarget
from treespec.tree import TreeShape

STEPS = 3
KEPT = torch.arange(0, 64, 2)
Make = Callable[[TransformersModel], HeadStudent]


def eagle3(target: TransformersModel) -> HeadStudent:
    head = fresh_eagle3(target, LayerSizes(24, layers=2), 1, boundaries=(2, 1, 3), kept=KEPT)
    return Eagle3Student(head, target, steps=STEPS, loss=LOSSES["forward_kl"])


def eagle(target: TransformersModel) -> HeadStudent:
    head = fresh_eagle(target, LayerSizes(24), 1)
    return EagleStudent(head, target, steps=STEPS, loss=LOSSES["forward_kl"], kept=KEPT)


@pytest.fixture(scope="module")
def target() -> TransformersModel:
    return TransformersModel(build("llama", num_hidden_layers=4))


def two_texts(vocab: int) -> tuple[Packed, list[np.ndarray]]:
    random = np.random.default_rng(0)
    texts = [random.integers(1, vocab, size) for size in (9, 7)]
    ids = torch.from_numpy(np.concatenate(texts))[None]
    text = torch.tensor([[0] * 9 + [1] * 7])
    return Packed(ids, text, torch.ones_like(ids, dtype=torch.bool)), texts


def drafted(student: HeadStudent, target: TransformersModel, text: np.ndarray, t: int) -> Any:
    """The rows of a draft rooted at token t + 1, along the text."""
    drafter: Any = student.drafter(TreeShape.chain(1))
    scorer = ModelTarget(target.fresh())
    scorer.lend(drafter.reads)
    prompt = torch.from_numpy(text[: t + 2])
    drafter.prefill(prompt, scorer.prefill(prompt))
    path = text[t + 1 : t + 1 + STEPS].tolist()
    parents = [*range(-1, STEPS - 1), *range(STEPS)]
    tokens, wanted = [*path, *[-1] * STEPS], {node: [STEPS + node] for node in range(STEPS)}
    return drafter.draw_into(parents, tokens, wanted, {}, TorchCoins(0))


@pytest.mark.parametrize("make", [eagle3, eagle])
def test_a_step_of_the_training_is_a_row_of_a_draft(make: Make, target: TransformersModel) -> None:
    student = make(target)
    packed, texts = two_texts(target.vocab_size)
    taught = Teacher(target, student.reads, student.kept)(packed)
    steps = [student.logits(step.hidden)[0] for step in student.rollout(taught)]
    for begin, text, t in ((0, texts[0], 0), (0, texts[0], 4), (9, texts[1], 1)):
        rows = drafted(student, target, text, t)
        for depth in range(STEPS):
            right = rows[depth].log_softmax(-1)[KEPT].log_softmax(-1)
            found = steps[depth][begin + t].log_softmax(-1)
            torch.testing.assert_close(found, right, atol=1e-5, rtol=0)


@pytest.mark.parametrize("make", [eagle3, eagle])
def test_a_prediction_is_compared_with_the_target_s_row_of_the_same_text(
    make: Make, target: TransformersModel
) -> None:
    student = make(target)
    packed, texts = two_texts(target.vocab_size)
    taught = Teacher(target, student.reads, student.kept)(packed)
    for depth, step in enumerate(student.rollout(taught)):
        counted = step.counted[0].nonzero().flatten().tolist()
        ends = [9 - 2 - depth, 7 - 2 - depth]
        assert counted == [*range(ends[0]), *range(9, 9 + ends[1])]
    with target.as_transformers() as plain:
        alone = plain(torch.from_numpy(texts[1])[None]).logits.log_softmax(-1)[0].detach()
    torch.testing.assert_close(taught.logs[0, 9:], alone[:, KEPT], atol=1e-5, rtol=0)


@pytest.mark.parametrize("make", [eagle3, eagle])
def test_a_head_learns_and_its_target_does_not(make: Make, target: TransformersModel) -> None:
    student = make(target)
    trained = student.trained()
    assert trained
    packed, _ = two_texts(target.vocab_size)
    taught = Teacher(target, student.reads, student.kept)(packed)
    learned = student(taught, torch.Generator())
    learned.loss.backward()
    assert learned.by_depth.shape == (STEPS,)
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in trained.values())
    assert all(p.grad is None for p in target.model.parameters())
    before = {
        name: p.detach().clone()
        for name, p in student.drafter(TreeShape.chain(1)).model.net.named_parameters()
    }
    torch.optim.SGD(trained.values(), lr=0.1).step()
    after = student.drafter(TreeShape.chain(1)).model.net.named_parameters()
    assert any(not torch.equal(before[name], p) for name, p in after), (
        "it drafts with what is trained"
    )


def test_batches_show_every_token_once_and_tell_texts_apart() -> None:
    ids = [np.arange(1, 8), np.arange(8, 20), np.arange(20, 24)]
    data = PackedTexts(Texts(ids, [2, 0, 4]), rows=2, length=8, seed=3)
    batches = [data[step] for step in range(3)]
    per_epoch = len(data._epoch(0)), len(data._epoch(1))
    rows = [
        (
            batch.ids[row].tolist(), batch.text[row],
            batch.answer[row].tolist(), batch.positions[row].tolist(),
        )
        for batch in batches
        for row in range(2)
    ]  # fmt: skip
    first = rows[: per_epoch[0]]
    seen = [token for row, text, *_ in first for token, t in zip(row, text, strict=True) if t >= 0]
    assert sorted(seen) == list(range(1, 24))
    assert per_epoch[0] <= 4
    assert batches[0].tokens == int((batches[0].text >= 0).sum())
    parts = [ids[0], ids[1][:8], ids[1][8:], ids[2]]
    place = {token: (p, i) for p, part in enumerate(parts) for i, token in enumerate(part.tolist())}
    prompts = {1, 2, 20, 21, 22, 23}
    for row, text, answers, places in rows:
        for i, token in enumerate(row):
            if text[i] < 0:
                assert not answers[i]
                continue
            assert places[i] == place[token][1], "texts are whole, and cut ones begin anew"
            assert answers[i] == (token not in prompts)
            assert i == 0 or (text[i] == text[i - 1]) == (place[token][0] == place[row[i - 1]][0])
    again = PackedTexts(Texts(ids, [2, 0, 4]), rows=2, length=8, seed=3)
    assert torch.equal(again[2].ids, batches[2].ids), "a batch depends on its step alone"
    both = torch.cat([batches[0].part(rank, 2).ids for rank in range(2)])
    assert torch.equal(both, batches[0].ids)
