"""Checked data: each problem is reported with its place, its value and what is allowed."""

from typing import Literal

import pytest
from pydantic import BaseModel

from treespec.errors import TreespecError, Unreadable
from treespec.reading_models import Strict, read_form, read_model, with_new_names


class Part(Strict):
    number: int


class Whole(Strict):
    version: Literal[1] = 1
    parts: tuple[Part, ...] = ()


class Form(BaseModel):
    error: str | None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON: line 1, column 2"),
        ("[]", "it must be an object, not []"),
        ('{"version": 2}', "version = 2: must be 1"),
        ('{"part": 2}', "part: unknown key; did you mean 'parts'? (keys here: version, parts)"),
        ('{"parts": 3}', "parts = 3: must be a list"),
        ('{"parts": [{"number": 1}, {"number": "x"}]}', "parts[1].number = 'x': must be an integer"),
        ('{"parts": [{}]}', "parts[0].number is missing"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(text, said):
    with pytest.raises(Unreadable) as caught:
        read_model(Whole, text)
    assert str(caught.value).startswith(said)


def test_what_is_right_is_read():
    assert read_model(Whole, '{"parts": [{"number": 7}]}').parts == (Part(number=7),)


def test_a_file_of_ours_is_checked(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"error": null, "more": 1}')
    assert read_form(path, TreespecError, "remove it", Form) == {"error": None, "more": 1}
    for content, words in (("{", "not JSON"), ('{"error": 3}', "error = 3"), ("{}", "is missing")):
        path.write_text(content)
        with pytest.raises(TreespecError, match=rf"x\.json is damaged: .*{words}.*; remove it"):
            read_form(path, TreespecError, "remove it", Form)
    with pytest.raises(TreespecError, match=r"^\S*y\.json: No such file or directory; remove it"):
        read_form(tmp_path / "y.json", TreespecError, "remove it", Form)


def test_former_names_get_their_present_ones():
    data = {"models": {"target": "x", "grow": "50M"}, "seed": 3}
    assert with_new_names(data) == {"models": {"target": "x", "enlarge": "50M"}, "seed": 3}
    assert with_new_names({"models": "x"}) == {"models": "x"}
