"""The steps of a run with their times, and the classes of equal work that they belong to."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "FEWEST_STEPS_OF_A_CLASS",
    "Bools",
    "Floats",
    "Ints",
    "Steps",
    "classes",
    "totals",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FEWEST_STEPS_OF_A_CLASS = 8
"""Classes with fewer steps set none aside, and are not used to read the slowdown of the machine."""


@dataclass(frozen=True, eq=False)
class Steps:
    """All steps of all methods in one run under one sampling setting: S steps of M methods.

    Args:
        method: `[S]`, number of the method.
        prompt: `[S]`, number of the prompt among the P compared prompts.
        work: `[S]`, class of the step: steps of the same class do equal work. Classes are numbered over all
            methods, and each belongs to one method.
        at: `[S]`, middle of the step, in seconds on one clock for the whole run.
        seconds: `[S]`, duration of the step.
        steady: `[M]`, whether equal steps of the method cost the same each time: fixed shapes and plain
            decoding. Only steady methods tell how slow the machine was.
        prompts: P; needed only if the last prompts have no steps.

    Raises:
        ValueError: if arrays differ in length, a time is not finite, a duration is negative, or steps of
            two methods are in one class.
    """

    method: Ints
    prompt: Ints
    work: Ints
    at: Floats
    seconds: Floats
    steady: Bools
    prompts: int = 0

    def __post_init__(self) -> None:
        columns = self.method, self.prompt, self.work, self.at, self.seconds
        if len({np.shape(column) for column in columns}) > 1 or self.method.ndim != 1:
            raise ValueError("the columns of steps differ in length")
        if not (np.isfinite(self.at).all() and np.isfinite(self.seconds).all()):
            raise ValueError("a step has a time or a duration that is not finite")
        if (self.seconds < 0).any():
            raise ValueError("a step has a negative duration")
        owner = np.zeros(self.work.max(initial=0) + 1, np.int64)
        owner[self.work] = self.method
        if (owner[self.work] != self.method).any():
            raise ValueError("steps of two methods are in one class of equal work")

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of methods and prompts, `(M, P)`."""
        prompts = int(self.prompt.max()) + 1 if len(self.prompt) else 0
        return len(self.steady), max(self.prompts, prompts)


def totals(steps: Steps, values: Floats) -> Floats:
    """Sum a value of each step by method and prompt; `[M, P]`."""
    sums = np.zeros(steps.shape)
    np.add.at(sums, (steps.method, steps.prompt), values)
    return sums


def classes(work: Ints) -> list[Ints]:
    """Indices of the steps of each class; empty without steps."""
    if not len(work):
        return []
    order = np.argsort(work, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(work[order])) + 1)
