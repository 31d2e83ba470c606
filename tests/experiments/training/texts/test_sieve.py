"""What is kept of candidates, and hashes of rows of tokens."""

from collections import Counter

import numpy as np
import pytest

from treespec.experiments.training.texts.grams import distinct_share, gram_hashes, most_repeats
from treespec.experiments.training.texts.leaks import HeldOutPrompts, Leaks
from treespec.experiments.training.texts.sieve import Candidate, Sieve, stop_at_loop

RNG = np.random.default_rng(0)


def text(*parts, prompt=2):
    return Candidate(np.concatenate([np.array(part) for part in parts]), prompt)


def sieve(kept=()):
    secret = tuple(range(100, 120))
    return Sieve(Leaks(HeldOutPrompts((secret,), frozenset())), kept)


def test_hashes_are_equal_for_equal_rows_only():
    ids = RNG.integers(0, 6, 4000)
    rows = [tuple(ids[i : i + 4]) for i in range(len(ids) - 3)]
    hashes = gram_hashes(ids, 4).tolist()
    assert len(set(hashes)) == len(set(rows)) == len(set(zip(rows, hashes, strict=True)))
    assert gram_hashes(ids[:3], 4).size == 0
    assert distinct_share([ids], 4) == pytest.approx(len(set(rows)) / len(rows))


def test_texts_are_dropped_for_the_first_of_their_faults():
    good, row = RNG.integers(200, 9000, 40), list(range(8))
    other = RNG.integers(200, 9000, 40)
    candidates = [
        text(good),
        text(good),
        text(row, good, row, other, row, prompt=0),
        text(row, good, row, other, row, [1], row, prompt=0),
        text(row, row, row, row, good, prompt=32),
        text(good[:9]),
        text(good[:10]),
        text(good, range(103, 116)),
        Candidate(np.zeros(0, np.int64), fault="prompt not ended"),
    ]
    kept, dropped = sieve().sift(candidates)
    assert [i for i, one in enumerate(candidates) if any(one is k for k in kept)] == [0, 2, 4, 6]
    assert dropped == Counter(
        {"duplicate": 1, "loop": 1, "short": 1, "leak": 1, "prompt not ended": 1}
    )


def test_texts_kept_before_are_duplicates_in_any_dtype():
    ids = RNG.integers(200, 9000, 40)
    assert sieve([ids.astype(np.uint16)]).sift([text(ids)])[1] == {"duplicate": 1}


def test_a_text_is_stopped_where_it_becomes_a_loop():
    row, prompt = list(range(8)), [9] * 40
    answer = row + [50] + row + [51] + row + [52, 53] + row + [54] * 20
    ends, ids = stop_at_loop(len(prompt)), list(prompt)
    for token in answer:
        ids.append(token)
        if ends(ids):
            break
    assert most_repeats(ids[len(prompt) :], 8) == 4
    assert ids[-1] == 7
    assert len(ids) == 40 + 8 * 4 + 4
