"""What `treespec doctor` finds: facts, tests, and times."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter

from treespec.errors import in_words

__all__ = ["Checkup", "Fact", "Speed", "Status", "Trial", "ask", "attempt", "judged"]


class Status(StrEnum):
    """As it should be; missing, which may be fine; or present, but not as it should be."""

    OK = "ok"
    MISSING = "missing"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Fact:
    """Something about the machine.

    Args:
        name: what it is about.
        status: how it is.
        value: what was found.
        advice: what to do; empty if nothing is to be done.
    """

    name: str
    status: Status
    value: str
    advice: str = ""


@dataclass(frozen=True)
class Trial:
    """A test of the project itself on this machine.

    Args:
        name: what was tested.
        passed: whether it went well.
        value: what came out.
        seconds: that it took.
    """

    name: str
    passed: bool
    value: str
    seconds: float


@dataclass(frozen=True)
class Speed:
    """What passes over a few rows cost, in matrices that no cache of the processor holds.

    Args:
        device: `cpu` or the GPU's name.
        dtype: of weights and rows.
        weights_mib: of all matrices together.
        pass_ms: milliseconds of a pass by the number of rows.
        read_gb_s: gigabytes (1e9) of weights read in a second by a pass over one row.
        gflop_s: 1e9 operations in a second by the pass over most rows.
    """

    device: str
    dtype: str
    weights_mib: float
    pass_ms: Mapping[int, float]
    read_gb_s: float
    gflop_s: float

    def cost(self, rows: int) -> float:
        """Time of a pass over this many rows, divided by that of one row."""
        return self.pass_ms[rows] / self.pass_ms[1]


@dataclass(frozen=True)
class Checkup:
    """Everything that was found.

    Args:
        facts: about the machine.
        tests: of the project on it.
        speeds: of matrix products; none after a quick look.
        said: what the speeds mean for trees, a sentence each.
    """

    facts: tuple[Fact, ...]
    tests: tuple[Trial, ...]
    speeds: tuple[Speed, ...]
    said: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether all tests passed."""
        return all(test.passed for test in self.tests)


def judged(name: str, value: str, advice: str) -> Fact:
    """A fact that is a problem if there is advice on it, and otherwise as it should be."""
    return Fact(name, Status.PROBLEM if advice else Status.OK, value, advice)


def ask(name: str, question: Callable[[], Fact | list[Fact]]) -> list[Fact]:
    """The facts that a question finds; what it raises is a problem, not the end of the questions.

    Args:
        name: of the fact, if the question fails.
        question: finds one fact or several.
    """
    try:
        answer = question()
    except Exception as error:
        problem = in_words(error, f"the question '{name}'")
        return [Fact(name, Status.PROBLEM, problem, "unexpected: please report it")]
    return answer if isinstance(answer, list) else [answer]


def attempt(name: str, test: Callable[[], str]) -> Trial:
    """Run a test that returns what came out, or raises.

    Args:
        name: of the test.
        test: what to run.
    """
    start = perf_counter()
    try:
        value, passed = test(), True
    except Exception as error:
        value, passed = _of_test(error, name), False
    return Trial(name, passed, value, round(perf_counter() - start, 3))


def _of_test(error: Exception, name: str) -> str:
    """What a test found wrong, in one line; or what stopped it."""
    first = (str(error).strip().splitlines() or [""])[0]
    return (
        first if type(error) is AssertionError and first else in_words(error, f"the test '{name}'")
    )
