"""stdout closed, full, or without Unicode; arguments that are no text; errors outside of commands."""

import io
import os
import sys

import pytest
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.cli.main import main
from treespec.tree import TreeShape

TREE = ["export", "[[0], [1]]", "--from", "medusa", "--to", "eagle"]


def ended(arguments):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code or 0


@pytest.mark.parametrize(
    "arguments", [TREE, ["--help"], ["export", "--help"], ["--version"], ["parts"]]
)
def test_a_reader_that_closes_our_output_ends_it_quietly(arguments, monkeypatch, capfd):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert ended(arguments) == 141
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("arguments", [TREE, ["--help"]])
def test_a_full_disk_behind_stdout_is_named(arguments, monkeypatch, capfd):
    with open("/dev/full", "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert ended(arguments) == 1
    error = capfd.readouterr().err
    assert "error: standard output: No space left on device" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("arguments", [TREE, ["parts"]])
def test_nothing_is_lost_but_the_text_if_stdout_is_closed(arguments, monkeypatch, capfd):
    monkeypatch.setattr(sys, "stdout", None)
    assert ended(arguments) == 0
    assert "Traceback" not in capfd.readouterr().err


def test_a_terminal_without_unicode(monkeypatch, tmp_path):
    chain = SyntheticMethod("chain é☃", "tree", TreeShape.chain(3), (0.6,))
    run = write_run(tmp_path / "run", [SyntheticMethod("plain", "plain"), chain], prompts=2)
    for more in ([], ["--json"]):
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
        assert ended(["report", os.fspath(run), *more]) == 0
        assert b"u2603" in written.getvalue()


@pytest.mark.parametrize(
    "arguments", [["generate", "caf\udce9"], ["caf\udce9"], ["parts", "\udcff"]]
)
def test_arguments_that_are_not_utf8(arguments, capfd):
    assert ended(arguments) == 2
    assert r"\udc" in capfd.readouterr().err
