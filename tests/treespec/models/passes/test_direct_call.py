"""Compiled functions that are called without checking guards: which functions are refused."""

from typing import Any

import pytest
import torch

from treespec.errors import Unavailable, UnsupportedModel
from treespec.models.passes.direct_call import DirectCall


class TestGuards:
    """Functions that hold for any number of rows, and functions that hold for some numbers only."""

    @pytest.fixture
    def call(self, traced):
        def made(function, below=(((0, 0), (1, 0)),), **more):
            def alone(*arguments: torch.Tensor) -> tuple[torch.Tensor]:
                return (function(*arguments),)

            return DirectCall(
                alone, [torch.ones(3, 4), torch.ones(7, 4)], [torch.ones(5, 4), torch.ones(9, 4)],
                fixed=1, below=below, options={}, frozen=False, **more,
            )  # fmt: skip

        return made

    def test_any_size(self, call):
        def total(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            torch._check(one.shape[0] < other.shape[0])
            return one + other[: one.shape[0]]

        made = call(total)
        for rows in (2, 6, 11):
            one, other = torch.rand(rows, 4), torch.rand(rows + 1, 4)
            torch.testing.assert_close(made.bound([other])(one)[0], one + other[:rows])

    def test_several_results(self, traced):
        def both(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return one + other, one - other

        examples = [[torch.ones(rows, 4), torch.ones(rows, 4)] for rows in (3, 5)]
        made = DirectCall(both, *examples, fixed=1, options={}, frozen=False)
        one, other = torch.rand(6, 4), torch.rand(6, 4)
        total, difference = made.bound([other])(one)
        torch.testing.assert_close(total, one + other)
        torch.testing.assert_close(difference, one - other)

    def test_a_size_that_may_be_one(self, call):
        def total(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            torch._check(one.shape[0] < other.shape[0])
            return one + other[: one.shape[0]]

        made = call(total, alone=(0, 0))
        for rows in (1, 2, 6):
            one, other = torch.rand(rows, 4), torch.rand(rows + 1, 4)
            torch.testing.assert_close(made.bound([other])(one)[0], one + other[:rows])
        with pytest.raises(UnsupportedModel, match="for some sizes only"):
            call(total, alone=(0, 0), below=())

    def test_what_holds_for_two_and_more_is_refused_of_a_size_that_may_be_one(self, call):
        def total(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            torch._check(one.shape[0] >= 2)
            torch._check(one.shape[0] < other.shape[0])
            return one + other[: one.shape[0]]

        call(total)
        with pytest.raises(UnsupportedModel, match="for some sizes only"):
            call(total, alone=(0, 0))

    @pytest.mark.parametrize("single", [1, 2])
    def test_a_branch_on_a_size_that_may_be_one_is_refused(self, single, call):
        def branching(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return one + 1 if one.shape[0] == single else one + 2

        with pytest.raises(Exception, match="data-dependent"):
            call(branching, alone=(0, 0))

    @pytest.mark.parametrize("many", [2, 3, 5])
    def test_a_branch_on_a_size_is_refused(self, many, call):
        def branching(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return one + 1 if one.shape[0] > many else one + 2

        with pytest.raises(UnsupportedModel, match=f"for some sizes only, those with .*{many}"):
            call(branching)

    def test_a_relation_that_nobody_promised_is_refused(self, call):
        def total(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return one + other[: one.shape[0]] if one.shape[0] <= other.shape[0] else one

        call(total)
        with pytest.raises(UnsupportedModel, match="for some sizes only"):
            call(total, below=())

    def test_a_bound_that_was_promised(self, call):
        def counting(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return one + 1 if 2 * one.shape[0] < 100 else one + 2

        made = call(counting, at_most={(0, 0): 49})
        torch.testing.assert_close(
            made.bound([torch.ones(60, 4)])(torch.ones(49, 4))[0], 2 * torch.ones(49, 4)
        )
        for most in ({(0, 0): 50}, {(1, 0): 49}, {}):
            with pytest.raises(UnsupportedModel, match=r"for some sizes only, those with .*100"):
                call(counting, at_most=most)

    def test_a_branch_in_the_middle_is_refused_whatever_the_bound(self, call):
        def branching(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return one + 1 if one.shape[0] ** 2 - 20 * one.shape[0] < -40 else one + 2

        with pytest.raises(UnsupportedModel, match="for some sizes only"):
            call(branching, at_most={(0, 0): 10})

    def test_a_fixed_size_that_equals_a_varying_one(self, traced):
        def total(
            one: torch.Tensor, first: torch.Tensor, second: torch.Tensor
        ) -> tuple[torch.Tensor]:
            return (one + 1 if second.storage_offset() >= 12 * first.shape[1] else one + 2,)

        def examples(rows: int, places: int) -> list[torch.Tensor]:
            return [torch.ones(rows, 4), *torch.ones(2, 3, places, 4)]

        made = DirectCall(total, examples(3, 7), examples(5, 9), fixed=2, options={}, frozen=False)
        one, *fixed = examples(6, 8)
        torch.testing.assert_close(made.bound(fixed)(one)[0], one + 1)

    @pytest.mark.parametrize("kind", ["size", "scalar"])
    def test_without_checks_of_sizes(self, kind, call):
        config: Any = torch._inductor.config
        with (
            config.patch({f"{kind}_asserts": False}),
            pytest.raises(Unavailable, match=f"TORCHINDUCTOR_{kind.upper()}_ASSERTS=0: remove it"),
        ):
            call(lambda one, other: one + 1)
