"""Progress on a screen, in a file, and nowhere."""

import io
import time

import pytest
from rich.console import Console

from treespec.experiments.run import progress
from treespec.experiments.run.progress import Reporter


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def file_console():
    return Console(file=io.StringIO(), width=100)


def said(console):
    return console.file.getvalue().splitlines()


def test_a_file_gets_a_line_now_and_then(clock):
    console = file_console()
    with Reporter(console).units(100, done=7) as begin:
        for i in range(100):
            begin(f"part {i}")
            clock[0] += 1.5
    lines = said(console)
    assert lines[0] == "7 units are finished already"
    assert lines[1] == "part 7: 7 of 100 in 0:10, 2:20 left"
    assert lines[-1] == "decoded: 100 of 100 in 2:30"
    assert len(lines) == 2 + 100 // 7


def test_what_was_not_begun_is_not_called_done(clock):
    console = file_console()
    with Reporter(console).units(9, doing="measuring", finished="measured") as begin:
        for _ in range(4):
            begin("one")
    assert said(console) == ["measured: 4 of 9 in 0:00"]


def test_what_stops_is_not_called_finished(clock):
    console = file_console()

    def interrupted():
        with Reporter(console).units(9) as begin:
            begin("one")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert said(console) == []


def test_the_time_left_is_that_of_all_the_work(clock):
    """Parts differ in length: a run begins with many short ones, texts that methods decode alone."""
    console = file_console()
    with Reporter(console).units(50, counted="texts", may_end_early=True) as begin:
        for work in [10, *[1] * 10, 10, 10, 10]:
            begin(f"{work} at once", work)
            clock[0] += 10.0 * work
    lines = said(console)
    assert lines[0] == "1 at once: 10 of 50 texts in 1:40, at most 6:40 left"
    assert lines[10] == "10 at once: 20 of 50 texts in 3:20, at most 5:00 left"
    assert lines[-1] == "decoded: 50 of 50 texts in 8:20"


def test_a_task_in_a_file_says_every_now_and_then_what_runs(monkeypatch):
    """Also while one call runs for long: compiling takes a minute."""
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.02)
    console = file_console()
    with Reporter(console).task("loading [b]") as say:
        time.sleep(0.05)
        say("compiling")
        time.sleep(0.05)
    lines = said(console)
    assert lines[:2] == ["loading [b] ...", "loading [b] ... 0:00"]
    assert lines[-1] == "compiling ... 0:00"
    assert progress.clock(3700) == "1:01:40"


def test_a_screen_gets_a_bar(clock):
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with Reporter(console).units(2) as begin:
        begin("one")
        clock[0] += 90.0
        begin("two")
        time.sleep(0.3)  # the bar is drawn ten times a second
    shown = console.file.getvalue()
    assert "1:30 left" in shown
    assert "2/2" in shown
    assert "decoded" in shown
    assert "of 2 in" not in shown


def test_nobody_listens():
    reporter = Reporter(None)
    reporter.note("x")
    with reporter.task("x") as say:
        say("y")
    with reporter.units(3) as begin:
        begin("x")
