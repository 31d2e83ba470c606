"""`treespec sweep`, in this process and with real workers."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from treespec.experiments.cli.main import app
from treespec.experiments.run import models


@pytest.fixture
def call(tmp_path, loaded_pair, monkeypatch):
    """Call `treespec sweep` in an empty folder, with a pair that is already loaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "load_models", lambda config: loaded_pair)

    def call(*arguments):
        return CliRunner().invoke(app, ["sweep", *map(os.fspath, arguments)])

    return call


def refused(result, *parts):
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    for part in parts:
        assert part in result.stderr, result.stderr


def test_a_sweep_its_table_and_its_json(call, grid_file, tmp_path):
    result = call(grid_file(), "sweep.seed=[0]")
    assert result.exit_code == 0, result.output + result.stderr
    assert (tmp_path / "sweeps" / "tiny" / "summary.parquet").exists()
    assert "chain 3" in result.output
    assert "[2/2]  seed=0,methods.1.shape.depth=3: finished" in result.stderr
    again = call(grid_file(), "sweep.seed=[0]", "--json")
    assert again.exit_code == 0
    data = json.loads(again.stdout)
    assert [job["state"] for job in data["jobs"]] == ["finished"] * 2
    assert "already finished" in again.stderr
    refused(call(grid_file()), "belongs to another sweep", "sweep.seed")


def test_a_draft_model_of_a_method_is_looked_at_before_any_job_starts(
    call, grid_file, tiny_pair, tmp_path
):
    def asked(folder):
        own = {"source": "model", "model": os.fspath(folder)}
        chain = {"kind": "tree", "draft": own, "shape": {"kind": "chain", "depth": 2}}
        return grid_file({"seed": [0, 1]}, methods=[{"kind": "plain"}, chain])

    def nothing_left():
        return not (tmp_path / "sweeps").exists()

    refused(call(asked("./nowhere")), "draft.model: there is no model folder", "in the job seed=0")
    assert nothing_left()
    own = tmp_path / "own"
    shutil.copytree(tiny_pair / "draft", own)
    (own / "model.safetensors").write_bytes(b"{}")
    refused(call(asked(own)), "draft.model: ", "is truncated", "in the job seed=0")
    assert nothing_left()
    shutil.copytree(tiny_pair / "draft", own, dirs_exist_ok=True)
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 16}))
    refused(call(asked(own)), "context is 16", "in the job seed=0")
    assert nothing_left()
    refused(call(asked(own), "--out", own), "methods[1].draft.model", "is an input")
    (own / "config.json").write_text(json.dumps(config))
    result = call(asked(own))
    assert result.exit_code == 0, result.stderr
    # The table breaks names of methods in a narrow terminal.
    assert "own chain 2" in " ".join(result.output.split())


def test_a_failed_job_is_exit_code_1(call, grid_file, monkeypatch):
    def broken(config):
        raise RuntimeError("no weights today")

    monkeypatch.setattr(models, "load_models", broken)
    result = call(grid_file(), "sweep.seed=[0]", "--retries", "0", "-q")
    assert result.exit_code == 1
    assert "no weights today" in result.stderr
    assert "2 of 2 jobs failed" in result.stderr


def test_wrong_input(call, grid_file, tmp_path, monkeypatch):
    path = grid_file()
    refused(
        call(path, "sweep.sede=[1]"),
        "override 'sweep.sede=[1]': sweep.sede: unknown key",
        "did you mean 'seed'",
    )
    refused(call(path, "sweep.seed=[]"), "empty list")
    refused(call("nowhere.yaml"), "no config file")
    refused(call(path, "--workers", "3"), "--executor local")
    refused(call(path, "--slurm", "partition=x"), "need --executor slurm")
    refused(call(path, "--executor", "slurm", "--slurm", "partition"), "write key=value")
    refused(call(path, "--executor", "slurm", "--slurm", "time=1:00:00"), "time=60 for an hour")
    refused(call(path, "prompts.path=nowhere.jsonl"), "nowhere.jsonl")
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    refused(call(path, "--executor", "slurm"), "SLURM is not available")
    assert not (tmp_path / "sweeps").exists() or not any((tmp_path / "sweeps").rglob("*.parquet"))


def test_the_module_is_light():
    code = (
        "import sys, treespec.experiments.cli.sweep; "
        "print([m for m in ('torch', 'pydantic', 'polars', 'submitit') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_local_workers_killed_and_resumed(grid_file, tmp_path):
    """Two workers; one is killed, then the sweep itself: its workers end with it, and nothing is lost."""
    import psutil
    from sweep_tables import without_times

    from treespec.experiments.sweep.collect import collect
    from treespec.experiments.sweep.sweep_folder import read_manifest

    path = grid_file()
    code = "from treespec.experiments.cli.main import app; app()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(name):
        command = [
            sys.executable,
            "-c",
            code,
            "sweep",
            str(path),
            "--executor",
            "local",
            "--workers",
            "2",
        ]
        return subprocess.Popen(
            [*command, "--out", str(tmp_path / name)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    assert start("whole").wait(400) == 0
    process = start("broken")
    deadline = time.monotonic() + 60
    workers = []
    while len(workers) < 2 and time.monotonic() < deadline:
        workers = psutil.Process(process.pid).children()
        time.sleep(0.1)
    os.kill(workers[0].pid, signal.SIGKILL)
    time.sleep(6)
    left = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    psutil.wait_procs(left, timeout=10)
    assert not [worker for worker in left if worker.is_running()]
    assert start("broken").wait(400) == 0
    whole, broken = (
        collect(p, read_manifest(p)) for p in (tmp_path / "whole", tmp_path / "broken")
    )
    assert without_times(whole.prompts).equals(without_times(broken.prompts))
    assert without_times(whole.summary).equals(without_times(broken.summary))
