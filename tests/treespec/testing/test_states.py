"""The state of decoding as a value, and that laws are the same with and without merging equal states."""

from collections import deque
from functools import cache, partial
from operator import length_hint

import numpy as np
import pytest
import torch

from treespec import Law, Sampling, TreeShape, verify
from treespec.draft import ModelDrafter
from treespec.testing import Rationals, TabularModel, output_law, random_table, target_law
from treespec.testing.states import state_of
from treespec.tree import TokenTree

V, PROMPT = 2, (0, 1, 0)


@cache
def table(seed):
    return TabularModel(random_table(V, seed), V)


class Thing:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Slotted:
    __slots__ = ("kept",)

    def __init__(self, kept):
        self.kept = kept


class Private:
    __slots__ = ("__kept",)

    def __init__(self, kept):
        self.__kept = kept


class PrivateBelow(Private):
    """Has a second slot of the same name."""

    __slots__ = ("__kept", "empty")

    def __init__(self, kept):
        super().__init__(kept)
        self.__kept = 0


class SameName(Slotted):
    __slots__ = ("kept",)

    def __init__(self, kept):
        Slotted.kept.__set__(self, kept)
        self.kept = 0


def closing_over(kept):
    return lambda: kept


def with_default(kept):
    def call(own=kept):
        return own

    return call


HOLDERS = {
    "attribute": lambda kept: Thing(kept=kept),
    "slot": Slotted,
    "private slot": Private,
    "private slot of a base": PrivateBelow,
    "slot of a base with the same name": SameName,
    "element": lambda kept: [1, kept],
    "key": lambda kept: {kept: 1},
    "value": lambda kept: {1: kept},
    "deque": lambda kept: deque([kept]),
    "set": lambda kept: {kept},
    "closure": closing_over,
    "default": with_default,
    "partial": lambda kept: partial(print, kept),
    "method": lambda kept: Thing(inner=[kept].append),
    "tensor": lambda kept: torch.tensor([0, kept]),
    "array": lambda kept: np.array([0, kept]),
    "fractions": lambda kept: Rationals([0, kept]),
    "tree": lambda kept: TokenTree(
        TreeShape.chain(0), torch.tensor([kept]), None, Law.DETERMINISTIC
    ),
    "generator": lambda kept: torch.Generator().manual_seed(kept),
    "cache of a table": lambda kept: prefilled(table(1).fresh(), kept),
}


def prefilled(model, token):
    model.prefill(torch.tensor([token]))
    return model


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_is_remembered_counts_wherever_it_is_kept(holder):
    make = HOLDERS[holder]
    assert state_of(make(3)) == state_of(make(3)) is not None
    assert hash(state_of(make(3))) == hash(state_of(make(3)))
    assert state_of(make(3)) != state_of(make(4))


def test_kinds_and_places_count():
    assert state_of(1) != state_of(True) != state_of(1.0)
    assert state_of([1, 2]) != state_of((1, 2)) != state_of([2, 1])
    one, other = [0], [0]
    assert state_of([one, one]) != state_of(
        [one, other]
    )  # a change to the first element changes both
    assert state_of([one], [one]) == state_of([one], [other])
    around = [1]
    around.append(around)
    assert state_of(around) is not None


def test_many_functions_that_are_made_alike_are_equal():
    """Inspected objects are not confused, even if temporary objects reuse addresses."""

    def make():
        return [closing_over([i % 2]) for i in range(100)]

    assert len({state_of(make()) for _ in range(20)}) == 1
    one = [0]
    assert state_of([closing_over(one), closing_over(one)]) != state_of(
        [closing_over([0]), closing_over([0])]
    )


def test_tables_are_equal_if_their_rows_are_the_same_function():
    assert state_of(table(1).fresh()) == state_of(table(1).fresh())
    assert state_of(table(1).fresh()) != state_of(table(2).fresh())


