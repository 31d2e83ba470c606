"""A text in time: when target and draft ran, and when which tokens appeared; live, or from a run."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxtyping import Float, Int
from torch import Tensor

from treespec.coins import TorchCoins
from treespec.decoding import decode
from treespec.distributions import Sampling
from treespec.draft import make_drafter
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.loading import RunRecords
from treespec.experiments.records.outcome import STAGES
from treespec.experiments.run.observers import synchronizer
from treespec.protocols import TreeModel
from treespec.target import make_target
from treespec.tree import TreeShape
from treespec.verify import usual_law, usual_rule, verifier_for

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["DRAFT_PASS", "Brought", "Lane", "Span", "recorded", "watch"]

DRAFT_PASS = "draft pass"
"""Stage of one pass of the draft model; such spans lie inside those of the stage `draft`."""


@dataclass(frozen=True)
class Span:
    """Something that ran.

    Args:
        stage: `draft`, `draft pass`, `verify`, `accept` or `commit`.
        start: seconds since decoding began (the prefill is over by then).
        seconds: how long it took.
    """

    stage: str
    start: float
    seconds: float

    @property
    def end(self) -> float:
        """Seconds since decoding began."""
        return self.start + self.seconds


@dataclass(frozen=True)
class Brought:
    """The tokens of a step.

    Args:
        start: when the step began, in seconds since decoding began.
        end: when it ended: its tokens are there.
        texts: the tokens kept, as text.
        guessed: how many of them, the first ones, were drafted; the rest is the target's own.
    """

    start: float
    end: float
    texts: tuple[str, ...]
    guessed: int


@dataclass(frozen=True)
class Lane:
    """What one method did.

    Args:
        name: of the method.
        spans: what ran, in order of the start.
        steps: what each step brought.
    """

    name: str
    spans: tuple[Span, ...]
    steps: tuple[Brought, ...]

    @property
    def seconds(self) -> float:
        """From the beginning to the last token."""
        return self.steps[-1].end

    @property
    def tokens(self) -> int:
        """Tokens written."""
        return sum(len(step.texts) for step in self.steps)

    @property
    def text(self) -> str:
        """All tokens."""
        return "".join(text for step in self.steps for text in step.texts)

    def total(self, stage: str) -> float:
        """Seconds of all spans of a stage."""
        return sum(span.seconds for span in self.spans if span.stage == stage)


def watch(
    pair: "Pair",
    prompt: Int[Tensor, "T"],
    methods: Mapping[str, TreeShape],
    *,
    tokens: int = 16,
    sampling: Sampling | None = None,
    repeats: int = 5,
    seed: int = 0,
) -> list[Lane]:
    """Decode with each method, note what runs when, and keep of each method the repeat of median length.

    The methods take turns, since machines drift; one round more comes first and does not count.

    Args:
        pair: the models.
        prompt: token ids, on the models' device.
        methods: the tree of each method, by name; the root alone decodes plainly.
        tokens: to write.
        sampling: temperature 0 by default, at which all methods write the same text. Above it children
            are drawn without replacement.
        repeats: rounds that count.
        seed: of the coins, the same in every round.
    """
    sampling = sampling or Sampling(temperature=0.0)
    lanes_of: dict[str, list[Lane]] = {name: [] for name in methods}
    for round_ in range(repeats + 1):
        for name, shape in methods.items():
            lane = _decoded(pair, prompt, name, shape, tokens, sampling, seed)
            if round_:
                lanes_of[name].append(lane)
    return [_median(lanes) for lanes in lanes_of.values()]


def recorded(
    run: RunRecords,
    method: str,
    sampling: str,
    prompt: int,
    text_of: Callable[[Sequence[int]], str],
    *,
    repeat: int = 0,
) -> Lane:
    """The lane of one prompt of a run, from the stage times of its steps.

    The stages are laid end to end: what the loop takes between them is not recorded by step, so the lane
    is a little shorter than the prompt's `decode_s`. Passes of the draft are not recorded either.

    Args:
        run: what was measured.
        method: its name; one of our own loop.
        sampling: name of the setting.
        prompt: index.
        text_of: token ids to text, as `tokenizer.decode`.
        repeat: which one, if prompts were repeated.

    Raises:
        RunFolderError: if the run has no steps of this method on this prompt.
    """
    import polars as pl

    key = {"method": method, "sampling": sampling, "prompt": prompt, "repeat": repeat}
    wanted = [pl.col(name) == value for name, value in key.items()]
    rows = run.steps.filter(*wanted).sort("step").to_dicts()
    if not rows:
        raise RunFolderError(
            f"{run.folder} has no steps of method {method!r} on prompt {prompt} under {sampling!r}: "
            "steps are recorded for plain decoding and trees of our own loop"
        )
    ids = run.prompts.filter(*wanted)["tokens"].to_list()[0]
    spans: list[Span] = []
    steps: list[Brought] = []
    clock, done = 0.0, 0
    for row in rows:
        start = clock
        for stage in STAGES:
            spans.append(Span(stage, clock, row[f"{stage}_s"]))
            clock += row[f"{stage}_s"]
        kept = ids[done : done + row["kept"]]
        done += row["kept"]
        texts = tuple(text_of([token]) for token in kept)
        steps.append(Brought(start, clock, texts, min(row["accepted"], len(texts))))
    return Lane(method, tuple(spans), tuple(steps))


class _Clock:
    """An observer that notes when each stage began and ended."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize
        self.spans: list[Span] = []

    def now(self) -> float:
        """Seconds, once queued work of the device is finished."""
        self._synchronize()
        return time.perf_counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A context that lasts as long as the stage."""
        start = self.now()
        try:
            yield
        finally:
            self.spans.append(Span(name, start, self.now() - start))


class _Watched:
    """A model whose passes are stages of their own."""

    def __init__(self, model: TreeModel, clock: _Clock) -> None:
        self._model, self._clock = model, clock
        self.vocab_size, self.max_length = model.vocab_size, model.max_length
        self.draws_by_kernel = getattr(model, "draws_by_kernel", False)

    @property
    def length(self) -> int:
        """Number of committed rows."""
        return self._model.length

    def fresh(self) -> "_Watched":
        """The same weights with an empty cache."""
        return _Watched(self._model.fresh(), self._clock)

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Commit these tokens."""
        self._model.prefill(tokens)

    def run(
        self, tokens: Int[Tensor, "T"], parents: tuple[int, ...], first: int = 0
    ) -> Float[Tensor, "T V"]:
        """Logits, and a note of how long they took."""
        with self._clock.stage(DRAFT_PASS):
            return self._model.run(tokens, parents, first)

    def keep(self, nodes: Sequence[int]) -> None:
        """Commit these rows."""
        self._model.keep(nodes)


