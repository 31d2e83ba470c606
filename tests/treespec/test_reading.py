"""External files and texts within limits: what is refused, what is still read, and how long it takes."""

import json
import os
import re

import pytest

from treespec import TreeShape
from treespec.errors import InvalidTree, Unreadable
from treespec.files import (
    DEEPEST_NESTING,
    LONGEST_NUMBER,
    MOST_CHARACTERS,
    MOST_NODES,
    MOST_VALUES,
    brief,
    in_json,
    open_file,
    parse_json,
    parse_yaml,
    read_bytes,
    read_text,
)
from treespec.shape import LARGEST_TREE, expansion_size


def test_files_are_read_whole(tmp_path):
    path = tmp_path / "a"
    path.write_text("\ufeffäb\n", encoding="utf-8")
    assert read_bytes(path) == "\ufeffäb\n".encode()
    assert read_text(path, encoding="utf-8-sig") == "äb\n"
    assert read_bytes(path, path.stat().st_size) == path.read_bytes()
    (tmp_path / "link").symlink_to("a")
    assert read_bytes(tmp_path / "link") == path.read_bytes()
    with pytest.raises(Unreadable, match=r"a: 7 bytes, more than the 6 bytes allowed"):
        read_bytes(path, 6)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("folder", "folder: Is a directory"),
        ("pipe", "pipe is a pipe: copy its content into a file"),
        ("/dev/zero", "/dev/zero is a device"),
        ("missing", "missing: No such file"),
        ("loop", "loop: Too many levels"),
        ("a\0b", "cannot contain a null byte"),
        ("n" * 5000, r"nnn\.\.\.nnn.*File name too long"),
        ("latin", r"latin: not UTF-8 text \(byte 1"),
        ("/proc/self/environ", "more than the 10 bytes"),  # of no size until it is read
    ],
)
def test_what_is_no_file_is_refused_without_waiting(name, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("folder")
    os.mkfifo("pipe")
    os.symlink("loop", "loop")
    (tmp_path / "latin").write_bytes(b"a\xff")
    with pytest.raises(Unreadable, match=words):
        read_text(name, 10)


def test_a_pipe_that_takes_the_place_of_a_file_is_noticed(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("text")
    os.mkfifo(tmp_path / "pipe")
    seen = os.stat(tmp_path / "file")
    monkeypatch.setattr(os, "stat", lambda path: seen)
    with pytest.raises(Unreadable, match="is a pipe"), open_file(tmp_path / "pipe"):
        pass


GOOD = [
    None, True, 0, -1, 1.5, 1e300, 10**300, "", "[{\\\"", "\n\u2028😀", [], {}, [[[]]],
    {"a": {"b": [1, 2.5]}},
    {"[": "{" * 99}, ["\\\\", "[[[["] * 50, {"\\": [{"\"": "]"}] * 70},
]  # fmt: skip


@pytest.mark.parametrize("value", GOOD, ids=range(len(GOOD)))
def test_json_is_what_the_library_reads(value):
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert parse_json(text) == json.loads(text)
        assert parse_json(text.encode()) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1, column 1: it is empty"),
        ('{"a": 1,\n "b"', "line 2, column 5"),
        ("[" * 100_000, "column 65: nested more than 64 levels deep"),
        ('{"a":' * 100_000, "nested more than 64 levels deep"),
        ("[" * 65 + "]" * 65, "nested more than 64 levels deep"),
        ('["[", ' * 70, "nested more than 64 levels deep"),
        ("9" * 5000, "a number of 5,000 characters"),
        ("-" + "9" * 1000, "a number of 1,001 characters"),
        ("1." + "9" * 5000, "a number of 5,002 characters"),
        ("1e999", "1e999 is too large for a number"),
        ("-1e400", "-1e400 is too large"),
        ("[NaN]", "holds NaN, which is not a number"),
        ("-Infinity", "holds -Infinity"),
        ('{"a": 1, "b": 2, "a": 1}', "the key 'a' appears twice"),
        (b"[\xff]", "byte 1 is not UTF-8"),
        ("[" + "0," * MOST_VALUES + "0]", "more than 1,048,576 brackets, commas and colons"),
        ('"' + "a" * 100, "a string has no closing quote"),
        ('[",",' + "0," * MOST_VALUES + '",:"]', "more than 1,048,576 brackets, commas and colons"),
        ('":"' * 2 * MOST_VALUES, "more than 1,048,576 brackets, commas and colons"),
        ("[" * 70 + '"' + "\\" * 101, "nested"),
    ],
)
def test_json_beyond_the_limits_is_refused(text, words):
    with pytest.raises(Unreadable) as caught:
        parse_json(text)
    assert words in str(caught.value)


