"""Foreign folders with files named like ours: no command changes a byte, not even with --fresh."""

import json
import os
import random

import pytest
import yaml
from typer.testing import CliRunner

from treespec.experiments.cli.main import app

NAMES = (
    *("manifest.json", "prompts.jsonl", "steps.jsonl", "trees.jsonl", "prompts.parquet"),
    *("steps.parquet", "trees.parquet", "report.html", "sweep.json", "summary.json"),
    *("summary.parquet", "check.json", ".lock", "trace.npz", "latency.json"),
    *("search/latency.json", "search/trace-0-iid.npz", "search/mine", "search/config.json"),
    *("figures/speedup.svg", "figures/mine.png", "jobs/seed=0/run/manifest.json", "jobs/mine"),
    *("jobs/seed=0/config.yaml", "logs/seed=0.log", "rates.json", "tree.json", "manifest.tmp"),
    *(".manifest.json.tmp", ".sweep.json.4711.tmp", ".sweep.json.tmp", "search", "figures", "jobs"),
)


def contents(name, chance):
    """What a foreign file of this name may hold: nothing, garbage, or content that looks like ours."""
    rows = {"prompt": "walk the tree", "question_id": "1"}
    like = {
        "manifest.json": {"config": {}, "config_hash": "", "finished": None, "schema_version": 2},
        "sweep.json": {"schema_version": 1, "grid": {}, "jobs": [], "folder_id": "0" * 32},
        "check.json": {"passed": True},
        "latency.json": {"unit": "ms"},
    }.get(name.rpartition("/")[2], rows)
    return chance.choice([b"", b"mine", chance.randbytes(200), (json.dumps(like) + "\n").encode()])


def foreign(folder, chance):
    """A foreign folder: some of these files, and perhaps one of another name."""
    wanted = chance.sample(NAMES, chance.randint(1, 9)) + ["thesis.tex"] * chance.randint(0, 1)
    folder.mkdir()
    for name in wanted:
        path = folder / name
        parents = path.relative_to(folder).parents
        if path.exists() or any((folder / parent).is_file() for parent in parents):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents(name, chance))
    return folder


def snapshot(folder):
    """Names, types, contents and times of everything in a folder."""
    return {
        path.relative_to(folder).as_posix(): (
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else None,
        )
        for path in [folder, *sorted(folder.rglob("*"))]
    }


def commands(folder):
    """Every command that writes, pointed at a folder, or at the files in it."""
    out, grid = ("--out", folder), "sweep.seed=[0]"
    yield from (
        ("run", "exp.yaml", *out),
        ("run", "exp.yaml", *out, "--fresh"),
        ("run", "exp.yaml", *out, "--retry"),
        ("run", "searched.yaml", *out, "--fresh"),
        ("sweep", "exp.yaml", grid, *out),
        ("sweep", "exp.yaml", grid, *out, "--fresh"),
        ("sweep", "exp.yaml", grid, *out, "--executor", "local", "--fresh"),
        ("report", folder),
        ("report", folder, "--json"),
    )
    if (folder / "prompts.jsonl").exists():
        prompts = f"prompts={{kind: jsonl, path: {folder / 'prompts.jsonl'}}}"
        yield ("run", "exp.yaml", prompts, *out, "--fresh")
        yield ("sweep", "exp.yaml", prompts, grid, *out, "--fresh")
    if (folder / "check.json").exists():
        yield ("check-lossless", "exp.yaml", *out)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        file = ("--out", path)
        yield ("trace", "exp.yaml", "--sampling", "T=0", *file)
        yield ("profile", "exp.yaml", *file)
        yield ("search", "0.6,0.2", "--size", "4", *file)
        yield ("export", "[[0]]", "--from", "medusa", "--to", "eagle", *file)
        yield ("estimate", "trace.npz", *file)
        yield ("run", "exp.yaml", *file, "--fresh")
        yield ("sweep", "exp.yaml", grid, *file, "--fresh")
        yield ("check-lossless", "exp.yaml", *file)


