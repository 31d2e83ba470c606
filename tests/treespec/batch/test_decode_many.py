"""The driver: what it joins, what it refuses, and how texts begin and end; over tables."""

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from many_texts import alone, require_equal, together
from tiny_models import VOCAB, build, perturbed

from treespec import Law, Sampling, TorchCoins, TreeShape, verify
from treespec.batch import Failed, Text, decode_many
from treespec.draft import ModelDrafter, NoDrafter, PromptLookup
from treespec.errors import ContextOverflow, EmptyPrompt, InvalidArgument, InvalidTree
from treespec.models.transformers_model import TransformersModel
from treespec.protocols import Coins
from treespec.target import ModelTarget
from treespec.testing import TabularModel, random_table
from treespec.tree import TokenTree

TARGET, DRAFT = (TabularModel(random_table(5, seed), 5, max_length=40) for seed in (0, 1))
WARM = Sampling()
SHAPE = TreeShape.expansion([2, 1])


def text(i: int, **changes: Any) -> Text:
    """Text i: a tree that is drawn, a prompt and a length of its own."""
    prompt = torch.tensor([(i + j) % 5 for j in range(1 + i % 3)])
    drafter = ModelDrafter(DRAFT, SHAPE, Law.WITHOUT_REPLACEMENT, WARM)
    made = Text(
        ModelTarget(TARGET), drafter, verify.rrsw, prompt, WARM, TorchCoins(i), 6 + 3 * i % 7
    )
    return replace(made, **changes)


class Own(ModelDrafter):
    """Does something in the second tree, between the passes of its model."""

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__(DRAFT, SHAPE, Law.WITHOUT_REPLACEMENT, WARM)
        self.act, self.trees = act, 0

    def propose(self, coins: Coins) -> TokenTree:
        self.trees += 1
        if self.trees == 2:
            self.act()
        return super().propose(coins)


@pytest.mark.parametrize("places", [1, 2, 5, None])
def test_texts_are_what_they_are_alone(places: int | None) -> None:
    told = require_equal(text, 7, places)
    assert len({len(one.tokens) for one in told}) > 2


def test_texts_without_a_model_that_drafts_join_those_with_one() -> None:
    drafters = (NoDrafter, lambda: PromptLookup(3), lambda: text(0).drafter)
    rules = (verify.naive, verify.naive, verify.rrsw)
    require_equal(lambda i: text(i, drafter=drafters[i % 3](), verifier=rules[i % 3]), 6, 4)


def test_a_text_begins_when_another_ends() -> None:
    begun: list[int] = []

    def seen(i: int) -> Any:
        return lambda ids: begun.append(i) if i not in begun else None

    ended: set[int] = set()
    texts = [text(i, stop=seen(i), max_new_tokens=3 + i) for i in range(5)]
    last = {}
    for i, step in decode_many(texts, places=2):
        last[i] = last.get(i, 0) + len(step.tokens)
        ended |= {j for j, count in last.items() if count == 3 + j}
        assert len(begun) <= len(ended) + 2
    assert begun == [0, 1, 2, 3, 4]
    assert ended == {0, 1, 2, 3, 4}
    assert [*decode_many([])] == []


def test_bad_prompts_fail_alone() -> None:
    bad = {1: torch.tensor([], dtype=torch.long), 3: torch.zeros(41, dtype=torch.long)}
    make = lambda i: text(i, **({"prompt": bad[i]} if i in bad else {}))  # noqa: E731
    found = dict.fromkeys(range(5))
    for i, step in decode_many([make(i) for i in range(5)]):
        found[i] = step
    kinds = {i: type(step.error) for i, step in found.items() if isinstance(step, Failed)}
    assert kinds == {1: EmptyPrompt, 3: ContextOverflow}
    require_equal(make, 5)


def fail() -> None:
    raise ZeroDivisionError("in the second tree")


def test_a_drafter_that_fails_ends_its_own_text() -> None:
    make = lambda i: text(i, **({"drafter": Own(fail)} if i in (0, 2) else {}))  # noqa: E731
    told = require_equal(make, 4)
    assert [one.error is None for one in told] == [False, True, False, True]
    assert "ZeroDivisionError: in the second tree" in str(told[0].error)
    assert len(told[0].tokens) == 1


