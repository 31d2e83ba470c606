"""Local workers, with cheap processes in place of jobs."""

import os
import signal
import sys
import time

import psutil
import pytest

from treespec.experiments.sweep.attempts import Task
from treespec.experiments.sweep.executors import LocalWorkers, threads_for


class Cheap(LocalWorkers):
    """Workers that run a line of Python instead of a job."""

    line = "pass"

    def command(self, task):
        return [sys.executable, "-I", "-c", self.line]


def workers_of(line, count=2):
    made = Cheap(count, threads=1)
    made.line = line
    return made


def task(tmp_path, name="a"):
    return Task(name, tmp_path / name, 1, tmp_path / "logs" / f"{name}.log")


def wait(executor, number=1):
    found, deadline = [], time.monotonic() + 30
    while len(found) < number and time.monotonic() < deadline:
        found += executor.poll()[0]
        time.sleep(0.01)
    return found


def test_room_and_end(tmp_path):
    executor = workers_of("import sys; sys.stdin.read()")
    assert executor.room() == 2
    executor.start([task(tmp_path, "a"), task(tmp_path, "b")])
    assert (executor.room(), executor.poll()) == (0, ([], {"a", "b"}))
    assert "2 workers were stopped" in executor.stop()
    assert executor.room() == 2


def test_a_worker_that_ends_well(tmp_path):
    executor = workers_of("print('all is well')")
    executor.start([task(tmp_path)])
    (ended,) = wait(executor)
    assert ended.error is None
    assert "all is well" in ended.task.log.read_text()


def test_a_worker_that_says_why(tmp_path):
    executor = workers_of("import sys; sys.exit('no such thing')")
    executor.start([task(tmp_path)])
    (ended,) = wait(executor)
    assert "exit code 1: no such thing" in ended.error
    assert os.fspath(ended.task.log) in ended.error


def test_a_worker_that_is_killed(tmp_path):
    executor = workers_of("import sys; sys.stdin.read()")
    executor.start([task(tmp_path)])
    (_, process) = executor._running["a"]
    os.kill(process.pid, signal.SIGKILL)
    (ended,) = wait(executor)
    assert "killed by signal 9 (SIGKILL)" in ended.error


def test_workers_end_with_their_parent(tmp_path):
    """The pipe to their standard input closes: here by hand, otherwise because the parent has ended."""
    line = "import os\nwhile os.read(0, 1024): pass\nos._exit(7)"
    executor = workers_of(line)
    executor.start([task(tmp_path)])
    (_, process) = executor._running["a"]
    process.stdin.close()
    (ended,) = wait(executor)
    assert "exit code 7" in ended.error


def test_threads_are_shared_out(tmp_path, monkeypatch):
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: list(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads_for(n) for n in (1, 2, 3, 8, 20)] == [8, 4, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert [threads_for(n) for n in (1, 2, 3)] == [3, 3, 2]
    executor = workers_of("import os; print(os.environ['OMP_NUM_THREADS'])")
    executor.start([task(tmp_path)])
    assert wait(executor)[0].task.log.read_text().strip() == "1"


def test_the_command_names_the_job(tmp_path):
    command = LocalWorkers(2, threads=1, allow_versions=True).command(task(tmp_path))
    assert command[1:4] == ["-P", "-m", "treespec.experiments.sweep.job"]
    assert os.fspath(tmp_path / "a") in command
    assert {"--with-parent", "--allow-versions"} <= set(command)


@pytest.mark.parametrize("allowed", ["", "0", "many"])
def test_a_senseless_number_of_threads_is_no_limit(monkeypatch, allowed):
    monkeypatch.setenv("OMP_NUM_THREADS", allowed)
    assert threads_for(10_000) == 1
