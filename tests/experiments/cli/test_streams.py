"""stdout closed, full, or without Unicode; arguments that are no text; errors outside of commands."""

import io
import os
import sys

import pytest

from treespec.experiments.cli.main import main

TREE = ["export", "[[0], [1]]", "--from", "medusa", "--to", "eagle"]


def ended(arguments):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code or 0


@pytest.mark.parametrize("arguments", [TREE, ["--help"], ["export", "--help"], ["--version"]])
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
    (tmp_path / "é.yaml").write_text("# ☃\nname: é\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for arguments in (["parts"], ["configs", "é.yaml"], ["configs", "é.yaml", "--json"]):
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
        assert ended(arguments) == 0
        assert written.getvalue()


@pytest.mark.parametrize(
    "arguments", [["generate", "caf\udce9"], ["caf\udce9"], ["parts", "\udcff"]]
)
def test_arguments_that_are_not_utf8(arguments, capfd):
    assert ended(arguments) == 2
    assert r"\udc" in capfd.readouterr().err
