"""Timers: of calls, of alternatives that take turns, of a model's passes, of a decoded text."""

import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from random import Random
from typing import Any, NamedTuple, TypeVar, cast

import torch
from rich.progress import track
from torch import nn

from treespec import Sampling, TorchCoins, TreeShape, decode, verify
from treespec.draft import make_drafter
from treespec.experiments.run.observers import StageTimer, synchronizer
from treespec.models.load import Pair
from treespec.models.runner import TreeRunner
from treespec.models.transformers_model import TransformersModel
from treespec.protocols import Target
from treespec.step import Scores, Step
from treespec.target import ModelTarget, make_target
from treespec.verify.rule import Rule

Spans = list[tuple[float, float]]
"""Beginning and end of each of several pieces of work, in seconds."""

Name = TypeVar("Name", bound=Hashable)
Sample = TypeVar("Sample")


def seconds_of(work: Callable[[], object], wait: Callable[[], None] = lambda: None) -> float:
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Process time and wall time of a call in seconds, and its result."""
    start = time.process_time(), time.perf_counter()
    result = work()
    return time.process_time() - start[0], time.perf_counter() - start[1], result


def in_turns(
    ways: Mapping[Name, Callable[[], Sample]],
    rounds: int,
    *,
    warm_up: int = 1,
    title: str = "",
    seed: int = 0,
) -> dict[Name, list[Sample]]:
    """Measure alternatives in turns, with one sample of each per round.

    The order changes at random from round to round, since machines drift.

    Args:
        ways: functions that return one sample, such as their own time in seconds.
        rounds: number of rounds that count.
        warm_up: number of rounds before them that do not count.
        title: title of a progress bar; no bar by default.
        seed: seed of the orders.
    """
    shuffle, order = Random(seed), list(ways)
    samples: dict[Name, list[Sample]] = {name: [] for name in ways}
    for _ in track(range(warm_up + rounds), description=title, transient=True, disable=not title):
        shuffle.shuffle(order)
        for name in order:
            samples[name].append(ways[name]())
    return {name: counted[warm_up:] for name, counted in samples.items()}


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """One way's time over another's: the median of the ratios of each round."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


@contextmanager
def timed_forward(module: nn.Module, spans: Spans) -> Iterator[None]:
    """While the context is open, record when each forward call of a module began and ended."""
    starts: list[float] = []

    def before(*given: object) -> None:
        starts.append(time.perf_counter())

    def after(*given: object) -> None:
        spans.append((starts.pop(), time.perf_counter()))

    with module.register_forward_pre_hook(before), module.register_forward_hook(after):
        yield


class _TimedRunner:
    """A runner that records when each of its passes began and ended; see `timed_passes`."""

    def __init__(self, runner: TreeRunner, spans: Spans, now: Callable[[], float]) -> None:
        self._runner, self._spans, self._now = runner, spans, now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, tokens: torch.Tensor, parents: tuple[int, ...], first: int = 0) -> Scores:
        start = self._now()
        scores = self._runner.run(tokens, parents, first)
        self._spans.append((start, self._now()))
        return scores

    def do(self, kind: Any, work: Any, parents: tuple[int, ...]) -> Any:
        """Several passes as one: one span."""
        runner, start = cast("Any", self._runner), self._now()
        done = runner.do(kind, work, parents)
        self._spans.append((start, self._now()))
        return done


def timed_passes(
    model: TransformersModel, spans: Spans, now: Callable[[], float] = time.perf_counter
) -> TransformersModel:
    """The model, recording when each of its passes over a tree began and ended."""
    make: Any = model.make_runner
    return model.fresh(
        runner=lambda *given: _TimedRunner(make(*given), spans, now)  # pyrefly: ignore[bad-argument-type]
    )


class TimedText(NamedTuple):
    """A decoded text. Its time excludes the prefill and the first step, which grows the cache.

    Args:
        first: tokens of the first step.
        later: tokens of each later step.
        start: beginning of the later steps, in seconds of `time.perf_counter`.
        seconds: seconds of the later steps.
    """

    first: tuple[int, ...]
    later: list[tuple[int, ...]]
    start: float
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(map(len, self.later))

    @property
    def text(self) -> list[int]:
        return [token for step in (self.first, *self.later) for token in step]


def usual_steps(
    pair: Pair,
    shape: TreeShape,
    sampling: Sampling,
    prompt: torch.Tensor,
    new_tokens: int,
    *,
    seed: int = 0,
    target: Callable[[Any], Target] = make_target,
    observer: StageTimer | None = None,
    rule: Rule | None = None,
) -> Iterator[Step]:
    """Decode a text with the usual law and rule; a shape of the root alone is plain decoding.

    `rule`: another rule than the usual one.
    """
    law = verify.usual_law(sampling)
    return decode(
        target(pair.target),
        make_drafter(pair.draft, shape, law, sampling),
        verify.verifier_for(rule or verify.usual_rule(law, sampling), pair.target),
        prompt,
        sampling=sampling,
        coins=TorchCoins(seed),
        max_new_tokens=new_tokens,
        observer=observer,
    )


def timed_text(
    pair: Pair,
    shape: TreeShape,
    sampling: Sampling,
    prompt: torch.Tensor,
    new_tokens: int,
    *,
    seed: int = 0,
    target: Callable[[Any], Target] = ModelTarget,
    stages: StageTimer | None = None,
    passes: Sequence[AbstractContextManager[None]] = (),
    rule: Rule | None = None,
) -> TimedText:
    """Decode a text (`usual_steps`) and time it.

    `stages` times the stages of all steps; `passes` are timers that are entered after the first step.
    """
    wait = synchronizer(prompt.device)
    decoding = usual_steps(
        pair, shape, sampling, prompt, new_tokens,
        seed=seed, target=target, observer=stages, rule=rule,
    )  # fmt: skip
    first = next(decoding).tokens
    later: list[tuple[int, ...]] = []
    with ExitStack() as timers:
        for timer in passes:
            timers.enter_context(timer)
        start = time.perf_counter()
        seconds = seconds_of(lambda: later.extend(step.tokens for step in decoding), wait)
    return TimedText(first, later, start, seconds)
