"""A folder of bad files, and commands that are to refuse them."""

import json
import os
import re
import socket
from contextlib import contextmanager

from typer.testing import CliRunner

from hostile.archives import LATENCY, archive
from hostile.texts import BASE, ROW
from treespec.experiments.cli.main import app

__all__ = ["require_refused", "special_files", "split", "write"]


@contextmanager
def special_files(path):
    """A folder with some of every kind that is no file."""
    (path / "folder").mkdir()
    os.mkfifo(path / "fifo")
    (path / "dangling").symlink_to("missing")
    (path / "loop").symlink_to("loop")
    with (path / "sparse").open("wb") as file:
        file.truncate(2**32)
    for kind, name in (("run", "manifest.json"), ("sweep", "sweep.json")):
        (path / f"{kind}-pipe").mkdir()
        os.mkfifo(path / f"{kind}-pipe" / name)
        (path / f"{kind}-zero").mkdir()
        (path / f"{kind}-zero" / name).symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path / "socket"))
        yield path


def write(folder, files):
    """Good files, and these."""
    good = {
        "ok.yaml": BASE,
        "prompts.jsonl": ROW * 3,
        "latency.json": json.dumps(LATENCY),
        "good.npz": archive,
    }
    for name, content in (good | files).items():
        content = content() if callable(content) else content
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def split(line):
    """The words of a command line; spaces within one are written as no-break spaces."""
    words = line if isinstance(line, list) else line.split(" ")
    return [word.replace("\u00a0", " ") for word in words]


def of_python(text):
    """Names of exceptions in a text."""
    return re.findall(r"\b[A-Z]\w*(?:Error|Exception)\b|Traceback", text)


def require_refused(folder, monkeypatch, line, files, words):
    """A command ends with code 2 and one message that holds these words.

    Args:
        folder: where it runs.
        monkeypatch: of the test.
        line: the command line, as `split` takes it.
        files: name -> content, written beside the good ones.
        words: parts of the message.
    """
    write(folder, files)
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, split(line))
    assert done.exit_code == 2, done.output[:2000]
    assert not of_python(done.stderr), done.stderr[:2000]
    assert all(word in done.stderr for word in words), done.stderr[:2000]
    assert len(done.stderr) < 2500