def _decoded(
    pair: "Pair",
    prompt: Int[Tensor, "T"],
    name: str,
    shape: TreeShape,
    tokens: int,
    sampling: Sampling,
    seed: int,
) -> Lane:
    """One text."""
    law, clock = usual_law(sampling), _Clock(synchronizer(prompt.device))
    rule = verifier_for(usual_rule(law, sampling), pair.target)
    drafter = make_drafter(_Watched(pair.draft, clock), shape, law, sampling)
    taken: list[tuple[float, tuple[int, ...], int]] = []
    for step in decode(
        make_target(pair.target), drafter, rule, prompt, sampling=sampling,
        coins=TorchCoins(seed), max_new_tokens=tokens, observer=clock,
    ):  # fmt: skip
        taken.append((clock.now(), step.tokens, step.verdict.accepted))
    begin = next(span.end for span in clock.spans if span.stage == "prefill")
    steps: list[Brought] = []
    for end, ids, accepted in taken:  # only now: this takes time too
        texts = tuple(str(pair.tokenizer.decode([token])) for token in ids)
        start = steps[-1].end if steps else 0.0
        steps.append(Brought(start, end - begin, texts, min(accepted, len(texts))))
    spans = (
        Span(span.stage, span.start - begin, span.seconds)
        for span in clock.spans
        if span.start >= begin
    )
    return Lane(name, tuple(sorted(spans, key=lambda span: span.start)), tuple(steps))


def _median(lanes: Sequence[Lane]) -> Lane:
    """The lane whose length is the median; of an even number, the shorter one in the middle."""
    middle = statistics.median_low([lane.seconds for lane in lanes])
    return next(lane for lane in lanes if lane.seconds == middle)
