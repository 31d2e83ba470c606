"""The findings of `treespec doctor`: facts, tests, and times."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter

from treespec.errors import in_words


class Status(StrEnum):
    """In order; missing, which may be fine; or present, but with a problem."""

    OK = "ok"
    MISSING = "missing"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Fact:
    """A fact about the machine, and what to do about it; no advice if nothing needs to be done."""

    name: str
    status: Status
    value: str
    advice: str = ""


@dataclass(frozen=True)
class Trial:
    """A test of the project itself on this machine."""

    name: str
    passed: bool
    value: str
    seconds: float


@dataclass(frozen=True)
class Speed:
    """Times of passes over a few rows, through matrices too large for the processor's caches.

    `read_gb_s` are gigabytes (1e9) of weights per second in a pass over one row, `gflop_s` 1e9 operations
    per second in the pass over the most rows; `pass_ms` is by number of rows.
    """

    device: str
    dtype: str
    weights_mib: float
    pass_ms: Mapping[int, float]
    read_gb_s: float
    gflop_s: float

    def cost(self, rows: int) -> float:
        """Time of a pass over this many rows, divided by that over one row."""
        return self.pass_ms[rows] / self.pass_ms[1]


@dataclass(frozen=True)
class Checkup:
    """All findings; `said` are sentences about what the speeds mean for trees."""

    facts: tuple[Fact, ...]
    tests: tuple[Trial, ...]
    speeds: tuple[Speed, ...]
    said: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether all tests passed."""
        return all(test.passed for test in self.tests)


def judged(name: str, value: str, advice: str) -> Fact:
    """A fact that is a problem if there is advice about it, and in order otherwise."""
    return Fact(name, Status.PROBLEM if advice else Status.OK, value, advice)


def ask(name: str, question: Callable[[], Fact | list[Fact]]) -> list[Fact]:
    """The facts that a question returns; an exception becomes a problem, so that others are still asked."""
    try:
        answer = question()
    except Exception as error:
        problem = in_words(error, f"the question '{name}'")
        return [Fact(name, Status.PROBLEM, problem, "unexpected: please report it")]
    return answer if isinstance(answer, list) else [answer]


def attempt(name: str, test: Callable[[], str]) -> Trial:
    """Run and time a test that returns its result in words, or raises if it fails."""
    start = perf_counter()
    try:
        value, passed = test(), True
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[0]
        expected = type(error) is AssertionError and said
        value, passed = said if expected else in_words(error, f"the test '{name}'"), False
    return Trial(name, passed, value, round(perf_counter() - start, 3))