def test_json_at_the_limits_is_read():
    assert parse_json("[" * DEEPEST_NESTING + "]" * DEEPEST_NESTING)
    assert parse_json("9" * LONGEST_NUMBER) == 10**LONGEST_NUMBER - 1
    assert len(parse_json("[" + "0," * 100_000 + "0]")) == 100_001
    assert parse_json('[NaN, {"a": 1, "a": 2}]', constants=True, unique=False)[1] == {"a": 2}
    assert parse_json(json.dumps(["[" * 1000, "{" * 1000])) == ["[" * 1000, "{" * 1000]
    marks = ['a, b: "[{' * MOST_VALUES, "\\" * 99, ":" * MOST_VALUES]
    assert parse_json(json.dumps(marks)) == marks
    assert parse_json(json.dumps([","] * 9 + [1]), most=10) == [","] * 9 + [1]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a: [1, 2.5, x, null, true]", {"a": [1, 2.5, "x", None, True]}),
        ("base: &b {k: 1}\nown: {<<: *b, l: 2}", {"base": {"k": 1}, "own": {"k": 1, "l": 2}}),
        ("[&a [1, 2], *a, *a]", [[1, 2], [1, 2], [1, 2]]),
        ("[" * DEEPEST_NESTING + "]" * DEEPEST_NESTING, ...),
        ("9" * LONGEST_NUMBER, 10**LONGEST_NUMBER - 1),
        ("x" * 200_000, "x" * 200_000),
        ("[.inf, -.Inf]", [float("inf"), -float("inf")]),
        (
            "{1: a, '1.0': b, x: &x {1: c}, 'y': {<<: *x, 2: d}}",
            {1: "a", "1.0": "b", "x": {1: "c"}, "y": {1: "c", 2: "d"}},
        ),
    ],
)
def test_yaml_within_the_limits_is_read(text, value):
    assert value in (..., parse_yaml(text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 65 + "]" * 65, "line 1, column 65: nested more than 64 levels deep"),
        ("- " * 3000 + "1", "nested more than 64 levels deep"),
        ("x" * (MOST_CHARACTERS + 1), "characters of YAML"),
        ("[" + "1," * MOST_NODES + "]", "values, counting the content of each alias"),
        (
            "[&a [1, 1, 1, 1], " + "*a, " * (MOST_NODES // 4) + "]",
            "values, counting the content of each alias",
        ),
        ("&a [*a]", "the alias 'a' contains itself"),
        ("*a", "undefined alias 'a'"),
        ("a: 1\na: 2", "line 2, column 1: key 'a' appears twice"),
        ("? [1]\n: 2", "a key must be plain text"),
        ("0b" + "1" * 60_000, "a number of 60,002 characters"),
        ("1" + ":59" * 10_000, "a number of 30,001 characters"),
        ("2001-99-99", "'2001-99-99' is not a valid timestamp"),
        ("!!timestamp x", "'x' is not a valid timestamp"),
        ("!!float x", "'x' is not a valid float"),
        ("!!python/name:os.system", "could not determine a constructor"),
        ("a: 1\n---\na: 2", "single document"),
        ("a: {1: x, 1.0: y}", "line 1, column 11: the keys '1' and '1.0' mean the same"),
        ("1: x\ntrue: y", "line 2, column 1: the keys '1' and 'true' mean the same"),
        ("yes: 1\non: 2", "the keys 'yes' and 'on' mean the same"),
        ("0x10: 1\n16: 2", "the keys '0x10' and '16' mean the same"),
        ("a: !!set {x, y}", "line 1, column 4: !!set is not plain data"),
        ("!!omap [x: 1]", "!!omap is not plain data"),
        ("!!pairs [x: 1]", "!!pairs is not plain data"),
        ("!!binary aGk=", "!!binary is not plain data"),
        ("a: 1.0e+999", "line 1, column 4: '1.0e+999' is too large for a number"),
        ("-1.0e+999", "'-1.0e+999' is too large for a number"),
        ("\0", "special characters are not allowed"),
        ("[", "line 1, column 2"),
    ],
)
def test_yaml_beyond_the_limits_is_refused(text, words):
    with pytest.raises(Unreadable, match=re.escape(words)):
        parse_yaml(text)


def test_values_are_cut_for_messages():
    assert brief([1, "a"]) == "[1, 'a']"
    assert len(brief("x" * 10**6)) == 200
    assert len(brief("x" * 10**6, 60)) == 60
    assert brief(10**5000) == "a huge integer"


@pytest.mark.parametrize(
    "make",
    [
        lambda: TreeShape.chain(10**9),
        lambda: TreeShape.chain(10**400),
        lambda: TreeShape.kary(1000, 1000),
        lambda: TreeShape.kary(2, 10**6),
        lambda: TreeShape.kary(1, 10**9),
        lambda: TreeShape.kary(10**9, 1),
        lambda: TreeShape.expansion([100_000, 100_000]),
        lambda: TreeShape.expansion(iter([1] * 10 + [2] * 10**6)),
        lambda: TreeShape.independent_chains(100_000, 100_000),
        lambda: TreeShape.independent_chains(1, 10**9),
        lambda: TreeShape(tuple(range(-1, LARGEST_TREE))),
    ],
)
def test_large_trees_are_refused_before_they_are_made(make):
    with pytest.raises(InvalidTree, match="more than 1,048,576 nodes"):
        make()


def test_sizes_of_expansions_follow_from_their_numbers():
    for branching in ([], [1], [3, 2, 1], [2] * 8, [1] * 30):
        assert expansion_size(branching) == TreeShape.expansion(branching).size
    assert TreeShape.chain(0).size == TreeShape.kary(5, 0).size == 1
    assert TreeShape.chain(3) == TreeShape.kary(1, 3) == TreeShape.independent_chains(1, 3)
    assert expansion_size([2**20 - 1]) == LARGEST_TREE
    assert expansion_size([2**20]) == expansion_size([10**9] * 10**6) == LARGEST_TREE + 1
    assert TreeShape.chain(30_000).level_sizes == (1,) * 30_001


def test_values_are_shown_as_json_has_them():
    assert in_json({"a": [None, True, "x"]}) == '{"a": [null, true, "x"]}'
    assert len(in_json("x" * 1000)) == 60
    assert in_json([10**5000]) == "a huge list"
    assert "object" in in_json(object())
