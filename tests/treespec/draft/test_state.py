"""Files of what sources have learned: any content is either loaded, or refused by name."""

import json

import numpy as np
import pytest

from treespec.draft import Lookahead, SuffixCounts, TokenRecycling
from treespec.draft.state import save_state
from treespec.errors import Unreadable

KINDS = {
    "counts": (SuffixCounts.load, "suffix tree of texts"),
    "table": (TokenRecycling.load, "token recycling table"),
    "pool": (Lookahead.load, "lookahead pool"),
}


def whole(name, path, tokenizer="x"):
    """A valid file of each kind."""
    if name == "counts":
        counts = SuffixCounts(6)
        counts.read([1, 2, 3])
        counts.end()
        counts.save(path, vocab_size=9, tokenizer=tokenizer)
    elif name == "table":
        table = TokenRecycling(table={1: [2, 3], 4: [5]})
        table.save(path, vocab_size=9, tokenizer=tokenizer)
    else:
        pool = Lookahead(2, 3, 2, pool={1: [(2, 3)]})
        pool.save(path, vocab_size=9, tokenizer=tokenizer)


def rewritten(path, header=None, **arrays):
    with np.load(path) as members:
        found = dict(members)
    if header is not None:
        found["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    found |= arrays
    with path.open("wb") as file:
        np.savez(file, **{name: array for name, array in found.items() if array is not None})


def header_of(path):
    with np.load(path) as members:
        return json.loads(members["header"].tobytes())


HEADERS = {
    "without a vocabulary": lambda h: {k: v for k, v in h.items() if k != "vocab_size"},
    "with a kind that is none": lambda h: h | {"kind": None},
    "that is a list": lambda h: [h],
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("what", HEADERS)
def test_a_header(name, what, tmp_path):
    path, (load, _) = tmp_path / "state", KINDS[name]
    whole(name, path)
    assert load(path, vocab_size=9, tokenizer="x") is not None
    changed = HEADERS[what](header_of(path))
    rewritten(path, header=changed if changed is not None else "")
    with pytest.raises(Unreadable) as refused:
        load(path, vocab_size=9, tokenizer="x")
    assert str(refused.value).startswith(f"{path}: ")


@pytest.mark.parametrize("name", KINDS)
def test_a_file_of_no_known_tokenizer_is_refused_where_one_is_asked_for(name, tmp_path):
    path, (load, _) = tmp_path / "state", KINDS[name]
    whole(name, path, tokenizer="")
    assert load(path, vocab_size=9) is not None
    with pytest.raises(Unreadable, match="does not state the tokenizer") as refused:
        load(path, vocab_size=9, tokenizer="x")
    assert str(refused.value).startswith(f"{path}: ")


LEARNERS = {
    "table": (TokenRecycling(table={1: [2]}), TokenRecycling.load, {1: [2]}),
    "pool": (Lookahead(1, 2, 1, pool={1: [(2,)]}), Lookahead.load, {1: [(2,)]}),
}
MINE, OTHER = "A of 3 parameters, weights 01", "A of 3 parameters, weights 02"


@pytest.mark.parametrize("name", LEARNERS)
def test_what_another_target_said_is_refused(name, tmp_path):
    """The file names another target, or none, as older files and those saved without a target do."""
    source, load, state = LEARNERS[name]
    source.save(tmp_path / "mine", vocab_size=9, target=MINE)
    assert load(tmp_path / "mine", target=MINE) == load(tmp_path / "mine") == state
    with pytest.raises(Unreadable) as refused:
        load(tmp_path / "mine", target=OTHER)
    assert str(refused.value).startswith(
        f"{tmp_path / 'mine'}: learned from another target ({MINE})"
    )
    source.save(tmp_path / "none", vocab_size=9)
    rewritten(tmp_path / "mine", header_of(tmp_path / "mine") | {"target": 3})
    rewritten(
        tmp_path / "none", {k: v for k, v in header_of(tmp_path / "none").items() if k != "target"}
    )
    for path in (tmp_path / "mine", tmp_path / "none"):
        assert load(path) == state
        with pytest.raises(Unreadable, match="does not say which target it was learned from"):
            load(path, target=MINE)


@pytest.mark.parametrize("name", KINDS)
def test_damaged_files(name, tmp_path):
    path, (load, _) = tmp_path / "state", KINDS[name]
    whole(name, path)
    good = path.read_bytes()
    array = np.save(tmp_path / "array.npy", np.arange(4)) or (tmp_path / "array.npy").read_bytes()
    for content in (good[:100], good[:-40], array, b"text"):
        path.write_bytes(content)
        with pytest.raises(Unreadable, match="damaged, or not a file of a draft source"):
            load(path)


def test_wide_rows_come_back_whole(tmp_path):
    rows = {1: list(range(2, 20))}
    TokenRecycling(successors=30, table=rows).save(tmp_path / "t", vocab_size=30)
    assert TokenRecycling.load(tmp_path / "t", vocab_size=30) == rows


def test_kinds_are_those_that_are_written(tmp_path):
    for name, (load, kind) in KINDS.items():
        whole(name, tmp_path / name)
        assert header_of(tmp_path / name)["kind"] == kind
        save_state(tmp_path / "other", "something else", {}, 9)
        with pytest.raises(Unreadable, match=f"a something else, but a {kind}"):
            load(tmp_path / "other")
