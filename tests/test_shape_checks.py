"""Signatures are checked while these tests run: what the quicker decorators refuse."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest
import shape_checks
import torch
from beartype import beartype
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from treespec import TreeShape
from treespec.verify.kseq import division_factor

checked = partial(shape_checks.checked, typechecker=beartype)
TWO, THREE = torch.ones(2), torch.ones(3)


@checked
def joined(a: Float[Tensor, "V"], b: Float[Tensor, "V"], times: int = 1) -> Float[Tensor, "V"]:
    return torch.cat([a, b]) if times > 1 else a + b


@checked
def paired(a: tuple[int, Float[Tensor, "V"]], b: Sequence[Float[Tensor, "V"] | None]) -> None: ...


@checked
def count(values: list[int], most: int | None = None) -> int:
    return len(values) if most is None else "many"


@checked
def each(row: Float[Tensor, "V"], other: Float[Tensor, "V"]) -> Iterator[float]:
    yield from row.tolist()


@checked
@dataclass
class Pair:
    left: Float[Tensor, "V"]
    right: Float[Tensor, "V"]
    seen: list[int] = field(default_factory=list)

    @classmethod
    @checked
    def of(cls, name: str) -> "Pair":
        return name if name else cls(TWO, TWO)


REFUSED = {
    "an axis of two sizes": lambda: joined(TWO, THREE),
    "in a container": lambda: paired((0, TWO), [THREE]),
    "of the result": lambda: joined(TWO, TWO, 2),
    "another dtype": lambda: joined(TWO.int(), TWO),
    "a type beside shapes": lambda: joined(TWO, TWO, "1"),
    "a type": lambda: count("ab"),
    "a type of the result": lambda: count([1], 1),
    "of a generator": lambda: each(TWO, THREE),
    "of a dataclass": lambda: Pair(TWO, THREE),
    "a field": lambda: Pair(TWO, TWO, "ab"),
    "of the core": lambda: division_factor(TWO, THREE, 2),
    "a type of the core": lambda: division_factor(TWO, TWO, "2"),
    "a dataclass of the core": lambda: TreeShape("ab"),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_refused(call):
    with pytest.raises(TypeCheckError):
        call()


def test_what_fits_passes():
    assert joined(TWO, b=TWO).tolist() == [2, 2]
    assert joined(THREE, THREE).tolist() == [2, 2, 2]  # sizes of one call bind no other
    assert (paired((0, TWO), [TWO]), count([1]), list(each(TWO, TWO))) == (None, 1, [1, 1])
    assert Pair(TWO, TWO).seen == Pair.of("").seen == []


def test_without_shape_checks(without_shape_checks):
    assert joined(TWO, torch.ones(1)).tolist() == [2, 2]
    assert count("ab") == 2


@pytest.mark.parametrize(
    ("before", "says"),
    [("", "TypeCheckError"), ("import sys; sys.modules['beartype'] = None\n", "pip install")],
)
def test_users_switch_them_on(before, says):
    code = f"{before}from treespec import TreeShape; TreeShape('ab')"
    command = [sys.executable, "-c", code]
    env = {**os.environ, "TREESPEC_STRICT": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert says in done.stderr
