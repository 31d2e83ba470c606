"""The timeline of a text: when target and draft ran, and when tokens appeared."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from jaxtyping import Int
from torch import Tensor

from treespec.decoding import decode
from treespec.draft import make_drafter
from treespec.experiments.measure.timing import Spans, in_turns, timed_passes
from treespec.experiments.run.observers import synchronizer
from treespec.models.load import Pair
from treespec.sampling.coins import TorchCoins
from treespec.sampling.distributions import Sampling
from treespec.target import make_target
from treespec.tree import TreeShape
from treespec.verify import usual_law, usual_rule, verifier_for

DRAFT_PASS = "draft pass"
"""Stage of one pass of the draft model; its spans lie within those of the stage `draft`."""


@dataclass(frozen=True)
class Span:
    """The time span of one stage.

    Seconds since decoding began, after the prefill.
    """

    stage: str
    start: float
    seconds: float

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass(frozen=True)
class Brought:
    """The tokens of a step.

    Args:
        start: start of the step, in seconds since decoding began.
        end: end of the step, when its tokens are available.
        texts: the kept tokens as text.
        guessed: number of leading tokens that were drafted; the rest are the target's own.
    """

    start: float
    end: float
    texts: tuple[str, ...]
    guessed: int


@dataclass(frozen=True)
class Lane:
    name: str
    spans: tuple[Span, ...]
    steps: tuple[Brought, ...]

    @property
    def seconds(self) -> float:
        """Seconds from the beginning of decoding to the last token."""
        return self.steps[-1].end

    @property
    def tokens(self) -> int:
        return sum(len(step.texts) for step in self.steps)

    @property
    def text(self) -> str:
        """All tokens as one text."""
        return "".join(text for step in self.steps for text in step.texts)

    def total(self, stage: str) -> float:
        """Total seconds of a stage."""
        return sum(span.seconds for span in self.spans if span.stage == stage)


def watch(
    pair: Pair,
    prompt: Int[Tensor, "T"],
    methods: Mapping[str, TreeShape],
    *,
    tokens: int = 16,
    sampling: Sampling | None = None,
    repeats: int = 5,
    seed: int = 0,
) -> list[Lane]:
    """Decode with each method, record its timeline, and return the repeat of median duration.

    The methods take turns, because machines drift. A first round warms up and does not count.

    A root without children decodes plainly. At temperature 0, the default, all methods produce the same
    text; above it, children are drawn without replacement.
    """
    sampling = sampling or Sampling(temperature=0.0)
    ways = {
        name: partial(_decoded, pair, prompt, name, shape, tokens, sampling, seed)
        for name, shape in methods.items()
    }
    return [_median(lanes) for lanes in in_turns(ways, repeats).values()]


class _Clock:
    """An observer that records when each stage began and ended."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize
        self.spans: list[Span] = []

    def now(self) -> float:
        self._synchronize()
        return time.perf_counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = self.now()
        try:
            yield
        finally:
            self.spans.append(Span(name, start, self.now() - start))


def _decoded(
    pair: Pair,
    prompt: Int[Tensor, "T"],
    name: str,
    shape: TreeShape,
    tokens: int,
    sampling: Sampling,
    seed: int,
) -> Lane:
    """Decode one text and record its timeline."""
    law, clock = usual_law(sampling), _Clock(synchronizer(prompt.device))
    drafted = Spans()
    draft = timed_passes(pair.draft, drafted, clock.now)
    decoding = decode(
        make_target(pair.target), make_drafter(draft, shape, law, sampling),
        verifier_for(usual_rule(law, sampling), pair.target), prompt, sampling=sampling,
        coins=TorchCoins(seed), max_new_tokens=tokens, observer=clock,
    )  # fmt: skip
    outcomes = [(clock.now(), step.tokens, step.verdict.accepted) for step in decoding]
    begin = next(span.end for span in clock.spans if span.stage == "prefill")
    steps: list[Brought] = []
    for end, ids, accepted in outcomes:  # after decoding, because detokenizing takes time too
        texts = tuple(str(pair.tokenizer.decode([token])) for token in ids)
        start = steps[-1].end if steps else 0.0
        steps.append(Brought(start, end - begin, texts, min(accepted, len(texts))))
    passes = (Span(DRAFT_PASS, start, end - start) for start, end in drafted)
    spans = (
        Span(span.stage, span.start - begin, span.seconds)
        for span in (*clock.spans, *passes)
        if span.start >= begin
    )
    return Lane(name, tuple(sorted(spans, key=lambda span: span.start)), tuple(steps))


def _median(lanes: Sequence[Lane]) -> Lane:
    """The lane of median duration; of an even number of lanes, the shorter of the middle two."""
    return sorted(lanes, key=lambda lane: lane.seconds)[(len(lanes) - 1) // 2]
