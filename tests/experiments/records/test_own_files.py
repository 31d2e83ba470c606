"""Which folders are ours, what is deleted in them, and what a kill at any moment leaves."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from run_folders.rows import prompt_row, step_row

from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ForeignFolder, PromptError, RunFolderError
from treespec.experiments.records.folder import RUN, RunFolder
from treespec.experiments.records.manifest import config_data, config_hash
from treespec.experiments.records.mark import LOCK, MARK
from treespec.experiments.records.own_files import OwnFiles

FOREIGN = {
    "notes.txt": b"mine",
    "figures/mine.png": b"a picture",
    "search/thesis.txt": b"years",
    "empty/": None,
}


def tree(folder):
    """Everything in a folder: files with their contents, folders with None."""
    return {
        path.relative_to(folder).as_posix() + "/" * path.is_dir(): None
        if path.is_dir()
        else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


def add(folder, files):
    for name, content in files.items():
        path = folder / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def manifest_of(config):
    data = {"config": config_data(config), "config_hash": config_hash(config), "finished": None}
    return data | {"samplings": [{"name": "T=0"}]}


@pytest.fixture
def config():
    return Config.model_validate(
        {
            "name": "x",
            "prompts": {"kind": "embedded", "count": 2},
            "max_new_tokens": 4,
            "samplings": [{"temperature": 0}],
            "methods": [{"kind": "plain"}],
        }
    )


class Moments:
    """Copies of a folder before every call that may change it: what a SIGKILL there would leave."""

    def __init__(self, folder, copies):
        self.folder, self.copies, self.count, self.on = folder, copies, 0, False
        sys.addaudithook(self._hook)

    def _hook(self, event, arguments):
        if self.on and event in {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "fsync"}:
            self.on = False
            try:
                if self.folder.exists():
                    shutil.copytree(self.folder, self.copies / str(self.count), symlinks=True)
                self.count += 1
            finally:
                self.on = True

    def __enter__(self):
        self.on = True

    def __exit__(self, *error):
        self.on = False

    def __iter__(self):
        yield from sorted(self.copies.iterdir(), key=lambda path: int(path.name))


@pytest.fixture
def moments(tmp_path, monkeypatch):
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (sys.audit("fsync"), real(file)))
    (tmp_path / "moments").mkdir()
    return Moments(tmp_path / "run", tmp_path / "moments")


def whole_life(folder, config):
    """Everything that a run writes in its folder, with a fresh start in the middle."""
    with RunFolder(folder) as records:
        records.keep(records.search / "config.json", "{}")
        records.keep(records.search / "trace-0-iid.npz", b"\0")
        records.forget_search()
        records.keep(records.search / "latency.json", "{}")
        records.recover(["plain"])
        records.write_manifest(manifest_of(config))
        for prompt in range(2):
            records.append([prompt_row(prompt)], [step_row(prompt)])
        records.finish(records.manifest())
    files = OwnFiles.opened(folder, RUN)
    files.write("figures/speedup.svg", "<svg/>")
    files.write("report.html", "<html/>")
    add(folder, FOREIGN)
    with RunFolder(folder) as records:
        records.clear()
        records.recover(["plain"])
        records.write_manifest(manifest_of(config))


def test_whatever_a_kill_leaves_is_ours_and_named(tmp_path, config, moments, monkeypatch):
    """Killed before any of these calls, a run resumes, and `clear` leaves exactly what is not ours."""
    with moments:
        whole_life(tmp_path / "run", config)
    assert moments.count > 100
    monkeypatch.setattr(os, "fsync", lambda file: None)  # no kill is simulated here
    for copy in moments:
        before = tree(copy)
        mark = before.get(MARK, b"").splitlines(keepends=True)
        foreign = {name: before[name] for name in FOREIGN if name in before}
        with RunFolder(copy) as records:
            assert not [name for name in tree(copy) if name.endswith(".tmp")], "not cleaned"
            records.recover(["plain"], write=False)
            records.clear()
            records.recover(["plain"])
            records.write_manifest(manifest_of(config))
            records.clear()
        left = tree(copy)
        folders = {f"{Path(name).parent}/" for name in foreign if "/" in name.rstrip("/")}
        assert {name for name in left if name not in foreign} - folders <= {MARK, LOCK}, mark
        assert {name: left[name] for name in foreign} == foreign


def test_a_mark_that_is_cut_short_at_any_byte_names_nothing_wrong(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with RunFolder(folder) as records:
        records.keep(records.search / "config.json", "{}")
    content = (folder / MARK).read_bytes()
    add(
        folder, {"search/con": b"mine", "s": b"mine"}
    )  # names with the same beginning as listed names
    head = content.index(b"\n") + 1
    monkeypatch.setattr(os, "fsync", lambda file: None)
    for cut in range(head, len(content)):
        copy = tmp_path / f"cut-{cut}"
        shutil.copytree(folder, copy)
        (copy / "search" / "config.json").unlink()  # it is made only after its line is complete
        (copy / MARK).write_bytes(content[:cut])
        with RunFolder(copy) as records:
            records.keep(records.search / "config.json", "{}")
            records.clear()
        left = tree(copy)
        assert left["search/con"] == left["s"] == b"mine"
        assert "search/config.json" not in left


@pytest.mark.parametrize("cut", [0, 1, 10, 30, 60])
def test_a_mark_that_is_cut_short_is_not_ours(tmp_path, cut):
    """Our mark is written atomically, so a truncated one is not ours."""
    with RunFolder(tmp_path / "run"):
        pass
    head = (tmp_path / "run" / MARK).read_bytes()
    other = tmp_path / "other"
    other.mkdir()
    (other / MARK).write_bytes(head[:cut])
    before = tree(other)
    with pytest.raises(ForeignFolder, match="not a mark of treespec"):
        RunFolder(other).__enter__()
    assert tree(other) == before


def test_a_mark_without_unnamed_files(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    with RunFolder(tmp_path / "run") as records:
        records.keep(records.search / "config.json", "{}")
    with RunFolder(tmp_path / "run") as records:
        records.clear()
    assert set(tree(tmp_path / "run")) == {MARK, ".lock"}


@pytest.mark.parametrize(
    "content",
    [
        b"garbage",
        b"{}\n",
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b'{"treespec": "run"}\n',
        b'{"treespec": "run", "id": "1", "version": 1}\n',
        b'{"treespec": "run", "id": "' + b"0" * 32 + b'", "version": true}\n',
        b'{"treespec": "run", "id": "' + b"0" * 32 + b'", "version": 99}\n',
        b'{"treespec": "sweep", "id": "' + b"0" * 32 + b'", "version": 1}\n',
    ],
)
def test_marks_of_others(tmp_path, content):
    (tmp_path / MARK).write_bytes(content)
    with pytest.raises(ForeignFolder, match="another folder with --out"):
        RunFolder(tmp_path).__enter__()
    assert tree(tmp_path) == {MARK: content}


@pytest.mark.parametrize("kind", ["folder", "fifo", "link"])
def test_a_mark_that_is_no_file(tmp_path, kind):
    with RunFolder(tmp_path / "run"):
        pass
    folder = tmp_path / "other"
    folder.mkdir()
    make = {
        "folder": lambda path: path.mkdir(),
        "fifo": os.mkfifo,
        "link": lambda path: path.symlink_to(tmp_path / "run" / MARK),
    }
    make[kind](folder / MARK)
    with pytest.raises(ForeignFolder):
        RunFolder(folder).__enter__()
    assert [path.name for path in folder.iterdir()] == [MARK]


def test_names_that_lead_out_of_the_folder_are_none(tmp_path):
    folder, victim = tmp_path / "run", tmp_path / "victim"
    victim.write_bytes(b"mine")
    with RunFolder(folder):
        pass
    with (folder / MARK).open("a") as mark:
        for name in ("../victim", os.fspath(victim), "a/../../victim", ".", "", MARK, "x\0y"):
            mark.write(json.dumps({"made": name}) + "\n")
    with RunFolder(folder) as records:
        records.clear()
    assert victim.read_bytes() == b"mine"
    assert set(tree(folder)) == {MARK, LOCK}


def test_a_folder_that_has_become_a_link_is_not_followed(tmp_path, config):
    folder, data = tmp_path / "run", tmp_path / "data"
    with RunFolder(folder) as records:
        records.keep(records.search / "latency.json", "{}")
        records.write_manifest(manifest_of(config))
    shutil.rmtree(folder / "search")
    add(data, {"latency.json": b"mine", "config.json": b"mine"})
    (folder / "search").symlink_to(data)
    before = tree(tmp_path)
    with pytest.raises(ForeignFolder, match="search"):
        RunFolder(folder).__enter__()
    files = OwnFiles(folder, RUN)
    files.load()
    files.clear()
    assert tree(data) == {"latency.json": b"mine", "config.json": b"mine"}
    assert before["data/latency.json"] == b"mine"


@pytest.mark.parametrize(
    "name",
    [
        *("manifest.json", "prompts.jsonl", "trees.parquet", "report.html"),
        *("figures/speedup.svg", "search/latency.json", "search/trace-0-iid.npz", "figures"),
        *("search", "search/between-00012.json"),
    ],
)
def test_files_of_others_where_a_run_writes(tmp_path, name):
    folder = tmp_path / "run"
    with RunFolder(folder):
        pass
    add(folder, {name: b"mine"})
    before = tree(folder)
    with pytest.raises(ForeignFolder, match=name):
        RunFolder(folder).__enter__()
    with pytest.raises(ForeignFolder, match=name):
        OwnFiles.opened(folder, RUN)
    assert tree(folder) == before


def test_a_manifest_of_another_folder(tmp_path, config):
    for name in ("a", "b"):
        with RunFolder(tmp_path / name) as records:
            records.write_manifest(manifest_of(config))
    shutil.copy(tmp_path / "a" / "manifest.json", tmp_path / "b" / "manifest.json")
    before = tree(tmp_path)
    with pytest.raises(ForeignFolder, match="folder_id"):
        RunFolder(tmp_path / "b").__enter__()
    assert tree(tmp_path) == before


def test_a_folder_of_an_older_version_is_read_and_not_written(tmp_path, config):
    (tmp_path / "manifest.json").write_text(json.dumps(manifest_of(config)))
    with pytest.raises(ForeignFolder, match="older version"):
        RunFolder(tmp_path).__enter__()


def test_a_copy_of_a_folder_is_ours_too(tmp_path, config):
    with RunFolder(tmp_path / "a") as records:
        records.write_manifest(manifest_of(config))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with RunFolder(tmp_path / "b") as records:
        records.require_same(config)


def refuse(folder, *measured, error=PromptError):
    """A start that writes measurements, reads the rows, and fails."""

    def start():
        with RunFolder(folder) as records:
            for name in measured:
                records.keep(records.search / name, "{}")
                records.recover(["plain"])
            raise error("too long")

    with pytest.raises(error):
        start()


class TestRefused:
    """What a refused start leaves."""

    def test_nothing_of_a_new_folder(self, tmp_path):
        (tmp_path / "there").mkdir()
        refuse(tmp_path / "there" / "a" / "b" / "run", "config.json")
        assert tree(tmp_path) == {"there/": None}

    def test_an_empty_folder_that_was_there(self, tmp_path):
        refuse(tmp_path, "config.json")
        assert tree(tmp_path) == {}

    def test_an_earlier_run_as_it_was(self, tmp_path, config):
        with RunFolder(tmp_path) as records:
            records.write_manifest(manifest_of(config))
        (tmp_path / "notes.txt").write_bytes(b"mine")
        before = tree(tmp_path)
        refuse(tmp_path, "best-0.json")
        after = tree(tmp_path)
        assert after.pop(MARK).startswith(before.pop(MARK))
        assert after == before

    @pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, PromptError])
    def test_what_was_measured_outlives_any_end(self, tmp_path, error):
        refuse(tmp_path / "run", "latency.json", error=error)
        assert (tmp_path / "run" / "search" / "latency.json").exists()
        refuse(tmp_path / "bare", error=error)
        assert not (tmp_path / "bare").exists()

    def test_a_rival_is_not_disturbed(self, tmp_path):
        with RunFolder(tmp_path / "run") as records:
            with pytest.raises(RunFolderError, match="another process"):
                RunFolder(tmp_path / "run").__enter__()
            records.keep(records.search / "latency.json", "{}")
        assert (tmp_path / "run" / MARK).exists()

    def test_a_disk_that_is_full_when_the_mark_is_written(self, tmp_path, monkeypatch):
        def full(*arguments):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(RunFolderError, match="No space left"):
            RunFolder(tmp_path / "a" / "run").__enter__()
        assert tree(tmp_path) == {}


class TestBesideUs:
    """`treespec report` writes to a folder without locking it."""

    def test_a_start_that_cleans_costs_a_report_nothing(self, tmp_path, config, monkeypatch):
        with RunFolder(tmp_path) as records:
            records.write_manifest(manifest_of(config))
        report, real, starts = OwnFiles.opened(tmp_path, RUN), Path.replace, []

        def replace(self, target):
            if not starts:
                starts.append(RunFolder(tmp_path))
                with starts[0]:
                    pass
            return real(self, target)

        monkeypatch.setattr(Path, "replace", replace)
        report.write("report.html", "<html/>")
        assert starts
        assert (tmp_path / "report.html").read_text() == "<html/>"
        assert not list(tmp_path.glob("*.tmp")) + list(tmp_path.glob(".*.tmp"))

    def test_two_reports_do_not_share_what_is_not_whole(self, tmp_path, config, monkeypatch):
        with RunFolder(tmp_path) as records:
            records.write_manifest(manifest_of(config))
        first, second = (OwnFiles.opened(tmp_path, RUN) for _ in range(2))
        real, done = Path.replace, []

        def replace(self, target):
            if not done:
                done.append(True)
                second.write("report.html", "second")
            return real(self, target)

        monkeypatch.setattr(Path, "replace", replace)
        first.write("report.html", "first")
        assert (tmp_path / "report.html").read_text() == "first"

    def test_the_mark_does_not_grow_with_what_is_written_again(self, tmp_path, config):
        with RunFolder(tmp_path) as records:
            records.write_manifest(manifest_of(config))
            before = (tmp_path / MARK).read_bytes()
            for _ in range(3):
                records.write_manifest(manifest_of(config))
        assert (tmp_path / MARK).read_bytes() == before
        assert b".tmp" not in before
