"""Errors of other libraries are told in one line."""

import pytest
import torch

from attention_masks.errors import InvalidInput
from treespec.errors import CannotEnlarge, NonFiniteLogits, in_words, said


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (CannotEnlarge("too  small;\nuse 9"), "too small; use 9"),
        (InvalidInput("k = 3: out"), "k = 3: out"),
        (RuntimeError("CUDA error: an illegal access\nand more"), "CUDA error: an illegal access"),
        (OSError(28, "No space left on device", "a/b"), "a/b: No space left on device"),
        (MemoryError("no room"), "out of memory: no room"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "CUDA out of memory. Tried"),
        (KeyError("x"), "an error inside the test: KeyError: 'x'"),
        (AssertionError(), "an error inside the test: AssertionError"),
        (RuntimeError("boom"), "an error inside the test: RuntimeError: boom"),
    ],
)
def test_an_error_in_words(error, words):
    assert in_words(error, "the test") == words


def test_long_messages_are_cut():
    assert len(in_words(TypeError("x " * 9999), "the test")) < 400


def test_errors_of_ours_that_name_a_place():
    assert "step 2, node 3" in in_words(NonFiniteLogits(3, step=2), "the test")


def test_what_is_said_for_people():
    assert said(ValueError("Not a folder. Try again.")) == "Not a folder"
    assert said(TypeError("Not a folder")) is None
