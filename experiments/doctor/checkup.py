"""Run all checks and tests, and print the findings."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from time import perf_counter

from rich.console import Console

from treespec.experiments.doctor import self_test
from treespec.experiments.doctor.facts import QUESTIONS, Fact, Status, ask
from treespec.experiments.doctor.self_test import Trial, attempt
from treespec.experiments.doctor.speed import Speed, meaning, measure_speed
from treespec.experiments.records.machine_load import BUSY_PERCENT, LoadWatch
from treespec.experiments.report.table import Cell, Column, Table
from treespec.experiments.report.terminal import print_table, say

DTYPES = ("float32", "bfloat16")

LAST_START_S = 40.0
"""With a GPU, no test begins later than this: each takes seconds, and all together at most a minute."""

WIDTH = 110
TONES = {Status.OK: "", Status.MISSING: "faint", Status.PROBLEM: "doubtful"}

FACTS = (
    Column[Fact]("status", lambda fact: fact.status, left=True),
    Column[Fact]("what", lambda fact: fact.name, left=True),
    Column[Fact](
        "found",
        lambda fact: Cell(fact.value, below=f"-> {fact.advice}" if fact.advice else ""),
        left=True,
    ),
)

TESTS = (
    Column[Trial]("status", lambda test: "passed" if test.passed else "FAILED", left=True),
    Column[Trial]("what", lambda test: test.name, left=True),
    Column[Trial]("result", lambda test: Cell(test.value, f"({test.seconds:.1f} s)"), left=True),
)


@dataclass(frozen=True)
class Checkup:
    """All findings, sentences about what the speeds mean for trees, and the seconds that this took."""

    facts: tuple[Fact, ...]
    tests: tuple[Trial, ...]
    speeds: tuple[Speed, ...]
    said: tuple[str, ...]
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return all(test.passed for test in self.tests)


def examine(quick: bool = False, tell: Callable[[str], None] = lambda text: None) -> Checkup:
    """Collect facts, run the self-test, and time passes over a few rows.

    With `quick`, collect facts and load the pair only. `tell` gets the name of each check before it begins.
    """
    start = perf_counter()
    facts: list[Fact] = []
    for name in QUESTIONS:
        tell(name)
        facts += ask(name)
    tell("loading the embedded pair")
    loaded, pair = self_test.pair_test()
    if quick:
        return Checkup(tuple(facts), (loaded,), (), (), perf_counter() - start)
    # The GPU's tests come first: on a slow machine others are left out.
    devices = [*(["cuda"] if any(fact.name == "GPU 0" for fact in facts) else []), "cpu"]
    tests: dict[str, Callable[[], str]] = {}
    if pair is not None:
        tests["trees decode as generate does"] = partial(self_test.generation_agrees, pair)
        tests["what can be told apart"] = partial(self_test.tell_apart, pair)
    for device in devices:
        tests[f"implementations of attention agree on {device}"] = partial(
            self_test.attention_agrees, device
        )
    speeds: list[Speed] = []

    def time_passes(device: str, dtype: str) -> str:
        speeds.append(measure_speed(device, dtype))
        return str(speeds[-1])

    for device, dtype in product(devices, DTYPES):
        tests[f"passes on {device} in {dtype}"] = partial(time_passes, device, dtype)
    trials, watch = [loaded], LoadWatch()
    left_out: list[str] = []
    for name, test in tests.items():
        if "cuda" in devices and perf_counter() - start > LAST_START_S:
            left_out.append(name)
            continue
        tell(name)
        trials.append(attempt(name, test))
    busy = (watch.busy_percent() or 0) > BUSY_PERCENT
    said = meaning(speeds, busy)
    if left_out:
        said += (f"Left out, since {LAST_START_S:g} s were over: {'; '.join(left_out)}.",)
    seconds = perf_counter() - start
    return Checkup(tuple(facts), tuple(trials), tuple(speeds), said, seconds)


def print_checkup(checkup: Checkup, console: Console) -> None:
    """Print facts with advice, the tests, what the times mean for trees, and a verdict."""
    width = min(WIDTH, console.width)
    facts = Table("this machine", FACTS, checkup.facts, tone=lambda fact: TONES[fact.status])
    tests = Table("self-test", TESTS, checkup.tests, tone=lambda test: "" if test.passed else "bad")
    print_table(facts, console, width)
    print_table(tests, console, width)
    took = f"This took {checkup.seconds:.0f} s."
    for sentence in (*checkup.said, f"{_verdict(checkup)} {took}"):
        console.print()
        say(console, sentence, width=width)


def _verdict(checkup: Checkup) -> str:
    problems = [fact.name for fact in checkup.facts if fact.status is Status.PROBLEM]
    failed = [test.name for test in checkup.tests if not test.passed]
    if failed:
        return f"Something is wrong: {len(failed)} test(s) failed ({'; '.join(failed)})."
    if problems:
        return f"treespec works: all tests passed. Problems to look at: {', '.join(problems)}."
    return "Everything is fine: all tests passed."
