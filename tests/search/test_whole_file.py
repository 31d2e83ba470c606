"""Files that are there whole or not at all, on file systems of all kinds."""

import os

import pytest

from treespec.search.whole_file import write_whole


@pytest.fixture(params=["files without a name", "hard links", "neither"])
def system(request, monkeypatch):
    """What the file system knows."""

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


def test_a_new_file_replaces_nothing(system, tmp_path, monkeypatch):
    """Not even what appears at the last moment: no look beforehand counts."""
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
