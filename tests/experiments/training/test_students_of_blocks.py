"""Medusa's heads and block drafters learn, of packed texts, what they draft of each text alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from marginal_heads import states_of, target
from torch import Tensor

from treespec.draft.trained.block_files import load_block
from treespec.draft.trained.medusa import load_medusa
from treespec.errors import InvalidArgument
from treespec.experiments.training.fresh_heads import LayerSizes, fresh_block, fresh_medusa
from treespec.experiments.training.losses import LOSSES, Labels
from treespec.experiments.training.packing import PackedTexts, Texts
from treespec.experiments.training.students.blocks import BlockStudent
from treespec.experiments.training.students.medusa_heads import MedusaStudent
from treespec.experiments.training.students.student import Student
from treespec.experiments.training.teacher import Teacher
from treespec.features import Features
from treespec.tree import TreeShape

LENGTH, MASK = 24, 95
FORWARD_KL = LOSSES["forward_kl"]
KEPT = torch.arange(3, 93, 3)
HEADS: dict[str, dict[str, Any]] = {
    "medusa": {},
    "medusa, some tokens": {"kept": KEPT},
    "causal": {"causal": True},
    "causal, two layers": {"causal": True, "layers": 2},
    "two-way": {"causal": False},
    "two-way, two layers, some tokens": {"causal": False, "layers": 2, "kept": KEPT},
    "causal, final state": {"causal": True, "reads": Features((3, 1), "post")},
}


def student_of(name: str, anchors: int = LENGTH) -> Any:
    """A student whose weights are large enough that everything that it reads moves its rows."""
    options, model = dict(HEADS[name]), target()
    if name.startswith("medusa"):
        heads = fresh_medusa(model, 3, blocks=2)
        student: Any = MedusaStudent(heads, model, loss=FORWARD_KL, **options)
    else:
        sizes = LayerSizes(48, options.pop("layers", 1))
        head = fresh_block(model, sizes, 0, block_size=4, mask_token=MASK, **options)
        student = BlockStudent(head, model, anchors=anchors, loss=FORWARD_KL)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in student.trained().values():
            weight += 0.2 * torch.randn(weight.shape, generator=generator)
    return student


@dataclass
class Batch:
    """Two rows of several texts with prompts, and what the target teaches of them."""

    student: Student

    def __post_init__(self) -> None:
        random = np.random.default_rng(0)
        ids = [random.integers(0, MASK, size=size) for size in (9, 5, 14, 3, 11, 17, 4)]
        texts = Texts(ids, [3, 1, 6, 2, 0, 4, 1])
        self.packed = PackedTexts(texts, 2, LENGTH, 0)[0]
        self.taught = Teacher(target(), self.student.reads, self.student.kept)(self.packed)

    def texts(self) -> list[tuple[list[int], list[bool]]]:
        """Tokens of each text, as far as a row holds it, and whether they are trained on."""
        found = []
        for ids, text, answer in zip(
            self.packed.ids, self.packed.text, self.packed.answer, strict=True
        ):
            found += [(ids[text == n].tolist(), answer[text == n].tolist()) for n in text.unique()]
        return found


def logs_of(logits: Tensor, kept: Tensor | None) -> Tensor:
    """Log-probabilities of the kept tokens."""
    logs = logits.log_softmax(-1)
    return logs if kept is None else logs[..., kept]


def losses_as_drafted(student: Any, batch: Batch, at_anchor: bool) -> Tensor:
    """The mean loss at each depth, by a drafter that starts over at every token of every text.

    `at_anchor`: whether its drafts begin after a token that is followed by one to be trained on.
    """
    drafter = student.drafter(TreeShape.chain(1))
    depth = drafter.depth
    losses: list[list[Tensor]] = [[] for _ in range(depth)]
    for tokens, answer in batch.texts():
        model = target().fresh()
        states = states_of(model, student.reads, tokens)
        with target().as_transformers() as plain, torch.no_grad():
            right = logs_of(plain(torch.tensor([tokens])).logits[0], student.kept)
        for root in range(len(tokens) - 1):
            if at_anchor and not answer[root + 1]:
                continue
            if not at_anchor and not root:
                continue  # Medusa knows nothing at the first token
            drafter.prefill(torch.tensor(tokens[: root + 1]), states[:root])
            rows = drafter.rows_after((), depth)
            for i in range(1, depth + 1):
                if root + i < len(tokens) and answer[root + i]:
                    logits = rows[i - 1] if student.kept is None else rows[i - 1][student.kept]
                    labels = Labels(right[root + i - 1], torch.tensor(0))
                    losses[i - 1].append(FORWARD_KL(labels, logits))
    assert all(map(len, losses))
    return torch.stack([torch.stack(of_depth).mean() for of_depth in losses])


@pytest.mark.parametrize("name", HEADS)
def test_losses_are_those_of_drafts_on_each_text_alone(name):
    student = student_of(name)
    batch = Batch(student)
    learned = student(batch.taught, torch.Generator().manual_seed(0))
    right = losses_as_drafted(student, batch, at_anchor=not name.startswith("medusa"))
    torch.testing.assert_close(learned.by_depth, right, rtol=1e-5, atol=1e-5)
    weights = 0.8 ** torch.arange(len(right))
    torch.testing.assert_close(learned.loss, (right * weights).sum() / weights.sum())


@pytest.mark.parametrize("name", [name for name in HEADS if not name.startswith("medusa")])
def test_rows_at_an_anchor_are_those_that_are_drafted_there(name):
    student = student_of(name, anchors=6)
    batch = Batch(student)
    anchors = student.drawn(batch.packed, torch.Generator().manual_seed(3))
    with torch.no_grad():
        rows = student.logits(student.hidden(batch.taught, anchors))
    drafter = student.drafter(TreeShape.chain(1))
    for row in range(len(anchors)):
        ids, text = batch.packed.ids[row], batch.packed.text[row]
        for n, place in enumerate(anchors[row].tolist()):
            begin = int((text == text[place]).nonzero()[0])
            tokens = ids[begin : place + 1].tolist()
            drafter.prefill(
                torch.tensor(tokens), states_of(target().fresh(), student.reads, tokens)[:-1]
            )
            drafted = drafter.rows_after((), drafter.depth)
            drafted = drafted if student.kept is None else drafted[:, student.kept]
            torch.testing.assert_close(rows[row, n], drafted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_gradients_reach_all_that_is_trained_and_nothing_of_the_target(name):
    target().model.requires_grad_(True)
    student, shared = student_of(name), set(map(id, target().model.parameters()))
    student(Batch(student).taught, torch.Generator().manual_seed(0)).loss.backward()
    trained = student.trained()
    assert all(bool(weight.grad.any()) for weight in trained.values())
    assert not any("embed" in part or part.startswith("net.head.") for part in trained)
    assert not shared & set(map(id, trained.values()))
    assert all(weight.grad is None for weight in target().model.parameters())


def test_anchors_are_other_tokens_at_every_step_and_the_same_ones_again():
    student = student_of("causal", anchors=5)
    packed = Batch(student).packed
    drawn = [student.drawn(packed, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert all(len(row.unique()) == 5 for row in drawn[0])
    after = drawn[0] + 1
    assert bool(packed.answer.gather(1, after).all())
    assert torch.equal(packed.text.gather(1, after), packed.text.gather(1, drawn[0]))


def test_fresh_heads_of_medusa_begin_at_the_targets_own_row():
    heads, model = fresh_medusa(target(), 3), target()
    states = states_of(model.fresh(), heads.contract.reads, [5, 17, 80])
    with model.as_transformers() as plain, torch.no_grad():
        right = plain(torch.tensor([[5, 17, 80]])).logits[0, -1]
    torch.testing.assert_close(heads(states[-1, 0], 3), right.expand(3, -1))


@pytest.mark.parametrize("name", HEADS)
def test_what_was_trained_drafts_the_same_from_its_files(name, tmp_path):
    """Without the rows of the target's head, and with weights of float32."""
    student = student_of(name)
    student.save(tmp_path / "saved")
    load = load_medusa if name.startswith("medusa") else load_block
    again, rows = load(str(tmp_path / "saved"), target()), []
    states = states_of(target().fresh(), student.reads, [5, 17, 80, 2])
    for net in (student.net, again):
        student.net = net
        drafter = student.drafter(TreeShape.chain(1))
        drafter.prefill(torch.tensor([5, 17, 80, 2, 9]), states)
        rows.append(drafter.rows_after((), drafter.depth))
    torch.testing.assert_close(*rows, rtol=1e-6, atol=1e-6)
    with pytest.raises(InvalidArgument, match="is not empty"):
        student.save(tmp_path / "saved")


def test_a_block_head_reads_what_its_layout_can_name():
    with pytest.raises(InvalidArgument, match="boundary 4 cannot be written"):
        fresh_block(
            target(),
            LayerSizes(48),
            0,
            block_size=4,
            mask_token=MASK,
            causal=True,
            reads=Features((4,)),
        )
