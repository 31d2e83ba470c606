"""Counts of all short strings: against the definition as texts come and go, and in files."""

import json
import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treespec.draft import SuffixCounts
from treespec.errors import InvalidArgument, Unreadable

TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=20)


def by_definition(texts, window):
    """How often each string of at most `window` tokens occurs in the texts."""
    counts = {}
    for text in texts:
        for begin in range(len(text)):
            for end in range(begin + 1, min(begin + window, len(text)) + 1):
                string = tuple(text[begin:end])
                counts[string] = counts.get(string, 0) + 1
    return counts


def require_counts(counts, texts):
    expected = by_definition(texts, counts.window)
    for string, often in expected.items():
        at = counts.find(string)
        assert at is not None
        assert counts.count(at) == often
        followers = {f.token: f.count for f in counts.followers(at)}
        assert followers == {
            token: expected[*string, token] for token in range(3) if (*string, token) in expected
        }
        for token in range(3):
            if (*string, token) not in expected:
                assert counts.find((*string, token)) is None


def counted(texts, window):
    counts = SuffixCounts(window)
    for text in texts:
        counts.read(text)
        counts.end()
    return counts


@given(st.lists(TEXT, min_size=1, max_size=4), st.integers(2, 7), st.data())
def test_every_string_is_counted_and_what_is_dropped_is_gone(texts, window, data):
    counts, kept = SuffixCounts(window), []
    for text in texts:
        cut = data.draw(st.integers(0, len(text)))
        counts.read(text[:cut])
        counts.read(text[cut:])
        counts.end()
        kept.append(text)
        if data.draw(st.booleans()):
            counts.drop_oldest()
            kept.pop(0)
        assert counts.texts == kept
        assert counts.nodes <= max(2 * len(counts), 1)
        assert counts.nodes == counted(kept, window).nodes
        require_counts(counts, kept)


@given(st.lists(TEXT, min_size=1, max_size=6), st.integers(2, 7), st.integers(1, 40))
def test_the_oldest_texts_go_where_there_are_too_many_tokens(texts, window, most):
    counts = SuffixCounts(window, most)
    for ended in range(1, len(texts) + 1):
        counts.read(texts[ended - 1])
        counts.end()
        first = next(
            i for i in range(ended) if i == ended - 1 or sum(map(len, texts[i:ended])) <= most
        )
        assert counts.texts == texts[first:ended]
        require_counts(counts, counts.texts)


@given(TEXT, st.integers(2, 7))
def test_what_is_read_has_its_full_windows_counted(text, window):
    counts = SuffixCounts(window)
    counts.read(text)
    full = [text[i : i + window] for i in range(len(text) - window + 1)]
    for string in full:
        at = counts.find(string)
        assert at is not None
        assert counts.count(at) == full.count(string)
    assert counts.open_ending() == text[len(full) :]


def test_at_most_two_nodes_a_token_however_the_text_repeats():
    for text in ([1] * 3000, list(range(3000)), [i % 7 * (i % 11) for i in range(3000)]):
        counts = SuffixCounts(64)
        counts.read(text)
        assert counts.nodes <= 2 * len(text)


@pytest.mark.parametrize("tokens", [2000, 10_000])
def test_at_most_600_bytes_a_token(tokens):
    """In allocations of Python alone: the growth of a process includes libraries loaded meanwhile."""
    rng = random.Random(0)
    texts = (rng.choices(range(5), k=tokens), list(range(tokens)), [i % 97 for i in range(tokens)])
    for text in texts:
        tracemalloc.start()
        try:
            counts = SuffixCounts(64)
            counts.read(text)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(counts) == tokens
        assert held <= 600 * tokens


def test_nodes_of_dropped_texts_are_used_again():
    counts = SuffixCounts(8)
    for i in range(50):
        counts.read([i % 5, i, i + 1, i + 2])
        counts.end()
        if i >= 2:
            counts.drop_oldest()
    assert len(counts) == 8
    assert counts.trie.slots < 40


def filled():
    return counted([[1, 2, 1, 2], [70_000, 1]], 5)


def test_saved_and_loaded(tmp_path):
    filled().save(tmp_path / "past", vocab_size=70_001, tokenizer="abc")
    loaded = SuffixCounts.load(tmp_path / "past", vocab_size=70_001, tokenizer="abc")
    assert (loaded.window, loaded.texts) == (5, [[1, 2, 1, 2], [70_000, 1]])


def test_loading_leaves_out_what_would_be_dropped(tmp_path):
    texts = [[1, 2, 1], [2], [1, 1, 2, 2], [2, 1]]
    counted(texts, 3).save(tmp_path / "past", vocab_size=3)
    for most in (1, 2, 5, 6, 7, 8, 10):
        bounded = SuffixCounts(3, most)
        for text in texts:
            bounded.read(text)
            bounded.end()
        loaded = SuffixCounts.load(tmp_path / "past", most_tokens=most)
        assert loaded.texts == bounded.texts
        require_counts(loaded, bounded.texts)
        assert loaded.most_tokens == most
    assert bounded.texts == texts
    with pytest.raises(InvalidArgument, match="most_tokens = 0"):
        SuffixCounts.load(tmp_path / "past", most_tokens=0)


def changed(path, **entries):
    with np.load(path) as members:
        arrays = dict(members)
    header = json.loads(arrays["header"].tobytes()) | entries
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    with path.open("wb") as file:
        np.savez(file, **arrays)


def test_files_that_are_refused(tmp_path):
    path = tmp_path / "past"
    save = lambda: filled().save(path, vocab_size=70_001, tokenizer="abc")  # noqa: E731
    save()
    for said, wanted in {
        "vocabulary of 70001 tokens, but the target has 500": {"vocab_size": 500},
        "another tokenizer": {"tokenizer": "def"},
    }.items():
        with pytest.raises(Unreadable, match=said):
            SuffixCounts.load(path, **wanted)
    for said, entries in {
        "of version 9": {"version": 9},
        "of version True": {"version": True},
        "a lookahead pool, but a suffix tree": {"kind": "lookahead pool"},
    }.items():
        changed(path, **entries)
        with pytest.raises(Unreadable, match=said):
            SuffixCounts.load(path)
        save()
    whole = path.read_bytes()
    for part in (b"", b"text", whole[:100], whole[: len(whole) // 2], whole[:-10]):
        path.write_bytes(part)
        with pytest.raises(Unreadable, match="past: "):
            SuffixCounts.load(path)
    with pytest.raises(Unreadable, match="No such file"):
        SuffixCounts.load(tmp_path / "none")


def test_window():
    with pytest.raises(InvalidArgument, match="window"):
        SuffixCounts(1)
