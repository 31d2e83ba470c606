"""Time the rounds of a batch of texts: whatever is done for a text counts for the stage that it is in."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from treespec.experiments.run.observers import clock_of


class RoundTimer:
    """Divides the time of a batch among the stages of its texts, each moment once.

    It is the watch of `decode_rounds`, and `of_text` gives each text its observer. A text that waits for a
    pass is in a stage, but no time goes by for it until the pass runs: a pass counts for the stage of the
    texts that wait for it. A stage inside another one takes its time from the outer one.

    Args:
        device: the device that does the work.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._clock = clock_of(device)
        self._stages: defaultdict[int, list[str]] = defaultdict(list)
        self._texts: tuple[int, ...] = ()
        self._marks: list[tuple[str, tuple[int, ...], Any]] = []

    def begin(self) -> None:
        """Begin a round; waits for the device."""
        self._clock.settle()
        self._marks = [("", (), self._clock.mark())]

    def end(self) -> dict[tuple[str, tuple[int, ...]], float]:
        """Seconds of the round by stage and by the texts that it was for; waits for the device."""
        self._mark(())
        self._clock.settle()
        seconds: dict[tuple[str, tuple[int, ...]], float] = {}
        for (stage, texts, start), (*_, end) in zip(self._marks, self._marks[1:], strict=False):
            took = self._clock.between(start, end)
            seconds[stage, texts] = seconds.get((stage, texts), 0.0) + took
        return seconds

    def of_text(self, text: int) -> "_OfText":
        """The observer of a text."""
        return _OfText(self, text)

    @contextmanager
    def text(self, text: int) -> Iterator[None]:
        with self._working((text,)):
            yield

    @contextmanager
    def joined(self, texts: Sequence[int], drafts: bool, nodes: int) -> Iterator[None]:
        with self._working(tuple(texts)):
            yield

    def enter(self, text: int, stage: str) -> None:
        self._stages[text].append(stage)
        self._mark(self._texts)

    def leave(self, text: int) -> None:
        self._stages[text].pop()
        self._mark(self._texts)

    @contextmanager
    def _working(self, texts: tuple[int, ...]) -> Iterator[None]:
        self._mark(texts)
        try:
            yield
        finally:
            self._mark(())

    def _mark(self, texts: tuple[int, ...]) -> None:
        self._texts = texts
        stages = self._stages[texts[0]] if texts else []
        stage = stages[-1] if stages else ""
        self._marks.append((stage, texts, self._clock.mark()))


class _OfText:
    """The observer of one text of a batch."""

    def __init__(self, timer: RoundTimer, text: int) -> None:
        self._timer, self._text = timer, text

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._timer.enter(self._text, name)
        try:
            yield
        finally:
            self._timer.leave(self._text)
