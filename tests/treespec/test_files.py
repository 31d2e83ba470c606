"""What is read, what is refused, and that a file is written completely or not at all."""

import errno
import json
import multiprocessing
import os
import re
import resource
from pathlib import Path

import numpy as np
import pytest

from treespec import files
from treespec.errors import Unreadable
from treespec.files import (
    append_whole,
    brief,
    in_json,
    parse_json,
    parse_yaml,
    read_arrays,
    read_bytes,
    read_text,
    write_whole,
)


def test_files_are_read_whole(tmp_path):
    path = tmp_path / "a"
    path.write_text("\ufeffäb\n", encoding="utf-8")
    (tmp_path / "link").symlink_to("a")
    assert read_text(path, encoding="utf-8-sig") == "äb\n"
    assert read_bytes(tmp_path / "link", 7) == path.read_bytes()
    with pytest.raises(Unreadable, match=r"a: 7 bytes, more than the 6"):
        read_bytes(path, 6)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("folder", "folder: Is a directory"),
        ("pipe", "pipe is not a regular file"),
        ("/dev/zero", "/dev/zero is not a regular file"),
        ("missing", "missing: No such file"),
        ("a\0b", "cannot contain a null byte"),
        ("latin", r"latin: not UTF-8 text \(byte 1"),
    ],
)
def test_what_is_no_text_is_refused_without_waiting(name, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("folder")
    os.mkfifo("pipe")
    (tmp_path / "latin").write_bytes(b"a\xff")
    with pytest.raises(Unreadable, match=words):
        read_text(name, 10)


@pytest.mark.parametrize(
    "value", [None, True, -1, 1.5, "", "\n\u2028😀", [], {"a": {"b": [1, 2.5]}}]
)
def test_json_is_what_the_library_reads(value):
    text = json.dumps(value, ensure_ascii=False)
    assert parse_json(text) == parse_json(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        ('{"a": 1,\n "b"', "line 2, column 5"),
        ("[" * 100_000, "nested too deep"),
        ("[NaN]", "holds NaN"),
        ('{"a": 1, "b": 2, "a": 1}', "the key 'a' appears twice"),
        (b"[\xff]", "byte 1 is not UTF-8"),
    ],
)
def test_what_is_not_json_is_refused(text, words):
    with pytest.raises(Unreadable, match=words):
        parse_json(text)
    assert parse_json('[NaN, {"a": 1, "a": 2}]', constants=True, unique=False)[1] == {"a": 2}


def test_yaml_is_plain_data():
    assert parse_yaml("") is None
    assert parse_yaml("a: [1, 2.5, x, null, true]") == {"a": [1, 2.5, "x", None, True]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "line 1, column 2"),
        ("a: &x 1\nb: *x", "line 2, column 4: an alias"),
        ("a: 1\na: 2", "key 'a' appears twice"),
        ("a: {1: x, true: y}", "appears twice"),
        ("? [1]\n: 2", "unhashable key"),
        ("2001-99-99", "month must be in"),
        ("!!python/name:os.system", "could not determine a constructor"),
        ("a: 1\n---\na: 2", "single document"),
        ("- " * 3000 + "1", "nested too deep"),
    ],
)
def test_what_is_not_such_yaml_is_refused(text, words):
    with pytest.raises(Unreadable, match=re.escape(words)):
        parse_yaml(text)


def test_arrays_are_data_of_a_stated_size(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(3))
    assert read_arrays(path)["x"].tolist() == [0, 1, 2]
    whole = path.read_bytes()
    for content in (b"", whole[:-30], b"hello"):
        path.write_bytes(content)
        with pytest.raises(Unreadable, match=r"a\.npz: not an archive of arrays"):
            read_arrays(path)
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(Unreadable, match="allow_pickle=False"):
        read_arrays(path)
    np.savez_compressed(path, x=np.zeros(10_000))
    monkeypatch.setattr(files, "ARRAY_BYTES", 5000)
    with pytest.raises(Unreadable, match="unpacks to 80"):
        read_arrays(path)


def test_values_are_cut_for_messages():
    assert brief([1, "a"]) == "[1, 'a']"
    assert len(brief("x" * 1000)) == 200
    assert in_json({"a": [None, True, "x"]}) == '{"a": [null, true, "x"]}'
    assert len(in_json("x" * 1000)) == 60


def test_a_writer_that_fails_leaves_the_earlier_file(tmp_path):
    path = tmp_path / "large.bin"
    assert write_whole(path, lambda file: file.write(b"all"), new=True).read_bytes() == b"all"

    def fails(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_whole(path, fails)
    with pytest.raises(FileExistsError):
        write_whole(path, "other", new=True)
    assert path.read_bytes() == b"all"
    assert os.listdir(tmp_path) == ["large.bin"]


@pytest.mark.parametrize("moment", range(5))
def test_a_kill_leaves_the_earlier_file_or_the_new_one(tmp_path, moment):
    """Killed at every call that changes the folder, and before the content is on disk."""
    path, calls = tmp_path / "file.json", []
    path.write_bytes(b"before")

    def deadly(real):
        def call(*arguments, **more):
            calls.append(None)
            if len(calls) > moment:
                os._exit(9)
            return real(*arguments, **more)

        return call

    def write():
        os.fsync = deadly(os.fsync)
        for name in ("open", "replace", "unlink"):
            setattr(Path, name, deadly(getattr(Path, name)))
        write_whole(path, b"ours" * 100)

    process = multiprocessing.get_context("fork").Process(target=write)
    process.start()
    process.join(60)
    assert process.exitcode == (9 if moment < 4 else 0)
    assert path.read_bytes() == (b"before" if moment < 3 else b"ours" * 100)


def full(file):
    file.write(b"half")
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_told_with_the_file(tmp_path):
    with pytest.raises(OSError, match="No space left") as caught:
        write_whole(tmp_path / "a", full)
    assert caught.value.filename == str(tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_what_an_appended_line_left_is_taken_away(tmp_path):
    path = tmp_path / "log"
    append_whole(path, b"whole\n")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limit[1]))
    try:
        with pytest.raises(OSError, match="log") as caught:
            append_whole(path, b"more than fits\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert caught.value.errno == errno.EFBIG
    assert path.read_bytes() == b"whole\n"


def test_half_characters_in_yaml_and_values_that_cannot_be_shown():
    with pytest.raises(Unreadable, match="line 1, column 4: half a character"):
        parse_yaml(r'a: "\ud800"')
    assert parse_yaml(r"a: '\ud800'") == {"a": r"\ud800"}

    class Mute:
        def __repr__(self):
            raise RuntimeError

    assert brief(Mute()) == "<Mute>"
