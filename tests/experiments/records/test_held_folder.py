"""Which folders are ours, what is deleted in them, and what a kill at any moment leaves."""

import json
import os
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from run_folders.rows import prompt_row, step_row

from treespec.experiments.errors import ForeignFolder, PromptError, RunFolderError
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.held_folder import LOCK
from treespec.experiments.records.manifest import config_data, config_hash
from treespec.plugin_files import PluginFile

MANIFEST = "manifest.json"
FOREIGN = {
    "notes.txt": b"mine",
    "figures/mine.png": b"a picture",
    "search/thesis.txt": b"years",
    "plugins/mine.py": b"mine",
    ".treespec-mine.tmp": b"mine",
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
    data |= {"methods": [], "sessions": [], "together": 1, "tuning": {}}
    data |= {"prompts_hash": "", "git_hash": None}
    return data | {"samplings": [{"name": "T=0"}]}


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


def whole_life(folder, config):
    """Everything that a run writes in its folder, with a fresh start in the middle."""
    with RunFolder(folder) as records:
        records.keep(records.search / "config.json", "{}")
        records.keep(records.search / "trace-0-iid.npz", b"\0")
        records.forget_search()
        records.keep(records.search / "latency.json", "{}")
        records.recover(["plain"])
        records.keep_manifest(manifest_of(config))
        for prompt in range(2):
            records.append([prompt_row(prompt)], [step_row(prompt)])
        records.finish(records.manifest())
        records.keep(folder / "figures/speedup.svg", "<svg/>")
        records.keep(folder / "report.html", "<html/>")
    add(folder, FOREIGN)
    with RunFolder(folder) as records:
        records.clear()
        records.recover(["plain"])
        records.keep_manifest(manifest_of(config))


def test_whatever_a_kill_leaves_is_ours(tmp_path, config, monkeypatch):
    """Killed before any of these calls, a run resumes, and `clear` leaves exactly what is not ours."""
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (sys.audit("fsync"), real(file)))
    (tmp_path / "moments").mkdir()
    moments = Moments(tmp_path / "run", tmp_path / "moments")
    with moments:
        whole_life(tmp_path / "run", config)
    assert moments.count > 100
    monkeypatch.setattr(os, "fsync", lambda file: None)  # no kill is simulated here
    for copy in moments:
        before = tree(copy)
        foreign = {name: before[name] for name in FOREIGN if name in before}
        with RunFolder(copy) as records:
            left = set(tree(copy)) - set(foreign)
            assert not [name for name in left if name.endswith(".tmp")], "not cleaned"
            records.recover(["plain"], write=False)
            records.clear()
            records.recover(["plain"])
            records.keep_manifest(manifest_of(config))
            records.clear()
        left = tree(copy)
        folders = {f"{Path(name).parent}/" for name in foreign if "/" in name.rstrip("/")}
        assert {name for name in left if name not in foreign} - folders <= {MANIFEST, LOCK}
        assert {name: left[name] for name in foreign} == foreign


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"folder_id": "0"}',
        b'{"config_hash": "x", "schema_version": 3}',
        b'{"grid_hash": "x", "folder_id": "0"}',
        b"\xff\xfe",
    ],
)
def test_a_manifest_of_others_is_no_mark(tmp_path, content):
    add(tmp_path, {MANIFEST: content})
    with pytest.raises(ForeignFolder, match="another folder with --out"):
        RunFolder(tmp_path).__enter__()
    assert tree(tmp_path) == {MANIFEST: content}


@pytest.mark.parametrize("name", ["search", "figures", "steps.jsonl", "report.html", MANIFEST])
def test_links_are_not_followed(tmp_path, config, name):
    folder, data = tmp_path / "run", tmp_path / "data"
    with RunFolder(folder) as records:
        records.keep_manifest(manifest_of(config))
    add(data, {"latency.json": b"mine", MANIFEST: (folder / MANIFEST).read_bytes()})
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(data / MANIFEST if "." in name else data)
    before = tree(data)
    with pytest.raises(ForeignFolder):
        RunFolder(folder).__enter__()
    with pytest.raises(ForeignFolder):
        RunFolder(folder).own_manifest()
    assert tree(data) == before


def test_plugins_that_the_manifest_does_not_name_stay(tmp_path, config):
    with RunFolder(tmp_path) as records:
        plugins = [{"file": "ours.py", "sha256": ""}, {"file": "../victim.py", "sha256": ""}]
        add(tmp_path, {"plugins/ours.py": b"", "plugins/mine.py": b"", "victim.py": b""})
        records.keep_manifest(manifest_of(config) | {"plugins": plugins})
        records.clear()
    assert set(tree(tmp_path)) == {MANIFEST, LOCK, "plugins/", "plugins/mine.py", "victim.py"}


def test_a_file_in_the_place_of_a_copy_of_a_plugin_is_left_alone(tmp_path, monkeypatch):
    file = PluginFile(tmp_path / "mine.py", b"ours")
    monkeypatch.setattr("treespec.experiments.records.held_folder.in_use", lambda: [file])
    with RunFolder(tmp_path / "run") as records:
        records.keep_plugins()  # a killed start leaves it, and the next one goes on
    for content in (b"ours", b"mine"):
        add(tmp_path / "run", {"plugins/mine.py": content})
        refuse = pytest.raises(RunFolderError, match=r"plugins/mine\.py is not a copy of")
        with refuse if content == b"mine" else nullcontext(), RunFolder(tmp_path / "run"):
            pass
    assert tree(tmp_path / "run")["plugins/mine.py"] == b"mine"


def test_only_exact_names_of_measurements_are_deleted(tmp_path, config):
    own = {"search/trace-0-iid.npz": b"", "search/best-0.json": b"", "search/latency.json": b""}
    others = {
        "search/trace-0-mine.npz": b"",
        "search/best-1.json": b"",
        "search/trace-00-iid.npz": b"",
    }
    with RunFolder(tmp_path) as records:
        records.keep_manifest(manifest_of(config) | {"samplings": [{"name": "T=0"}]})
        add(tmp_path, own | others)
        records.forget_search()
    assert others.keys() <= tree(tmp_path).keys()
    assert not own.keys() & tree(tmp_path).keys()


def test_a_copy_of_a_folder_is_ours_too(tmp_path, config):
    with RunFolder(tmp_path / "a") as records:
        records.keep_manifest(manifest_of(config))
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

    def test_an_earlier_run_as_it_was(self, tmp_path, config):
        with RunFolder(tmp_path) as records:
            records.keep_manifest(manifest_of(config))
        (tmp_path / "notes.txt").write_bytes(b"mine")
        before = tree(tmp_path)
        refuse(tmp_path)
        assert tree(tmp_path) == before

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
        assert (tmp_path / "run" / MANIFEST).exists()

    def test_a_disk_that_is_full_when_the_manifest_is_written(self, tmp_path, monkeypatch):
        def full(*arguments):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(RunFolderError, match="No space left"):
            RunFolder(tmp_path / "a" / "run").__enter__()
        assert tree(tmp_path) == {}


def test_an_older_run_is_not_written(tmp_path, config):
    (tmp_path / MANIFEST).write_text(json.dumps(manifest_of(config)))
    with pytest.raises(ForeignFolder, match="older version"):
        RunFolder(tmp_path).__enter__()
