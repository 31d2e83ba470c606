"""What a manifest records about the code and the machine."""

import subprocess

from treespec.experiments.records.changes import changes_of_machine
from treespec.experiments.records.manifest import git_hash


def test_dirty_means_that_tracked_files_differ(tmp_path):
    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(
            ["git", "-C", tmp_path, *who, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert git_hash(tmp_path) is None
    git("init", "-q")
    assert git_hash(tmp_path) is None  # no commit yet
    (tmp_path / "code.py").write_text("a = 1\n")
    git("add", "code.py")
    git("commit", "-qm", "first")
    head = git("rev-parse", "HEAD")
    assert git_hash(tmp_path) == head
    (tmp_path / "notes.txt").write_text("a result\n")
    assert git_hash(tmp_path) == head
    results = tmp_path / "experiments" / "research" / "results" / "x.json"
    results.parent.mkdir(parents=True)
    results.write_text("1")
    git("add", "experiments")
    git("commit", "-qm", "results")
    head = git("rev-parse", "HEAD")
    results.write_text("2")
    assert git_hash(tmp_path) == head
    (tmp_path / "code.py").write_text("a = 2\n")
    assert git_hash(tmp_path) == f"{head}-dirty"


def test_what_changed_of_the_machine():
    start = {"versions": {"torch": "2.13.0"}, "hardware": {"threads": 2}}
    assert (
        changes_of_machine(start, {"git_hash": "a"}) == []
    )  # from a run whose sessions did not record it
    assert changes_of_machine(start, start) == []
    other = start | {"hardware": {"threads": 1}}
    assert changes_of_machine(start, other) == ["hardware.threads: 2 -> 1"]
