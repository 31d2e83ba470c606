"""Compiled code comes back with the results, is found again, and stays small."""

import os
import random
import subprocess
import sys

import pytest

from treespec.experiments.research.benchmarks.gpu import compiled_code
from treespec.experiments.research.benchmarks.gpu.compiled_code import (
    INDUCTOR,
    TRITON,
    CompiledCode,
)

COMPILE = """
import sys
from pathlib import Path
from treespec.experiments.research.benchmarks.gpu.compiled_code import CompiledCode
archive, folder = map(Path, sys.argv[1:])
code = CompiledCode(archive, [archive], folder)
import torch
from torch._dynamo.utils import counters
work = torch.compile(lambda x: (x.sin() * 2).relu().sum(-1))
work(torch.ones(8, 64))
code.keep()
print("found" if code.found else "new", counters["inductor"]["fxgraph_cache_hit"])
"""


@pytest.fixture(autouse=True)
def _no_folders(monkeypatch):
    monkeypatch.setenv(INDUCTOR, "")  # so that what a test sets is taken back
    monkeypatch.setenv(TRITON, "")


def write(folder, name, size):
    (folder / "inductor").mkdir(exist_ok=True)
    (folder / "inductor" / name).write_bytes(random.Random(name).randbytes(size))


def test_code_is_kept_and_found_again(tmp_path):
    archive = tmp_path / "results" / "gpu_code.tar.gz"
    code = CompiledCode(archive, [archive], tmp_path / "a")
    assert not code.found
    assert os.environ[INDUCTOR] == str(tmp_path / "a" / "inductor")
    assert code.keep() is None
    write(tmp_path / "a", "one", 50)
    assert "gpu_code.tar.gz" in code.keep()
    assert code.keep() is None, "nothing new"
    os.environ[INDUCTOR] = os.environ[TRITON] = ""
    again = CompiledCode(
        tmp_path / "other.tar.gz", [tmp_path / "none.tar.gz", archive], tmp_path / "b"
    )
    assert again.found
    assert (tmp_path / "b" / "inductor" / "one").stat().st_size == 50


def test_an_archive_is_small(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled_code, "MOST_BYTES", 10_000)
    code = CompiledCode(tmp_path / "gpu_code.tar.gz", folder=tmp_path / "a")
    for i, size in enumerate((8_000, 2_000, 1_000, 900)):
        write(tmp_path / "a", str(i), size)
    assert "without 1 of the largest files" in code.keep()
    assert code.archive.stat().st_size <= 10_000


def test_a_folder_of_the_users_stays_theirs(tmp_path, monkeypatch):
    monkeypatch.setenv(INDUCTOR, str(tmp_path / "mine"))
    code = CompiledCode(tmp_path / "gpu_code.tar.gz", folder=tmp_path / "a")
    write_nothing = code.keep()
    assert (code.found, write_nothing) == (False, None)
    assert os.environ[INDUCTOR] == str(tmp_path / "mine")
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_inductor_finds_what_came_back(tmp_path):
    """Code for the CPU, made in one folder and unpacked into another."""

    def run(folder):
        line = [sys.executable, "-c", COMPILE, tmp_path / "code.tar.gz", tmp_path / folder]
        environment = {k: v for k, v in os.environ.items() if k not in (INDUCTOR, TRITON)}
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.split()

    assert run("a") == ["new", "0"]
    assert run("b") == ["found", "1"]
