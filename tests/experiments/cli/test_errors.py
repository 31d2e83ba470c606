"""Nonsense on the command line: one line says what is wrong, exit code 2, never a traceback."""

import errno
import os

import pytest
import yaml
from run_folders.folders import write_run
from typer.testing import CliRunner

from treespec.experiments.cli.main import app


@pytest.fixture
def call(settings, tmp_path, monkeypatch):
    """Call `treespec` in a folder of files that no command accepts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "blank.txt").write_text(" \n\t\n")
    (tmp_path / "bytes").write_bytes(bytes(range(128, 256)))
    (tmp_path / "bytes.npz").write_bytes(bytes(range(128, 256)))
    (tmp_path / "list.yaml").write_text("[1, 2]")
    (tmp_path / "broken.yaml").write_text("a: [")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "null.jsonl").write_text("null\n")

    def call(*arguments):
        return CliRunner().invoke(app, [os.fspath(a) for a in arguments])

    return call


NO_OUT = "folder/missing/x"

WRONG = {
    # run: the config
    "run folder": ["folder is a folder"],
    "run empty": ["empty: a config is a mapping"],
    "run bytes": ["bytes: not UTF-8"],
    "run list.yaml": ["a config is a mapping", "list"],
    "run broken.yaml": ["broken.yaml: not YAML"],
    f"run {'x' * 3000}": ["xxx"],
    "run exp.yaml seed": ["write key=value"],
    "run exp.yaml =1": ["write key=value"],
    "run exp.yaml methods.9.kind=plain": ["not an index in 0..4"],
    # run: prompts
    "run exp.yaml prompts.path=folder": ["folder: Is a directory"],
    "run exp.yaml prompts.path=empty": ["empty: the file is empty"],
    "run exp.yaml prompts.path=bytes": ["bytes: not UTF-8"],
    "run exp.yaml prompts.path=null.jsonl": ["null.jsonl, line 1: expected a JSON object"],
    "run exp.yaml prompts={kind:\u00a0text,path:\u00a0blank.txt}": ["the file is empty"],
    "run exp.yaml prompts={kind:\u00a0spec_bench,path:\u00a0folder}": ["folder: Is a directory"],
    # run: its folder
    "run exp.yaml --out empty": ["empty is a file"],
    "run exp.yaml --out empty/run": ["empty/run: Not a directory"],
    # report
    "report missing": ["missing is not a run folder"],
    "report empty": ["empty is not a run folder"],
    "report folder": ["no manifest.json"],
    # check-lossless
    "check-lossless missing": ["no config file 'missing'"],
    "check-lossless exp.yaml --samples 0": ["samples = 0"],
    "check-lossless exp.yaml --false-alarm 2": ["--false-alarm = 2"],
    "check-lossless exp.yaml --out empty": ["empty is a file", "--out"],
    "check-lossless exp.yaml --out empty/x": ["empty/x: Not a directory"],
    "check-lossless exp.yaml methods=[{kind:\u00a0plain}]": ["no method of kind 'tree'"],
    # search
    "search folder": ["folder"],
    "search missing.npz": ["'missing.npz': there is no such file; `treespec trace CONFIG"],
    "search missing.json": ["'missing.json': there is no such file; `treespec estimate"],
    "search bytes.npz": ["bytes.npz: not an archive"],
    "search broken.json": ["broken.json"],
    "search 0.5,nan": ["nan"],
    "search 0.5 --latency folder": ["folder: Is a directory"],
    "search 0.5 --latency no.json": [
        "--latency 'no.json': there is no such file; `treespec profile"
    ],
    "search 0.5 --latency bytes": ["bytes"],
    "search 0.5 --size -3 --json": ["-3"],
    "search 0.5 --to nobody --json": ["nobody"],
    # profile and trace
    f"profile exp.yaml --out {NO_OUT}": ["there is no folder folder/missing"],
    "profile exp.yaml --out empty": ["empty already exists"],
    "profile missing --out new.json": ["no config file 'missing'"],
    f"trace exp.yaml --out {NO_OUT}": ["there is no folder folder/missing"],
    "trace exp.yaml --sampling T=0 --out t.npz --width 0": ["width = 0"],
    "trace exp.yaml --out t.npz": ["several samplings"],
    # replay
    "replay folder --shapes chain:2": ["folder: Is a directory"],
    "replay empty --shapes chain:2": ["empty: not an archive"],
    "replay missing.npz --shapes chain:2": ["missing.npz", "`treespec trace CONFIG --out"],
    "estimate missing.npz": ["missing.npz", "`treespec trace CONFIG --out"],
    "replay bytes.npz": ["--shapes", "--growth"],
    "replay empty --shapes chain": ["'chain' is not a tree"],
    # export
    "export folder --to eagle": ["folder"],
    "export missing.json --to eagle": ["'missing.json': there is no such file; `treespec search"],
    "export bytes --to eagle": ["bytes"],
    "export empty --to eagle": ["empty"],
    "export [[0]] --to nobody": ["nobody"],
    f"export [[0]] --from medusa --to eagle --out {NO_OUT}": ["there is no folder folder/missing"],
}


@pytest.mark.parametrize("line", WRONG, ids=lambda line: line[:60])
def test_one_line_says_what_is_wrong(call, line):
    done = call(*(word.replace("\u00a0", " ") for word in line.split(" ")))
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    assert done.stdout == ""
    errors = [text for text in done.stderr.splitlines() if text.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    for part in WRONG[line]:
        assert part in errors[0], done.stderr


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("rnu smoke", "Did you mean 'run'"),
        ("run", "Missing argument"),
        ("run smoke --nonsense", "--nonsense"),
        ("search 0.5 --size many", "--size"),
        ("trace smoke", "--out"),
        ("doctor now", "now"),
    ],
)
def test_nonsense_that_no_command_can_read(call, line, part):
    done = call(*line.split())
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    (error,) = [text for text in done.stderr.splitlines() if text.startswith("Error: ")]
    assert part in error


def test_reports_of_what_cannot_be_reported(call, tmp_path):
    def refused(folder, *parts):
        done = call("report", folder)
        assert done.exit_code == 2, done.output
        (error,) = [text for text in done.stderr.splitlines() if text.startswith("error: ")]
        assert all(part in error for part in parts), error

    started = write_run(tmp_path / "started", prompts=0, finished=False)
    refused(started, "no finished prompt", "resumes it")
    newer = write_run(tmp_path / "newer", prompts=1, schema_version=99)
    refused(newer, "schema version 99", "the treespec that wrote it")
    damaged = write_run(tmp_path / "damaged", prompts=1)
    (damaged / "manifest.json").write_text("{")
    refused(damaged, "manifest.json is damaged")
    table = write_run(tmp_path / "table", prompts=1)
    (table / "prompts.parquet").write_bytes(b"PAR1")
    refused(table, "prompts.parquet cannot be read")
    line = write_run(tmp_path / "line", prompts=2, finished=False)
    lines = (line / "prompts.jsonl").read_bytes().splitlines(keepends=True)
    (line / "prompts.jsonl").write_bytes(b"".join([lines[0], b"{oops\n", *lines[2:]]))
    refused(line, "prompts.jsonl, line 2")


def failing(monkeypatch, error):
    """Let every run fail."""
    from treespec.experiments.measure import searched_run as runs

    def run(*arguments, **more):
        raise error

    monkeypatch.setattr(runs, "run", run)


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (KeyboardInterrupt(), 130, "interrupted; the same command resumes where it stopped"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            1,
            "error: No space left on device; finished results",
        ),
        (
            OSError(errno.EFBIG, "File too large", "a/b"),
            1,
            "error: a/b: File too large; finished results",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "a/b"),
            2,
            "error: a/b: Permission denied",
        ),
        (OSError("odd"), 2, "error: odd"),
        (ZeroDivisionError("x"), 1, "a bug in treespec, whatever the input. Please report it"),
        (MemoryError(), 1, "error: out of memory"),
        (SystemExit(0), 2, "a plug-in or model that this command ran ends the program"),
        (GeneratorExit(), 2, "this command ran: GeneratorExit"),
    ],
)
def test_what_happens_while_it_runs(call, monkeypatch, error, code, says):
    failing(monkeypatch, error)
    done = call("run", "exp.yaml", "-q")
    assert done.exit_code == code, done.output
    assert says in done.stderr
    assert "Traceback" not in done.output


def test_nobody_reads_the_output(call, monkeypatch):
    """As in `treespec report ... | head`: the command ends without a message."""
    failing(monkeypatch, BrokenPipeError(errno.EPIPE, "Broken pipe"))
    done = call("run", "exp.yaml", "-q")
    assert done.exit_code == 1
    assert "error" not in done.stderr