def test_rows_that_a_table_has_forgotten_do_not_count():
    one, other = (prefilled(table(1).fresh(), 0) for _ in range(2))
    one.run(torch.tensor([1]), (-1,))
    other.run(torch.tensor([1, 0, 1]), (-1, 0, 0))
    assert state_of(one) != state_of(other)
    one.keep([0])
    other.keep([0])
    assert state_of(one) == state_of(other)


@pytest.mark.parametrize("hint", [int | None, list[int]], ids=str)
def test_hints_that_checked_functions_keep_are_no_state(hint):
    assert state_of(partial(print, hint)) == state_of(partial(print, hint)) is not None


@pytest.mark.parametrize(
    "hidden",
    [
        (x for x in "ab"),
        iter([1]),
        np.random.default_rng(0),
        torch.zeros(2, dtype=torch.bfloat16),
        torch.zeros(2).to_sparse(),
        torch.zeros(2, device="meta"),
    ],
)
def test_what_cannot_be_looked_at_is_said_to_be_unknown(hidden):
    assert state_of(Thing(kept=[hidden])) is None


class Mistaken(ModelDrafter):
    """States wrong draft rows once a draft was accepted, which the text alone does not determine."""

    def __init__(self, *given, kept=None, remember=None, told=None):
        super().__init__(*given)
        self.kept = kept
        self.remember, self.told = remember or self._remember, told or self._told

    def _remember(self):
        self.kept = True

    def _told(self):
        return self.kept

    def propose(self, coins):
        tree = super().propose(coins)
        if not self.told():
            return tree
        return TokenTree(tree.shape, tree.tokens, torch.full((1, V), 0.5).double(), tree.law)

    def commit(self, step):
        super().commit(step)
        if step.verdict.accepted:
            self.remember()


def remembering(where, *given):
    if where == "attribute":
        return Mistaken(*given)
    if where == "closure":
        seen = []
        return Mistaken(*given, remember=lambda: seen.append(1), told=lambda: seen)
    if where == "tensor":
        seen = torch.zeros(1)
        return Mistaken(*given, remember=lambda: seen.add_(1), told=lambda: bool(seen))
    assert where == "iterator"
    seen = iter([0])
    return Mistaken(*given, remember=lambda: next(seen, 0), told=lambda: not length_hint(seen))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("where", ["attribute", "closure", "tensor", "iterator"])
def test_a_bias_that_depends_on_what_is_remembered_is_found(where):
    """After the same text, one branch is unbiased and the other is biased."""
    shape, sampling = TreeShape.chain(1), Sampling()
    law = partial(
        output_law, verify.chain, shape, Law.IID, target=table(3), draft=table(4), tokens=4,
        prompt=PROMPT,
    )  # fmt: skip
    right = target_law(table(3), PROMPT, 4, sampling)
    assert float((law().probs - right).abs().max()) < 1e-12
    found = law(draft_with=partial(remembering, where)).probs
    assert float((found - right).abs().max()) > 1e-3
    whole = law(draft_with=lambda *given: apart(remembering(where, *given))).probs
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-14)


def apart(drafter):
    """The same drafter, with a state that cannot be inspected."""
    drafter.unseen = iter(())
    return drafter


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("exact", [False, True])
def test_laws_are_those_of_all_branches(exact):
    tree = TreeShape.expansion([2])
    makers = [(verify.rrs, Law.IID, ModelDrafter)]
    if not exact:
        makers.append((verify.rrsw, Law.WITHOUT_REPLACEMENT, ModelDrafter))
    for rule, law, make in makers:
        united, whole = (
            output_law(
                rule, tree, law, target=table(3), draft=table(4), tokens=3, prompt=PROMPT, exact=exact,
                draft_with=lambda *given, kept=kept, make=make: kept(make(*given)),
            )
            for kept in (lambda drafter: drafter, apart)
        )  # fmt: skip
        difference = (united.probs - whole.probs).abs().max()
        assert difference.item() == 0 if exact else float(difference) < 1e-14
        assert united.runs < whole.runs
