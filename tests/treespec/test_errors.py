"""Errors of other libraries are rephrased in one line without class names."""

import re

import pytest
import torch

from attention_masks.errors import InvalidInput
from treespec.errors import CannotEnlarge, NonFiniteLogits, in_words, said

NAMES = re.compile(r"[A-Z]\w*(Error|Exception|Warning)|<class")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (CannotEnlarge("too  small;\nuse 9"), "too small; use 9"),
        (InvalidInput("k = 3: out"), "k = 3: out"),
        (RuntimeError("CUDA error: an illegal access"), "CUDA error: an illegal access"),
        (RuntimeError("ZeusError: RuntimeError: no such GPU"), "no such GPU"),
        (OSError(28, "No space left on device", "a/b"), "a/b: No space left on device"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (MemoryError(), "out of memory"),
        (MemoryError("no room"), "out of memory: no room"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "CUDA out of memory. Tried"),
        (KeyError("x"), "an error inside the test: there is no 'x'"),
        (AssertionError(), "an error inside the test, without a message"),
        (ZeroDivisionError("division by zero"), "an error inside the test: division by zero"),
        (OSError("no such device\nand more"), "no such device"),
        (RuntimeError("boom"), "an error inside the test: boom"),
        (RuntimeError("see KeyError for more"), "see an error for more"),
        (RuntimeError("RuntimeError thing that broke"), "thing that broke"),
        (RuntimeError("RuntimeError thing"), "an error inside the test: thing"),
        (RuntimeError("ValueError"), "an error inside the test, without a message"),
        (RuntimeError("RuntimeError: CUDA error: an assert"), "CUDA error: an assert"),
        (RuntimeError("CUDA error: RuntimeError: no luck"), "CUDA error: no luck"),
        (RuntimeError("OddError was raised in a kernel"), "an error was raised in a kernel"),
        (RuntimeError("an OddError, then the KeyError"), "an error, then the error"),
        (ValueError("'int' object is not callable"),
         "an error inside the test: 'int' object is not callable"),
    ],
)  # fmt: skip
def test_an_error_in_words(error, words):
    assert in_words(error, "the test") == words


@pytest.mark.parametrize(
    "kind", [Exception, TypeError, UnicodeError, RuntimeError, OSError, KeyError]
)
@pytest.mark.parametrize("text", ["", "ValueError: ", "a.b.OddError", "x" * 9999, "\n\n"])
def test_no_class_and_no_long_text(kind, text):
    words = in_words(kind(text), "the test")
    assert not NAMES.search(words)
    assert words
    assert len(words) < 400
    assert "\n" not in words


def test_errors_of_ours_that_name_a_place():
    assert "step 2, node 3" in in_words(NonFiniteLogits(3, step=2), "the test")


def test_what_is_said_for_people():
    assert said(ValueError("Not a folder. Try again.")) == "Not a folder"
    assert said(TypeError("Not a folder")) is None
    assert said(ValueError("'NoneType' object is not iterable")) is None
