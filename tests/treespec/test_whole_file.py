"""Files exist completely or not at all, on all kinds of file systems."""

import multiprocessing
import os
from pathlib import Path

import pytest

from treespec import whole_file
from treespec.files import write_whole


@pytest.fixture(params=["files without a name", "hard links", "neither"])
def system(request, monkeypatch):
    """The features that the file system supports."""

    def no_links(*arguments, **options):
        raise PermissionError(1, "Operation not permitted")

    if request.param != "files without a name":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    if request.param == "neither":
        monkeypatch.setattr(os, "link", no_links)
    return request.param


def test_a_new_file(system, tmp_path):
    path = tmp_path / "new.json"
    assert write_whole(path, "ü", new=True) == path
    assert path.read_bytes() == "ü".encode()
    assert os.listdir(tmp_path) == ["new.json"]


def test_what_writes_itself_is_there_whole_or_not_at_all(system, tmp_path):
    """A writer that fails half-way leaves the previous file intact."""
    path = tmp_path / "large.bin"
    assert write_whole(path, lambda file: file.write(b"all"), new=True).read_bytes() == b"all"

    def fails(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_whole(path, fails)
    assert path.read_bytes() == b"all"
    assert os.listdir(tmp_path) == ["large.bin"]


def test_a_new_file_replaces_nothing(system, tmp_path, monkeypatch):
    """Not even a file that appears at the last moment, after any check beforehand."""
    path = tmp_path / "new.json"
    path.write_bytes(b"mine")
    monkeypatch.setattr(os.path, "lexists", lambda path: False)
    with pytest.raises(FileExistsError):
        write_whole(path, b"ours", new=True)
    assert path.read_bytes() == b"mine"
    assert os.listdir(tmp_path) == ["new.json"]


@pytest.mark.parametrize("new", [True, False])
def test_a_disk_that_is_full(system, tmp_path, monkeypatch, new):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "new.json", b"ours", new=new)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("moment", range(8))
def test_a_kill_leaves_an_empty_file_of_the_name_at_most(system, tmp_path, moment):
    """Killed at every call that changes the folder, and in the middle of writing."""
    path, calls = tmp_path / "new.json", []

    def deadly(real, first=lambda *arguments: None):
        def call(*arguments, **more):
            calls.append(None)
            if len(calls) > moment:
                first(*arguments)
                os._exit(9)
            return real(*arguments, **more)

        return call

    def half(file, data):
        file.write(data[: len(data) // 2])
        file.flush()

    def write():
        whole_file._fill = deadly(whole_file._fill, half)
        os.link = deadly(os.link)
        for name in ("open", "replace", "unlink"):
            setattr(Path, name, deadly(getattr(Path, name)))
        write_whole(path, b"ours" * 100, new=True)

    process = multiprocessing.get_context("fork").Process(target=write)
    process.start()
    process.join(60)
    assert process.exitcode in (0, 9)
    left = path.read_bytes() if path.exists() else None
    assert left in (None, b"ours" * 100) or (left == b"" and system == "neither")
    assert process.exitcode == 9 or left


def test_a_claim_whose_file_cannot_follow_is_given_back(tmp_path, monkeypatch):
    def fails(*arguments, **options):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    monkeypatch.setattr(os, "link", fails)
    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(PermissionError):
        write_whole(tmp_path / "new.json", b"ours", new=True)
    assert os.listdir(tmp_path) == []


def test_a_file_is_replaced(tmp_path):
    path, temporary = tmp_path / "old.json", tmp_path / "half"
    path.write_bytes(b"before")
    assert write_whole(path, b"after", temporary=temporary) == path
    assert path.read_bytes() == b"after"
    assert os.listdir(tmp_path) == ["old.json"]


def test_a_temporary_of_others_is_not_touched(tmp_path):
    (tmp_path / "half").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "new.json", b"ours", temporary=tmp_path / "half")
    assert (tmp_path / "half").read_bytes() == b"mine"