def test_nodes_that_a_model_refuses_end_their_own_text() -> None:
    """In a joined pass too, over real models, which check the nodes of all texts."""
    target = TransformersModel(build("llama").double())
    draft = TransformersModel(perturbed(target.model, 0.15).double())

    class Astray(ModelDrafter):
        def propose(self, coins: Coins) -> TokenTree:
            self.model.run(torch.tensor([1]), (-1, 0, 1, 2), 3)
            raise AssertionError("it ran")

    def make(i: int) -> Text:
        kind = Astray if i == 1 else ModelDrafter
        return Text(
            ModelTarget(target), kind(draft, SHAPE, Law.DETERMINISTIC, Sampling(0.0)), verify.greedy,
            torch.tensor([1 + i, 2]), Sampling(0.0), TorchCoins(0), 6,
        )  # fmt: skip

    told = require_equal(make, 3)
    assert str(told[1].error).startswith(InvalidTree.__name__)
    assert told[0].error is told[2].error is None


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("what", ["target", "drafter", "coins"])
def test_parts_belong_to_one_text(what: str) -> None:
    texts = [text(0), text(1), text(2)]
    texts[2] = replace(texts[2], **{what: getattr(texts[1], what)})
    with pytest.raises(InvalidArgument, match=rf"texts\[1\] and texts\[2\] have the same {what}"):
        decode_many(texts)
    with pytest.raises(InvalidArgument, match=r"texts\[1\] = 3 is a int"):
        decode_many([text(0), 3])  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(InvalidArgument, match="places = 0"):
        decode_many([text(0)], places=0)


def test_inference_mode_is_not_left_across_a_pass() -> None:
    class Leaves(ModelDrafter):
        def propose(self, coins: Coins) -> TokenTree:
            with torch.inference_mode(False):
                return super().propose(coins)

    leaves = Leaves(DRAFT, SHAPE, Law.WITHOUT_REPLACEMENT, WARM)
    with pytest.raises(InvalidArgument, match=r"texts\[1\]: .* has left inference mode"):
        together([text(0), text(1, drafter=leaves)])
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_a_pass_that_needs_too_much_memory_says_for_how_many_texts(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: Any, parts: Any) -> Any:
        raise error("no room")

    monkeypatch.setattr(TabularModel, "run_together", run)
    with pytest.raises(torch.OutOfMemoryError, match=r"over 3 nodes of 3 texts at a time.*places"):
        together([text(i) for i in range(3)])


class Ended(PromptLookup):
    """Notes that it was ended, and in which mode."""

    def __init__(self, notes: list[bool]) -> None:
        super().__init__(2)
        self.notes = notes
        self.model = DRAFT.fresh()

    def propose(self, coins: Coins) -> TokenTree:
        try:
            self.model.run(torch.tensor([0]), (-1,))
            return super().propose(coins)
        finally:
            self.notes.append(torch.is_inference_mode_enabled())


@pytest.mark.parametrize("how", ["close", "forget"])
def test_closing_early_ends_every_text(how: str) -> None:
    notes: list[bool] = []
    texts = [text(i, drafter=Ended(notes), verifier=verify.naive) for i in range(4)]
    steps = decode_many(texts)
    with torch.enable_grad():
        next(steps)
        assert len(notes) == 4  # all have drafted once, and one has gone on to its step
        for _ in range(4):
            next(steps)  # now some wait in their next draft
        if how == "close":
            steps.close()
        del steps
        gc.collect()
        assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert len(notes) == 8
    assert all(notes)


def test_the_mode_of_the_caller_stays_as_it_is() -> None:
    for _ in decode_many([text(0), text(1)]):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
    with torch.no_grad():
        for _ in decode_many([text(0)]):
            assert not torch.is_grad_enabled()


def test_a_step_runs_each_model_once_a_level_for_all_texts() -> None:
    target = TransformersModel(build("llama").double())
    draft = TransformersModel(perturbed(target.model, 0.15).double())
    cold, calls, count = Sampling(0.0), Counter[str](), 6
    shape = TreeShape.expansion([2, 2, 1])

    def make(i: int) -> Text:
        return Text(
            ModelTarget(target), ModelDrafter(draft, shape, Law.DETERMINISTIC, cold), verify.greedy,
            torch.arange(1 + i, 4 + 2 * i) % VOCAB, cold, TorchCoins(i), 12,
        )  # fmt: skip

    for name, model in (("target", target.model), ("draft", draft.model)):
        model.register_forward_pre_hook(lambda *_, name=name: calls.update([name]))
    rounds = max(len(alone(make(i)).tokens) for i in range(count))
    calls.clear()
    told = together([make(i) for i in range(count)])
    assert [len(one.tokens) for one in told].count(rounds)
    assert calls == {"target": rounds, "draft": rounds * shape.depth}
