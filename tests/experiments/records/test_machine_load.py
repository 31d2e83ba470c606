"""The use of the CPU by other processes during a run: from counters, or unknown."""

import json
import subprocess
import sys
import time
from io import StringIO

import psutil
import pytest
from rich.console import Console

from treespec.experiments.records.machine_load import (
    Counters,
    LoadWatch,
    busy_sentence,
    read_counters,
)
from treespec.experiments.report.page import print_results
from treespec.experiments.report.run import load_run
from treespec.experiments.run import runner

BURN = "import time\nend = time.time() + {:g}\nwhile time.time() < end: pass"
LINUX = pytest.mark.skipif(not psutil.LINUX, reason="counters of single cores are Linux's")


def watched(*readings):
    """The mean between the first and the last of these readings of the counters."""
    source = iter(readings)
    return LoadWatch(lambda: next(source)).busy_percent()


def after(start, clock, *, busy, ours, idle=None, cores=None):
    """Counters some seconds later."""
    idle = clock * start.cores - busy if idle is None else idle
    return Counters(
        start.clock + clock, cores or start.cores, start.idle + idle, start.busy + busy,
        start.ours + ours,
    )  # fmt: skip


START = Counters(clock=1000.0, cores=4, idle=5000.0, busy=3000.0, ours=70.0)


@pytest.mark.parametrize(
    ("busy", "ours", "percent"),
    [
        (20, 20, 0.0),
        (20, 10, 25.0),
        (40, 0, 100.0),
        (24, 20, 10.0),
        (24.1, 20, 10.2),
        (20, 20.5, 0.0),
    ],
)
def test_the_load_of_others_is_what_is_busy_and_not_ours(busy, ours, percent):
    assert watched(START, after(START, 10, busy=busy, ours=ours)) == pytest.approx(
        percent, abs=0.06
    )


@pytest.mark.parametrize(
    "later",
    [
        None,  # no counters any more
        after(START, 0.9, busy=3, ours=0),  # too short
        after(START, 10, busy=0, ours=8, idle=0),  # counters that do not advance
        after(START, 10, busy=0, ours=20),  # contradict our own times
        after(START, 10, busy=320, ours=20, idle=320),  # of a larger machine
        after(START, 10, busy=30, ours=20, idle=30, cores=6),  # cores were added
    ],
)
def test_what_cannot_be_told_is_not_told(later):
    assert watched(START, later) is None
    assert watched(None, later) is None


def test_a_mean_is_worth_a_word_above_ten_percent():
    assert busy_sentence(None) is busy_sentence(0.0) is busy_sentence(10.0) is None
    assert "other processes used 11 % of the CPU during the run" in busy_sentence(10.6)


@LINUX
def test_counters_of_this_machine():
    """Reading is cheap, and our own work and that of our children counts as ours."""
    begin, first = time.perf_counter(), read_counters()
    took = time.perf_counter() - begin
    assert took < 0.5  # some milliseconds, on a machine that may be busy
    work = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", work], check=True)
    now = read_counters()
    assert now.cores == first.cores == len(psutil.Process().cpu_affinity())
    assert now.clock - first.clock >= 0.2
    assert now.ours - first.ours > 0.2
    assert now.idle >= first.idle - 0.1
    assert now.busy > first.busy


def beside(monkeypatch, *shares):
    """Counters by which other processes use these shares of the cores, one run after another."""
    taken = iter(shares)

    def source():
        first = [START]

        def read():
            if first:
                return first.pop()
            share = next(taken)
            return None if share is None else after(START, 10, busy=10 + 40 * share, ours=10)

        return LoadWatch(read)

    monkeypatch.setattr(runner, "LoadWatch", source)


PLAIN = {"methods": [{"kind": "plain"}], "samplings": [{"temperature": 0}]}


def printed(folder):
    """The output of a run, in one line."""
    shown = StringIO()
    print_results(load_run(folder), Console(file=shown, width=300))
    return " ".join(shown.getvalue().split())


@pytest.mark.parametrize(("share", "percent"), [(0.25, 25.0), (0.05, 5.0), (None, None)])
def test_a_run_records_it_and_says_it_once(start, monkeypatch, share, percent):
    beside(monkeypatch, share)
    shown = StringIO()
    folder = start(PLAIN, console=Console(file=shown, width=300)).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [session["busy_percent"] for session in manifest["sessions"]] == [percent]
    caution = "other processes used 25 % of the CPU during the run"
    wanted = 1 if percent == 25 else 0
    assert shown.getvalue().count("other processes used") == wanted
    assert shown.getvalue().count(caution) == wanted
    assert " ".join(load_run(folder).verdicts["T=0"]).count(caution) == wanted
    assert printed(folder).count(caution) == wanted


def test_an_interrupted_session_keeps_its_load(start, monkeypatch):
    """A load measured before an interruption is still recorded after the run is resumed."""
    beside(monkeypatch, 0.5, 0.0)
    decode_units = runner.decode_units

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "decode_units", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start(PLAIN)
    monkeypatch.setattr(runner, "decode_units", decode_units)
    folder = start(PLAIN).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [session["busy_percent"] for session in manifest["sessions"]] == [50.0, 0.0]
    assert "50 % of the CPU during one of the 2 sessions" in printed(folder)


def test_no_counters_no_word(monkeypatch):
    monkeypatch.setattr(psutil, "LINUX", False)
    assert read_counters() is None
    assert LoadWatch(read_counters).busy_percent() is None
