"""SIGKILL and SIGINT at random moments, again and again, until a run is finished."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from fault_injection.process import POLL_S, Process, last_line, start
from fault_injection.rows import differences, finished_lines
from fault_injection.setting import Case, Setting, stage_of

SERIES = 4
"""Runs at a time; each is hit again and again until it is finished, then another begins."""


def in_series(setting: Setting, name: str, count: int, seed: int) -> list[Case]:
    """Send a signal at so many random moments, shared between runs that go on side by side.

    A process can do nothing about SIGKILL. SIGINT is Ctrl-C: exit code 130, one line, no traceback.
    """
    shares = [len(range(i, count, SERIES)) for i in range(min(SERIES, count))]
    with ThreadPoolExecutor(SERIES) as pool:
        found = pool.map(
            lambda i: _signals(setting, name, shares[i], f"{name}-{seed}-{i}"), range(len(shares))
        )
        return [case for own in found for case in own]


def _signals(setting: Setting, name: str, count: int, series: str) -> list[Case]:
    cases: list[Case] = []
    random, runs, kept = Random(series), 0, set[bytes]()
    folder = setting.work / f"{series}-{runs}"
    while len(cases) < count:
        process = start(setting.arguments(folder), setting.work)
        _wait(process, folder, setting, random)
        if not process.alive:  # it was finished before its moment came
            cases[-1:] = _checked(cases[-1:], setting, folder, kept, process.wait().code)
            runs, kept = runs + 1, set()
            folder = setting.work / f"{series}-{runs}"
            continue
        process.signal(name)
        done = process.wait()
        stage, now = stage_of(folder), finished_lines(folder, setting.rows)
        wrong = [] if kept <= now else ["a finished prompt is lost"]
        over = stage == "after decoding"  # the last figures may be written before it is noticed
        if name == "SIGINT" and done.code != 130 and not (over and done.code == 0):
            wrong.append(f"exit code {done.code}: {last_line(done)}")
        # An interrupt that falls into a finalizer is Python's to report; it goes no further.
        ours = re.sub(r"Exception ignored in.*?KeyboardInterrupt: *\n", "", done.stderr, flags=re.S)
        if "Traceback" in ours:
            wrong.append(f"a traceback: {last_line(done)}")
        kept = now
        cases.append(Case(name, f"{stage}, exit code {done.code}", tuple(wrong)))
    code = start(setting.arguments(folder), setting.work).wait().code
    cases[-1:] = _checked(cases[-1:], setting, folder, kept, code)
    return cases


def _checked(
    last: list[Case], setting: Setting, folder: Path, kept: set[bytes], code: int
) -> list[Case]:
    """The last case, with what is wrong with the run that came to its end after it."""
    if not last:
        return []
    wrong = list(last[0].wrong)
    if code:
        wrong.append(f"the resumed run ends with exit code {code}")
    else:
        wrong += differences(folder, setting.reference)
        lines = finished_lines(folder, setting.rows)
        if not lines or not kept <= lines:
            wrong.append("a finished prompt was lost or run again")
    return [Case(last[0].fault, last[0].what, tuple(wrong))]


def _wait(process: Process, folder: Path, setting: Setting, random: Random) -> None:
    """Let a random time pass: since the command began, or since its first row, which comes late.

    Not since the process began: until it is the command nothing of ours can answer a Ctrl-C.
    """
    while not process.begun and process.alive:
        time.sleep(POLL_S)
    moment = random.random() * setting.seconds
    if random.random() < 0.5:
        log = folder / "prompts.jsonl"
        before = _size(log)
        while _size(log) == before and process.alive:
            time.sleep(POLL_S)
        moment = random.random() * setting.seconds / 2
    end = time.monotonic() + moment
    while time.monotonic() < end and process.alive:
        time.sleep(POLL_S)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
