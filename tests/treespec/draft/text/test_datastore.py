"""The datastore: every string is found at its places; incomplete files are refused."""

import errno
import json
import resource

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treespec.draft import Datastore
from treespec.draft.text.datastore import HEAD_BYTES, suffix_array
from treespec.errors import InvalidArgument, Unreadable

TEXTS = [[0, 1, 2, 0, 1], [1, 0, 1, 1], [2]]


@pytest.fixture
def store(tmp_path):
    return Datastore.build(tmp_path / "x", TEXTS, vocab_size=3, tokenizer="abc")


def places(store, string):
    return sorted(store.places[list(store.find(string))].tolist())


@given(st.lists(st.integers(-1, 2), min_size=1, max_size=40), st.integers(0, 3))
def test_the_order_is_that_of_the_tokens_that_follow(tokens, doublings):
    by = 2**doublings
    found = suffix_array(np.array(tokens, dtype=np.int32), by)
    expected = sorted(range(len(tokens)), key=lambda at: (tokens[at : at + by], at))
    assert found.tolist() == expected


def test_every_string_is_found(store):
    text = store.tokens.tolist()
    assert text == [0, 1, 2, 0, 1, -1, 1, 0, 1, 1, -1, 2, -1]
    strings = {tuple(text[i:j]) for i in range(len(text)) for j in range(i + 1, len(text))}
    for string in strings | {(2, 2), (1, 2, 1), (5,)}:
        at = [i for i in range(len(text)) if tuple(text[i : i + len(string)]) == string]
        assert places(store, string) == at


def test_the_longest_ending(store):
    assert store.longest([2, 1, 0, 1], 1)[0] == 3
    assert store.longest([2, 1, 0, 1], 4) == (0, range(0))
    assert store.longest([5], 1) == (0, range(0))
    assert store.longest([2, 0, 1], 1)[0] == 3


def test_large_token_ids(tmp_path):
    ids = [65_535, 65_536, 131_072, 2**31 - 2]
    store = Datastore.build(tmp_path / "x", [ids], vocab_size=2**31 - 1)
    for i, token in enumerate(ids):
        assert places(store, [token]) == [i]


def test_the_file_says_what_it_is(store):
    assert store.about["texts"] == 3
    assert store.about["tokens"] == 13
    assert store.path.stat().st_size == HEAD_BYTES + 8 * 13
    again = Datastore(store.path, vocab_size=3, tokenizer="abc")
    assert again.about == store.about
    assert not again.tokens.flags.writeable


def rewritten(path, **entries):
    data = path.read_bytes()
    header = json.loads(data[:HEAD_BYTES]) | entries
    path.write_bytes(json.dumps(header).encode().ljust(HEAD_BYTES) + data[HEAD_BYTES:])


def test_files_that_are_refused(store, tmp_path):
    whole = store.path.read_bytes()
    for said, wanted in {
        "vocabulary of 3 tokens, but the target has 2": {"vocab_size": 2},
        "another tokenizer": {"tokenizer": "def"},
    }.items():
        with pytest.raises(Unreadable, match=said):
            Datastore(store.path, **wanted)
    for said, data in {
        "104 bytes|not a datastore": whole[:104],
        "truncated": whole[:-4],
        "not a datastore": b"some text\n",
        "changed": whole + b"1234",
    }.items():
        path = tmp_path / "other"
        path.write_bytes(data)
        with pytest.raises(Unreadable, match=said):
            Datastore(path)
    for said, entries in {
        "of version 2": {"version": 2},
        "of version True": {"version": True},
        "truncated or changed": {"tokens": 12},
        "damaged": {"tokens": -1},
        "a damaged datastore": {"texts": None},
        "does not state its vocabulary": {"vocab_size": None},
        "does not state": {"tokenizer": 3},
        "not a datastore": {"format": "other"},
    }.items():
        path.write_bytes(whole)
        rewritten(path, **entries)
        with pytest.raises(Unreadable, match=said):
            Datastore(path)
    with pytest.raises(Unreadable, match="No such file"):
        Datastore(tmp_path / "none")


def test_texts_that_are_refused(tmp_path):
    for said, texts in {"no token": [[], []], r"texts\[1\]\[0\] = 3": [[1], [3]]}.items():
        with pytest.raises(InvalidArgument, match=said):
            Datastore.build(tmp_path / "x", texts, vocab_size=3)
    assert not list(tmp_path.iterdir())


def test_a_limit_on_files_is_told_with_the_file_and_nothing_is_left(tmp_path):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (HEAD_BYTES + 8, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            Datastore.build(tmp_path / "x", TEXTS, vocab_size=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "x"))
    assert not list(tmp_path.iterdir())
