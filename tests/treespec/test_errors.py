"""Errors of other libraries in one line."""

import pytest

from attention_masks.errors import InvalidInput
from treespec.errors import (
    CannotEnlarge,
    InvalidPlugin,
    NonFiniteLogits,
    in_words,
    one_line,
    said,
    visible,
)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (CannotEnlarge("too  small;\nuse 9"), "too small; use 9"),
        (InvalidInput("k = 3: out"), "k = 3: out"),
        (RuntimeError("CUDA error: an illegal access\nand more"), "CUDA error: an illegal access"),
        (OSError(28, "No space left on device", "a/b"), "a/b: No space left on device"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (KeyError("x"), "an error inside the test: KeyError 'x'"),
        (AssertionError(), "an error inside the test: AssertionError"),
        (ZeroDivisionError("division by zero"), "an error inside the test: division by zero"),
        (RuntimeError("boom"), "an error inside the test: boom"),
        (ValueError("'int' object is not callable"),
         "an error inside the test: 'int' object is not callable"),
    ],
)  # fmt: skip
def test_an_error_in_words(error, words):
    assert in_words(error, "the test") == words


def test_long_texts_are_cut():
    assert len(in_words(ValueError("x" * 9999), "the test")) < 400


def test_errors_of_ours_that_name_a_place():
    assert "step 2, node 3" in in_words(NonFiniteLogits(3, step=2), "the test")


def test_what_is_said_for_people():
    assert said(ValueError("Not a folder. Try again.")) == "Not a folder"
    assert said(TypeError("Not a folder")) is None
    assert said(ValueError("'NoneType' object is not iterable")) is None


@pytest.mark.parametrize("base", [ValueError, OSError, InvalidPlugin])
def test_an_error_that_cannot_be_printed(base):
    class Mute(base):
        def __str__(self):
            raise RuntimeError

    assert "Mute, whose message cannot be printed" in in_words(Mute(), "the rule")
    assert base is not InvalidPlugin or "cannot be printed" in f"{Mute()}"
    assert said(Mute()) is None or "cannot be printed" in said(Mute())


def test_terminals_obey_no_text():
    assert visible("a\x1b[2J\x9b\r\n\tb\r\u202e\udce9é") == "a\\x1b[2J\\x9b\n\tb\\r\\u202e\\udce9é"
    assert one_line("a\u3000b é")
    assert not any(map(one_line, ("a\nb", "a\tb", "a\x7fb", "a\x85b")))
