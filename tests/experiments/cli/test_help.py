"""The help of every command: one screen, examples that work as written, completion."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from treespec.experiments.cli.common import complete_config
from treespec.experiments.cli.help import ORDER, PANELS
from treespec.experiments.cli.main import app
from treespec.experiments.config.file import load_config
from treespec.experiments.config.files import shipped
from treespec.experiments.sweep.grid import load_grid

COMMANDS = get_command(app).commands


def shown(*arguments):
    """The lines of a help text in a terminal of 80 columns."""
    done = CliRunner().invoke(
        app, [*arguments, "--help"], prog_name="treespec", env={"COLUMNS": "80"}
    )
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def examples(lines, title="Examples:"):
    """The lines below a title."""
    stripped = [line.strip() for line in lines]
    return stripped[stripped.index(title) + 1 :]


def test_the_help_is_one_screen():
    lines = shown()
    assert 24 <= len(lines) <= 41, len(lines)
    assert max(map(len, lines)) <= 80
    places = [lines.index(f"{title}:") for title in (*PANELS, "Options")]
    assert places == sorted(places)
    for name in COMMANDS:
        assert sum(line.startswith(f"  {name} ") for line in lines) == 1
    assert not any(line.endswith("...") for line in lines[lines.index("Experiments:") :])


def test_every_command_says_its_panel():
    assert {command.rich_help_panel for command in COMMANDS.values()} == set(PANELS)
    assert set(ORDER) <= set(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_examples_work_as_they_are_written(name):
    lines = examples(shown(name))
    assert 2 <= len(lines) <= 5
    assert all(len(line) <= 76 for line in lines)
    assert all(line.split()[:2] == ["treespec", name] for line in lines)
    for line in lines:
        parse(line)


def test_first_steps_work():
    lines = examples(shown(), "First steps:")
    assert len(lines) >= 3
    for line in lines:
        command = re.split(" {2,}", line)[0]
        if "COMMAND" not in command:
            parse(command)


def parse(line):
    """Raise unless the command, its options and arguments, and the config that it names exist."""
    words = shlex.split(line)
    end = min((words.index(mark) for mark in ("|", ">") if mark in words), default=len(words))
    program, name, *arguments = words[:end]
    assert program == "treespec"
    found = COMMANDS[name].make_context(name, arguments).params
    if "config" in found:
        overrides = found.get("overrides") or ()
        assert found["config"] in shipped(), f"{line}: no shipped config"
        if name == "sweep":
            load_grid(found["config"], overrides)
        else:
            load_config(found["config"], overrides)


def test_version():
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0
    assert re.fullmatch(r"treespec \d+\.\d+\.\d+\S*\n", done.stdout)


# -- completion ---------------------------------------------------------------------------------


def completed(*words, **more):
    """The completions that bash gets for the last of these words."""
    env = {"_TREESPEC_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words)}
    env |= {"COMP_CWORD": str(len(words) - 1), **more}
    done = CliRunner().invoke(app, [], prog_name="treespec", env=env)
    assert done.exit_code == 0, done.output
    return done.stdout.split()


def test_commands_options_and_configs_are_completed():
    assert completed("treespec", "re") == ["report", "replay"]
    assert "--fresh" in completed("treespec", "run", "smoke", "--fr")
    assert completed("treespec", "run", "smo") == ["smoke"]
    assert completed("treespec", "check-lossless", "tree_vs") == ["tree_vs_chain"]


def test_files_are_completed_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("smooth.yaml", "smile.yml", "smart.txt"):
        (tmp_path / name).touch()
    assert complete_config("sm") == ["smoke", "smile.yml", "smooth.yaml"]
    assert complete_config("[") == []


@pytest.mark.parametrize(
    ("words", "offered"),
    [("treespec run tree_vs", "tree_vs_chain"), ("treespec run smoke models.dt", "models.dtype=")],
)
def test_completion_in_a_process_of_its_own(words, offered):
    """As the shell calls it, and without importing anything heavy."""
    code = (
        "import sys\nfrom treespec.experiments.cli.main import main\n"
        "try:\n    main()\nfinally:\n"
        "    print([m for m in ('torch', 'polars') if m in sys.modules], file=sys.stderr)"
    )
    env = {**os.environ, "_TREESPEC_COMPLETE": "complete_bash"}
    env |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [offered]
    assert done.stderr.strip() == "[]"


def test_keys_of_overrides_are_completed():
    assert completed("treespec", "run", "smoke", "models.dt") == ["models.dtype="]
    assert completed("treespec", "run", "smoke", "max_") == ["max_new_tokens="]
    assert "models.target=" in completed("treespec", "run", "smoke", "mod")
    assert completed("treespec", "run", "smoke", "seed=1", "rep") == ["repeats="]
    assert completed("treespec", "run", "smoke", "methods.3.shape.de") == ["methods.3.shape.depth="]
    assert completed("treespec", "run", "smoke", "methods.9") == []
    assert completed("treespec", "run", "smoke", "samplings.1.top_") == [
        "samplings.1.top_k=",
        "samplings.1.top_p=",
    ]
    assert completed("treespec", "run", "no_such", "see") == ["seed="]