@pytest.fixture
def call(settings, tmp_path, monkeypatch):
    """Call `treespec` and fail if it loads a model: refusals must come first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "treespec.models.load.load_pair", lambda *a, **k: pytest.fail("a model was loaded")
    )
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(settings))
    methods = [{"kind": "plain"}, {"kind": "tree", "shape": {"kind": "best", "max_size": 4}}]
    prompts = settings["prompts"] | {"tokens": 8}
    data = settings | {"methods": methods, "prompts": prompts, "search": {"depth": 2}}
    (tmp_path / "searched.yaml").write_text(yaml.safe_dump(data))

    def call(arguments):
        return CliRunner().invoke(app, [os.fspath(argument) for argument in arguments])

    return call


@pytest.mark.parametrize(
    "most",
    [
        5,
        pytest.param(None, marks=(pytest.mark.slow, pytest.mark.timeout(1800)), id="every command"),
    ],
)
def test_nothing_of_others_is_changed(call, tmp_path, most):
    """50 folders, each with some of the commands, or all."""
    count = 0
    for seed in range(50):
        chance = random.Random(seed)
        folder = foreign(tmp_path / f"folder-{seed}", chance)
        lines = list(commands(folder))
        for line in lines if most is None else chance.sample(lines, min(most, len(lines))):
            before = snapshot(folder), sorted(os.listdir(tmp_path))
            done = call(line)
            message = f"{line}: {done.output}"
            assert done.exit_code == 2, message
            assert "error: " in done.stderr, message
            assert "Traceback" not in done.output, message
            assert (snapshot(folder), sorted(os.listdir(tmp_path))) == before, message
            count += 1
    assert count >= (200 if most else 2000), count


@pytest.mark.parametrize(
    "how", ["itself", "above", "link to it", "linked input", "config", "target"]
)
def test_a_run_does_not_write_where_it_reads(call, tmp_path, prompt_file, tiny_pair, how):
    """Even in our own folder, because --fresh might delete what is read."""
    from treespec.experiments.records.folder import RunFolder

    folder, extra = tmp_path / "data", []
    with RunFolder(folder):
        pass
    (folder / "prompts.txt").write_bytes(b"walk the tree")
    (tmp_path / "prompts.txt").write_bytes(b"walk the tree")
    text = "prompts={kind: text, path: %s}"
    if how == "itself":
        out, extra = folder, [text % "data/../data/prompts.txt"]
    elif how == "above":
        out, extra = tmp_path, [text % "prompts.txt"]
    elif how == "link to it":
        (tmp_path / "link").symlink_to(folder)
        out, extra = tmp_path / "link", [text % "data/prompts.txt"]
    elif how == "linked input":
        (tmp_path / "words.txt").symlink_to(folder / "prompts.txt")
        out, extra = folder, [text % "words.txt"]
    elif how == "config":
        out = tmp_path
    else:
        (tmp_path / "model").symlink_to(tiny_pair)
        out, extra = tiny_pair, ["models.target=model"]
    before = snapshot(tmp_path), snapshot(tiny_pair)
    for command in (["run", "exp.yaml"], ["sweep", "exp.yaml", "sweep.seed=[0]"]):
        for fresh in ([], ["--fresh"]):
            done = call([*command, *extra, "--out", out, *fresh])
            assert done.exit_code == 2, done.output
            assert "which is an input" in done.stderr
            assert os.fspath(out) in done.stderr
    assert (snapshot(tmp_path), snapshot(tiny_pair)) == before


@pytest.mark.parametrize("command", ["run", "sweep"])
@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("output=../elsewhere", "is not in BASE/"),
        ("output=BASE/../elsewhere", "is not in BASE/"),
        ("output=BASE/../../elsewhere", "is not in BASE/"),
        ("output=BASE", "is not in BASE/"),
        ("output=.", "is not in BASE/"),
        ("output=elsewhere", "is not in BASE/"),
        ("output=BASE/link/x", "is not in BASE/"),
        ("output=5", "output"),
        ("name=../elsewhere", "name = '../elsewhere'"),
        ("name=..", "name = '..'"),
        ("name=a/b", "name = 'a/b'"),
        ("name=link", "is not in BASE/"),
    ],
)
def test_no_config_leads_out_of_its_folder(call, tmp_path, command, override, part):
    base = f"{command}s"
    (tmp_path / base).mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / base / "link").symlink_to(tmp_path / "elsewhere")
    override = override.replace("BASE", base)
    before = snapshot(tmp_path)
    more = ["sweep.seed=[0]"] if command == "sweep" else []
    for fresh in ([], ["--fresh"]):
        done = call([command, "exp.yaml", override, *more, *fresh])
        assert done.exit_code == 2, done.output
        assert part.replace("BASE", base) in done.stderr
    assert snapshot(tmp_path) == before


def test_where_configs_may_lead(tmp_path, monkeypatch):
    from treespec.experiments.config.places import place_of

    monkeypatch.chdir(tmp_path)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "scratch")
    for output, name, found in (
        (None, "smoke", "runs/smoke"),
        (None, "T=0, twice", "runs/T=0, twice"),
        ("runs/a/b", "x", "runs/a/b"),
        ("./runs/a", "a/b", "runs/a"),
        ("runs/../runs/a", "x", "runs/../runs/a"),
    ):
        assert os.fspath(place_of(output, name, "runs")) == found


def test_a_file_that_appears_while_it_is_measured_is_left_alone(tmp_path):
    from treespec.experiments.config.files import write_new
    from treespec.experiments.errors import ConfigError

    (tmp_path / "trace.npz").write_bytes(b"mine")
    (tmp_path / "trace.npz.tmp").write_bytes(b"mine too")
    with pytest.raises(ConfigError, match="is left as it is"):
        write_new(tmp_path / "trace.npz", b"ours")
    assert write_new(tmp_path / "new.npz", b"ours").read_bytes() == b"ours"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "new.npz", "trace.npz", "trace.npz.tmp",
    ]  # fmt: skip
    assert (tmp_path / "trace.npz").read_bytes() == b"mine"


def test_an_older_run_is_read_and_not_written(call, tmp_path):
    from run_folders.folders import SyntheticMethod, write_run

    folder = write_run(tmp_path / "old", [SyntheticMethod("plain", "plain")], prompts=2)
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    del data["folder_id"]
    path.write_text(json.dumps(data))
    before = snapshot(tmp_path)
    done = call(["report", folder])
    assert done.exit_code == 2
    assert "tokens" in done.stdout
    assert "report:" not in done.stdout
    assert "older version" in done.stderr
    done = call(["report", folder, "--json"])
    assert json.loads(done.stdout)["report"] is None
    assert snapshot(tmp_path) == before


def test_a_result_of_ours_is_replaced_and_nothing_else(tmp_path):
    from treespec.experiments.errors import ConfigError
    from treespec.experiments.lossless.check_text import require_check

    path = tmp_path / "check.json"
    require_check(tmp_path)
    own = {"checked": "", "false_alarm": 0.1, "laws": [], "greedy": [], "passed": True, "more": 1}
    path.write_text(json.dumps(own))
    require_check(tmp_path)
    for content in ("", "[]", "null", "{}", "[" * 100_000, json.dumps({"passed": True})):
        path.write_text(content)
        with pytest.raises(ConfigError, match=r"check\.json already exists"):
            require_check(tmp_path)
    path.unlink()
    (tmp_path / "other.json").write_text(json.dumps(own))
    path.symlink_to(tmp_path / "other.json")
    with pytest.raises(ConfigError, match=r"check\.json already exists"):
        require_check(tmp_path)
