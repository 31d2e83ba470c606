"""`treespec run --dry-run`: shows what would run, writes nothing, raises the errors of the run."""

import json
from operator import mul

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from treespec.experiments.cli.main import app
from treespec.experiments.config.schema import Config
from treespec.experiments.measure.searched_run import dry_run
from treespec.experiments.run import dry_run as module
from treespec.experiments.run import preparation
from treespec.experiments.run.dry_run import plan_data, print_plan
from treespec.models.pass_kinds import Passes


@pytest.fixture
def call(settings, tmp_path, monkeypatch, loaded_pair):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(settings))

    def call(*arguments):
        return CliRunner().invoke(app, ["run", *map(str, arguments)])

    return call


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_it_says_what_would_run_and_writes_nothing(call, tmp_path):
    done = call("exp.yaml", "--dry-run")
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exp.yaml"]
    text = " ".join(done.stdout.split())
    assert "2 prompts x 2 settings: 4 texts of 6 tokens by each method" in text
    for part in (
        "generate",
        "expansion 2x2",
        "rrsw",
        "folder: runs/tiny",
        "about ",
        "timed just now",
    ):
        assert part in text


def test_as_data(call, tmp_path):
    done = call("exp.yaml", "--dry-run", "--json", "repeats=3", "search.prompts={kind: embedded}")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert (data["units"], data["finished_units"], data["already_finished"]) == (12, 0, False)
    assert data["seconds"] > 0
    assert "without loading the models and the search" in data["basis"]
    assert len(data["methods"]) == 10
    tree = data["methods"][-1]
    assert (tree["method"], tree["sampling"], tree["nodes"]) == ("expansion 2x2", "T=1", 7)
    assert (tree["law"], tree["rule"]) == ("without_replacement", "rrsw")
    assert all(row["seconds_per_text"] > 0 for row in data["methods"])
    # 6 units in each setting, 2 prompts decoded alone, the twin of `generate`; no warm-up, no tuning.
    times = [6 + 2 + 6 * (row["method"] == "generate") for row in data["methods"]]
    texts = [row["seconds_per_text"] for row in data["methods"]]
    assert data["seconds"] == pytest.approx(sum(map(mul, times, texts)))
    assert data["compiling_seconds"] == 0


def test_what_compiling_took_is_said(settings, loaded_pair, monkeypatch, tmp_path):
    monkeypatch.setattr(loaded_pair.target, "passes", Passes("compiled", seconds=34.0))
    monkeypatch.setattr(loaded_pair.draft, "passes", Passes("compiled", seconds=8.0))
    plan = dry_run(Config(**settings), folder=tmp_path / "run", load=lambda models: loaded_pair)
    assert plan_data(plan)["compiling_seconds"] == 42
    console = Console(record=True, width=300)
    print_plan(plan, console)
    assert (
        " and up to 42 s of compiling, the time it took just now; from 6 tokens"
        in console.export_text()
    )


def test_of_a_run_that_is_there(call, tmp_path):
    assert call("exp.yaml", "-q", "--out", "out").exit_code == 0
    before = files(tmp_path)
    done = call("exp.yaml", "--out", "out", "--dry-run")
    assert "finished already: nothing would run" in done.stdout
    again = call("exp.yaml", "--out", "out", "--dry-run", "--fresh", "--json")
    assert json.loads(again.stdout)["units"] == 4
    assert files(tmp_path) == before
    other = call("exp.yaml", "seed=8", "--out", "out", "--dry-run")
    assert other.exit_code == 2
    assert "belongs to another config" in other.stderr
    assert files(tmp_path) == before


WRONG = {
    "a key": ["max_new_tokens=0"],
    "a rule": ["methods.4.rule=chain"],
    "a count": ["prompts.count=400"],
    "a context": ["max_new_tokens=1000"],
    "a model": ["models.target=nowhere"],
    "a folder": ["--out", "exp.yaml"],
    "a folder of others": ["--out", "."],
    "a search": ["methods.4.shape=optimal:16"],
    "a grid": ["sweep.seed=[0,1]"],
}


@pytest.mark.parametrize("what", WRONG)
def test_errors_are_those_of_the_run(call, tmp_path, what):
    before = files(tmp_path)
    dry = call("exp.yaml", *WRONG[what], "--dry-run", "-q")
    wet = call("exp.yaml", *WRONG[what], "-q")
    assert dry.exit_code == wet.exit_code == 2, dry.output
    assert dry.stderr == wet.stderr != ""
    assert dry.stdout == ""
    assert files(tmp_path) == before


def test_a_method_that_fails_is_named(call, monkeypatch):
    real = preparation.Bench.decode

    def decode(self, method, *arguments, **options):
        if method.kind == "plain":
            raise RuntimeError("no luck")
        return real(self, method, *arguments, **options)

    monkeypatch.setattr(module.Bench, "decode", decode)
    done = call("exp.yaml", "--dry-run")
    assert done.exit_code == 0, done.output
    assert "plain, T=0 fails" in done.stdout
    data = json.loads(call("exp.yaml", "--dry-run", "--json").stdout)
    assert [row["seconds_per_text"] for row in data["methods"] if row["method"] == "plain"] == [
        None,
        None,
    ]
    assert len({frozenset(row) for row in data["methods"]}) == 1, "all rows have the same keys"


def test_a_draft_model_of_a_methods_own_is_timed(call, tiny_pair):
    draft = {"source": "model", "model": str(tiny_pair / "draft")}
    shape = {"kind": "chain", "depth": 2}
    method = {"kind": "tree", "name": "own", "shape": shape, "draft": draft}
    done = call("exp.yaml", "--dry-run", "--json", f"methods={json.dumps([method])}")
    assert done.exit_code == 0, done.output
    assert all(row["seconds_per_text"] > 0 for row in json.loads(done.stdout)["methods"])
