"""Ctrl-C in a separate process, as in a shell: exit code 130, one line, no finished work is lost."""

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

COMMAND = "from treespec.experiments.cli.main import main; main()"
HEARD = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""A shell that starts the tests in the background makes them ignore Ctrl-C."""

PATIENCE_S = 120


def running(folder):
    """A run that takes longer than the test waits."""
    arguments = [
        "run",
        "smoke",
        "--out",
        os.fspath(folder),
        "prompts.count=20",
        "max_new_tokens=8",
        "-q",
    ]
    return subprocess.Popen(
        [sys.executable, "-c", f"{HEARD}; print('begun', flush=True); {COMMAND}", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rows(folder):
    """Complete lines of the log."""
    log = folder / "prompts.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def started_by_its_script(handler, pressed_at):
    """Run `treespec --version`, with Ctrl-C during the import of a module."""
    project = Path(__file__).parents[3] / "pyproject.toml"
    script = tomllib.loads(project.read_text())["project"]["scripts"]["treespec"].split(":")
    code = (
        "import os, signal, sys\n"
        f"signal.signal(signal.SIGINT, signal.{handler})\n"
        "class Press:\n"
        "    def find_spec(name, *places):\n"
        f"        if name == {pressed_at!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Press)\n"
        "sys.argv = ['treespec', '--version']\n"
        f"from {script[0]} import {script[1]}\n"
        f"{script[1]}()\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("module", ["cli.main"])
def test_interrupted_while_the_commands_are_imported(module):
    """In the first tenth of a second: no traceback, and the exit code of an interrupt."""
    done = started_by_its_script("default_int_handler", f"treespec.experiments.{module}")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("decoding", [True, False], ids=["while decoding", "while it loads"])
def test_interrupted(tmp_path, decoding):
    folder = tmp_path / "run"
    with running(folder) as process:
        try:
            assert process.stdout.readline() == "begun\n"
            end = time.monotonic() + PATIENCE_S
            while time.monotonic() < end and not (rows(folder) if decoding else folder.exists()):
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=PATIENCE_S)[1]
        finally:
            process.kill()
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "interrupted; the same command resumes where it stopped"
    assert "Traceback" not in said
    assert bool(rows(folder)) == decoding
