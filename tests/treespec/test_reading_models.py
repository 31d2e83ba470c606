"""Validated data: each problem is reported with its place, its value and what is allowed."""

from typing import Annotated, Any

import pytest
from pydantic import PlainValidator

from treespec.errors import Unreadable
from treespec.reading_models import Strict, misplaced, only, read_model


def looked_into(value: Any) -> Any:
    raise misplaced("64.1", -2, "a time must be a number of at least 0")


class Part(Strict):
    number: int


class Whole(Strict):
    version: Annotated[int, only(1, "this treespec reads version 1")] = 1
    parts: tuple[Part, ...] = ()
    times: Annotated[Any, PlainValidator(looked_into)] = None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON: line 1, column 2: a key in double quotes is missing"),
        ("[]", "it must be an object, not []"),
        ('{"version": 2}', "version = 2: this treespec reads version 1"),
        ('{"version": true}', "version = True: this treespec reads version 1"),
        ('{"part": 2}', "part: unknown key; did you mean 'parts'? (keys here: version, parts, times)"),
        ('{"parts": 3}', "parts = 3: must be a list"),
        ('{"parts": [{"number": 1}, {"number": "x"}]}', "parts[1].number = 'x': must be an integer"),
        ('{"parts": [{}]}', "parts[0].number is missing"),
        ('{"times": {"64": {"1": -2}}}', "times.64.1 = -2: a time must be a number of at least 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(text, said):
    with pytest.raises(Unreadable) as caught:
        read_model(Whole, text)
    assert str(caught.value) == said


def test_what_is_right_is_read():
    assert read_model(Whole, '{"parts": [{"number": 7}]}').parts == (Part(number=7),)
    assert read_model(Whole, b"{}").version == 1
