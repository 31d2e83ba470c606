"""Files that may not be read, and folders that may not be entered: named in the message, exit code 2."""

import os
from pathlib import Path

import pytest
from hostile.commands import require_refused
from hostile.texts import BASE, shape

from treespec.errors import LoadError
from treespec.experiments.config.files import require_new
from treespec.experiments.errors import ConfigError
from treespec.models.load import load_pair
from treespec.search.formats import MalformedTree, load

SECRET = "kind: dyspec, size: 8, depth: 4, calibration: secret.json"
LINES = {
    "run secret.yaml": "secret.yaml",
    "run hidden/x.yaml": "hidden/x.yaml",
    "sweep secret.yaml sweep.seed=[0,1]": "secret.yaml",
    "run ok.yaml prompts.path=secret.jsonl": "prompts.path = secret.jsonl",
    "run bad.yaml": "methods[0].shape: secret.json",
    "replay secret.npz --shapes chain:2": "secret.npz",
    "replay good.npz --shapes secret.json": "secret.json",
    "replay good.npz --shapes hidden/x.json": "hidden/x.json",
    "estimate secret.npz": "secret.npz",
    "search secret.json --size 4": "secret.json",
    "search hidden/x.json --size 4": "hidden/x.json",
    "search 0.6 --latency secret.json --size 4": "secret.json",
    "export secret.json --to eagle": "secret.json",
    "export hidden/x.json --to eagle": "hidden/x.json",
}


@pytest.fixture
def closed(folder, monkeypatch):
    """A folder with unreadable `secret` files and an inaccessible folder `hidden`, even for root."""
    (folder / "hidden").mkdir(exist_ok=True)
    for name in ("secret.yaml", "secret.json", "secret.jsonl", "secret.npz", "hidden/x.json"):
        (folder / name).write_text(BASE)
    monkeypatch.chdir(folder)

    def denying(call, words):
        def denied(path, *args, **more):
            if isinstance(path, str | os.PathLike) and any(word in str(path) for word in words):
                raise PermissionError(13, "Permission denied", os.fspath(path))
            return call(path, *args, **more)

        return denied

    for owner, name in ((os, "open"), (os, "stat"), (os, "lstat")):
        words = ["hidden/"] + ["secret"] * (name == "open")
        monkeypatch.setattr(owner, name, denying(getattr(owner, name), words))
    return folder


@pytest.mark.parametrize("line", LINES)
def test_what_may_not_be_read_is_named(line, closed, monkeypatch):
    require_refused(
        closed,
        monkeypatch,
        line,
        {"bad.yaml": shape(SECRET)},
        [f"{LINES[line]}: Permission denied"],
    )


@pytest.mark.parametrize("path", ["hidden/x.json", Path("hidden/x.json"), Path("secret.json")])
def test_trees_that_may_not_be_read(path, closed):
    with pytest.raises(MalformedTree, match=r"\.json: Permission denied"):
        load(path)


def test_models_that_may_not_be_read(closed):
    with pytest.raises(LoadError, match="hidden/target: Permission denied"):
        load_pair("hidden")
    with pytest.raises(LoadError, match="hidden/target: Permission denied"):
        load_pair("embedded", "hidden/target")


def test_a_folder_that_takes_no_files_is_told_before_work(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=r"--out .*: no permission to create files in the folder"):
        require_new(tmp_path / "trace.npz")
