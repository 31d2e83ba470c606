"""The speed of shapes on a trace: tokens from replay of its texts, seconds from measured times."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from zlib import crc32

import numpy as np
from jaxtyping import Bool, Float, Int

from treespec.search.choice.law_speed import Times, require_time
from treespec.search.choice.rows import Speed
from treespec.search.errors import InvalidTrace
from treespec.search.latency.errors import NotMeasured
from treespec.search.latency.interpolation import Term
from treespec.search.latency.step_parts import StepParts, seconds_of
from treespec.search.rates.acceptance import Rates
from treespec.search.rates.counts import FEWEST_TRIALS
from treespec.search.rates.replay import require_given_trees
from treespec.search.rates.rule_notes import in_order, note_on
from treespec.search.rates.support import FEWEST_HITS
from treespec.search.rates.totals import TextTotals
from treespec.search.rates.trace import Trace
from treespec.shape import TreeShape

__all__ = ["TraceSpeed", "rates_from"]

FEWEST_TEXTS = 3
"""Texts in which a level must be reached, and a child accepted, before a tree may use it; half of the texts
if there are fewer than twice as many."""

MOST_POSITIONS = 2**16
"""Limit on the positions that shapes are chosen on. The chosen shapes are valued on all positions."""
WHOLE_TEXTS = 24
"""Texts that are enough to choose on. If fewer fit whole, a stretch of each of this many texts is taken."""
NEARLY_KNOWN_LEVELS = 16
"""Levels that trees may have although they are not known at the ends of texts, if they are known at the
share `LEAST_SHARE_KNOWN` of the positions."""
LEAST_SHARE_KNOWN = 0.85
MOST_DRAWS = 8
"""Draws of random ranks that choices are made on, the recorded one included."""
MOST_GROUPS = 2048
"""Most units that are resampled; more texts are grouped, which gives the same intervals."""


class TraceSpeed:
    """Trace and times of one law, and the speed of any shape.

    A shape is valued by its replay along the recorded ranks, which at temperatures above 0 are one random
    draw. Choices are made on several draws of the ranks from the recorded probabilities of acceptance. That
    reduces noise, but assumes that the continuation of a text does not depend on which child was accepted;
    no reported value relies on this assumption.

    The end of a text is not like its beginning, and the depth of a tree limits the positions at which its
    steps are known. So all shapes are valued on the positions at which the deepest one is known.

    Args:
        law: name of the law.
        trace: a trace of decoding with at least two texts.
        times: times for a prefix and batch, which are the same for all laws.

    Attributes:
        texts: number of texts that count: of files, where several texts are (similar) excerpts of one.
        file_of: for each text of the trace, the index of its file.
        sample: the part of the trace that choices are made on; the trace itself unless it is large.
        sampled: for each text of `sample`, its index in the trace.
        deepest: edges of the deepest tree that is considered.
        valued: the trace, up to where such a tree is known.
        rates: rates by depth, for the levels and children that the trace supports.
        warnings: what the trace does not support, except levels (`warnings_within`), and notes on its rule.

    Raises:
        InvalidTrace: if the trace is of given texts, has a single text, or supports no tree.
    """

    def __init__(self, law: str, trace: Trace, times: Times) -> None:
        _require_replays(trace)
        self.law, self.times, self.trace = law, times, trace
        self.texts, self.file_of = trace.samples, trace.file_of
        sample, self.sampled = _sampled(trace, times.seed)
        known = min(_deepest(trace), _deepest(sample))
        self.rates, warnings = _supported(sample, known)
        largest = times.latency.largest(times.prefix, law=law, batch=times.batch)
        self.deepest = min(self.rates.levels or known, largest - 1 if largest else known)
        self.sample = _known_to(self.deepest, sample)
        self.valued = _known_to(self.deepest, trace)
        self._valued_totals, self._trace_totals = TextTotals(self.valued), TextTotals(trace)
        self._draws = [TextTotals(draw) for draw in _draws(self.sample, times.seed)]
        self._sampled_totals: dict[TreeShape, tuple[np.ndarray, np.ndarray]] = {}
        self._seconds: dict[TreeShape, float] = {}
        self._unmeasured = ""
        self._too_deep = warnings.pop("depth", None)
        self.warnings = (*warnings.values(), *self._left_out(), *note_on(trace.rule))

    def warnings_within(self, depth: int | None) -> tuple[str, ...]:
        """The warnings that matter for trees of at most `depth` edges; None for no limit."""
        levels = self.rates.levels or 0
        missing = self._too_deep is not None and (depth is None or depth > levels)
        return (*self.warnings, *([str(self._too_deep)] if missing else []))

    def _left_out(self) -> list[str]:
        """A note on the positions that no shape is valued on, if there are any."""
        recorded, valued = int(self.trace.text_kept.sum()), int(self.valued.text_kept.sum())
        if valued == recorded:
            return []
        return [
            f"{recorded - valued} of {recorded} positions, at the ends of texts, were left out for all "
            f"shapes: trees of depth {self.deepest} are not known there; record more beyond the ends of "
            "texts (`treespec trace --beyond`)"
        ]

    @cached_property
    def weights(self) -> Float[np.ndarray, "draws groups"]:
        """How often each group of texts is drawn in each resample; equal for traces of the same prompts."""
        even = np.full(self.groups, 1 / self.groups)
        drawn = self._stream().multinomial(self.groups, even, size=self.times.draws)
        return drawn.astype(np.float64)

    def parts(self, number: int) -> Int[np.ndarray, "texts"]:
        """The part that each text belongs to; files are assigned at random to parts of equal size.

        Similar files are often adjacent, so that parts in file order would differ in difficulty.
        """
        part_of_file = self._stream(1).permutation(self.texts) % number
        return part_of_file[self.file_of]

    def _stream(self, *purpose: int) -> np.random.Generator:
        """The generator that draws texts; the same for traces of the same prompts."""
        prompts = crc32(str(self.trace.about.get("prompts_hash", "")).encode())
        return np.random.default_rng([self.times.seed, self.texts, prompts, *purpose])

    @property
    def groups(self) -> int:
        """Number of groups of texts that are resampled; one text each, unless there are very many."""
        return min(self.texts, MOST_GROUPS)

    def seconds(self, shapes: Sequence[TreeShape]) -> Float[np.ndarray, "trees"]:
        """Seconds per step of each shape; infinite if a part of the step was not measured."""
        new = list(dict.fromkeys(shape for shape in shapes if shape not in self._seconds))
        if new:
            self._seconds.update(zip(new, self._timed(new).tolist(), strict=True))
        return np.array([self._seconds[shape] for shape in shapes])

    @property
    def passed_over(self) -> tuple[str, ...]:
        """A note on the shapes considered so far for which a part of the time was not measured."""
        number = int(np.isinf(list(self._seconds.values())).sum())
        if not number:
            return ()
        shapes = "1 shape was" if number == 1 else f"{number} shapes were"
        return (f"{shapes} skipped because a time was not measured: {self._unmeasured}",)

    def sampled_totals(
        self, shapes: Sequence[TreeShape]
    ) -> tuple[Int[np.ndarray, "trees texts"], Int[np.ndarray, "trees texts"]]:
        """Emitted tokens and steps on the texts of `sample`, summed over all draws of the ranks."""
        new = list(dict.fromkeys(shape for shape in shapes if shape not in self._sampled_totals))
        if new:
            draws = [draw.of(new) for draw in self._draws]
            emitted, steps = (np.sum(totals, axis=0) for totals in zip(*draws, strict=True))
            self._sampled_totals.update(zip(new, zip(emitted, steps, strict=True), strict=True))
        emitted, steps = zip(*(self._sampled_totals[shape] for shape in shapes), strict=True)
        return np.stack(emitted), np.stack(steps)

    def totals(
        self, shapes: Sequence[TreeShape]
    ) -> tuple[Int[np.ndarray, "trees texts"], Int[np.ndarray, "trees texts"]]:
        """Emitted tokens and steps on all texts, along the recorded ranks.

        Shapes within `deepest` are valued on the same positions; a deeper one up to where it is known.
        """
        if any(shape.size > 1 for shape in shapes):
            require_given_trees(self.trace)
        within = max(shape.depth for shape in shapes) <= self.deepest
        return (self._valued_totals if within else self._trace_totals).of(shapes)

    def ends(
        self, shape: TreeShape, texts: Bool[np.ndarray, "sampled"]
    ) -> Int[np.ndarray, "nodes ranks"]:
        """The number of steps on these texts that end at each node, by the next rank of the text."""
        width = self.trace.width + 1
        counts = np.zeros(shape.size * width, dtype=np.int64)
        for exits in (draw.exits(shape) for draw in self._draws):
            counted = texts[exits.text] & (exits.rank >= 0)
            cells = exits.node[counted] * width + exits.rank[counted]
            counts += np.bincount(cells, minlength=len(counts))
        return counts.reshape(shape.size, width)

    def speed(self, shape: TreeShape) -> Speed:
        """Tokens per step by replay of all texts, and seconds; the root alone is plain decoding.

        Raises:
            InvalidTrace, NotMeasured: if trace or times do not cover the shape.
            InvalidLatency: if a step takes no time.
        """
        emitted, steps = (totals[0] for totals in self.totals([shape]))
        return self.pooled(shape, emitted, steps)

    def pooled(
        self,
        shape: TreeShape,
        emitted: Float[np.ndarray, "texts"],
        steps: Float[np.ndarray, "texts"],
    ) -> Speed:
        """The speed of steps with the time of this shape and the given totals.

        Args:
            shape: the shape whose times are used.
            emitted: emitted tokens by text.
            steps: steps by text, possibly fractional.
        """
        parts = self.parts_of_steps
        terms = parts.plain() if shape.size == 1 else parts.tree([shape])
        return self.pooled_steps(terms, shape.size, emitted, steps)

    def pooled_steps(
        self,
        terms: Sequence[Term],
        size: int,
        emitted: Float[np.ndarray, "texts"],
        steps: Float[np.ndarray, "texts"],
    ) -> Speed:
        """As `pooled`, for steps whose time is that of the first of these terms; `size` is for messages."""
        seconds, seconds_drawn = self.times.seconds(terms)
        require_time(self.law, min(seconds, float(seconds_drawn.min())), size)
        group = self.file_of % self.groups
        group_emitted, group_steps = (np.bincount(group, totals) for totals in (emitted, steps))
        tokens_drawn = (self.weights @ group_emitted) / (self.weights @ group_steps)
        tokens = float(emitted.sum() / steps.sum())
        return Speed(tokens, seconds, tokens_drawn, seconds_drawn, self.texts)

    @property
    def parts_of_steps(self) -> StepParts:
        """The measured times that steps are sums of."""
        times = self.times
        return times.latency.at(times.prefix, self.law, times.batch)

    def _timed(self, shapes: list[TreeShape]) -> Float[np.ndarray, "trees"]:
        try:
            seconds = seconds_of(self.parts_of_steps.tree(shapes))
        except NotMeasured as error:
            if len(shapes) == 1:
                self._unmeasured = self._unmeasured or str(error)
                return np.array([np.inf])
            half = len(shapes) // 2
            return np.concatenate([self._timed(shapes[:half]), self._timed(shapes[half:])])
        require_time(self.law, float(seconds.min()), shapes[int(seconds.argmin())].size)
        return seconds


def rates_from(
    trace: Trace, at: Int[np.ndarray, "starts"], levels: int, ranks: int
) -> tuple[Float[np.ndarray, "levels ranks"], Int[np.ndarray, "levels texts"]]:
    """Expected hits of each child at each depth of steps from these positions, and trials of each depth.

    Every node has `ranks` children. Levels that no step reaches are left out.

    Args:
        trace: the trace.
        at: positions at which steps begin.
        levels: maximum number of levels.
        ranks: children of each node.

    Returns:
        Expected hits, and trials by text.
    """
    ends = trace.offsets[1:][trace.text_of[at]] if len(at) else at
    mass, trials = [], []
    for _ in range(levels):
        if not len(at):
            break
        mass.append(trace.accepted[at, :ranks].sum(axis=0))
        trials.append(np.bincount(trace.text_of[at], minlength=trace.texts))
        goes_on = (trace.ranks[at] < ranks) & (at + 1 < ends)
        at, ends = at[goes_on] + 1, ends[goes_on]
    return np.array(mass).reshape(-1, ranks), np.array(trials).reshape(-1, trace.texts)


def _require_replays(trace: Trace) -> None:
    """Refuse a trace that no shape can be chosen on."""
    if trace.forced:
        raise InvalidTrace(
            "the trace is of given texts, so there are no steps to replay: record one while decoding "
            "(`treespec trace` without --follow), or search with its rates (`treespec estimate --out`)"
        )
    if trace.samples < 2:
        text = "text" if trace.texts == 1 else f"text ({trace.texts} excerpts of one file)"
        raise InvalidTrace(
            f"the trace has 1 {text}, but shapes are chosen on some texts and valued on others: "
            "record at least 2, better 24 (`prompts.count=24`), or search with its rates "
            "(`treespec estimate --out`)"
        )
    if trace.width > 1 and not in_order(trace.rule):
        raise InvalidTrace(
            f"under rule {trace.rule!r} acceptance depends on the number of children, and the trace holds "
            f"{trace.width} at each position, so trees of other widths cannot be replayed and shapes "
            f"cannot be compared: replay trees whose nodes have {trace.width} children or none (`treespec "
            "replay`), record with --width 1 to search among chains, or record under a rule that tries "
            "children in order, such as rrs"
        )


def _supported(trace: Trace, deepest: int) -> tuple[Rates, dict[str, str]]:
    """Rates of the levels and children with enough data, and warnings about the others by subject.

    Raises:
        InvalidTrace: if no level has enough data.
    """
    fewest = min(FEWEST_TEXTS, trace.samples // 2)
    ranks, ends = trace.ranks[trace.inside], trace.file_of[trace.text_of[trace.inside]]
    mass = trace.accepted[trace.inside].sum(axis=0)
    seen = [len(np.unique(ends[ranks == rank])) for rank in range(trace.width)]
    poor = np.flatnonzero((mass < FEWEST_HITS) | (np.array(seen) < fewest))
    width = max(1, int(poor[0]) if len(poor) else trace.width)
    table, trials = rates_from(trace, np.flatnonzero(trace.inside), deepest, width)
    total, reached = trials.sum(axis=1), trials > 0
    texts = np.array([len(np.unique(trace.file_of[level])) for level in reached])
    poor = np.flatnonzero((total < FEWEST_TRIALS) | (texts < fewest))
    depth = int(poor[0]) if len(poor) else len(table)
    if depth == 0:
        raise InvalidTrace(
            f"the trace has {int(total[0])} positions in {int(texts[0])} texts, but a tree needs at least "
            f"{FEWEST_TRIALS} in {fewest} texts before a level is used: record more or longer texts"
        )
    warnings: dict[str, str] = {}
    if width < trace.width and trace.text_drafts is None:  # a budget takes what the source drafts
        warnings["width"] = (
            f"child {width + 1} and those after it were not used: fewer than {FEWEST_HITS} acceptances "
            f"({mass[width]:.1f} expected of child {width + 1}) or {fewest} texts that have one "
            f"({seen[width]})"
        )
    if depth < len(table):
        warnings["depth"] = (
            f"levels from depth {depth + 1} on were not used: reached from fewer than {FEWEST_TRIALS} "
            f"positions ({int(total[depth])}) or in fewer than {fewest} texts ({int(texts[depth])})"
        )
    elif depth == deepest:
        warnings["depth"] = (
            f"levels from depth {depth + 1} on were not used: trees that deep are not known at the ends of "
            "texts; record more beyond the ends (`treespec trace --beyond`)"
        )
    if trace.samples < trace.texts:
        warnings["texts"] = (
            f"{trace.texts} texts are excerpts of {trace.samples} files, and count as {trace.samples}"
        )
    rates = np.clip(table[:depth] / total[:depth, None], 0.0, 1.0)
    return Rates(rates, by_depth=True), warnings


def _deepest(trace: Trace) -> int:
    """Edges of the deepest tree that is known wherever a step may begin.

    If that is less than `NEARLY_KNOWN_LEVELS`, a depth up to that limit at which trees are known at nearly
    all positions.
    """
    lengths, kept = np.diff(trace.offsets), trace.text_kept
    everywhere = 1 + int((lengths - kept).min())
    for depth in range(min(NEARLY_KNOWN_LEVELS, int(lengths.min())), everywhere, -1):
        if np.minimum(kept, lengths - depth + 1).sum() >= LEAST_SHARE_KNOWN * kept.sum():
            return depth
    return everywhere


def _known_to(depth: int, trace: Trace) -> Trace:
    """The trace, with `kept` reduced to the positions at which trees of this depth are known."""
    kept = np.minimum(trace.text_kept, np.diff(trace.offsets) - depth + 1)
    return trace if (kept == trace.text_kept).all() else replace(trace, kept=kept)


def _draws(trace: Trace, seed: int) -> list[Trace]:
    """The trace, and copies with newly drawn ranks; no copies if nothing is random or the trace large."""
    certain = np.isin(trace.accepted, (0.0, 1.0)).all()
    number = 1 if certain else min(MOST_DRAWS, max(1, MOST_POSITIONS // len(trace.tokens)))
    rng, reached = np.random.default_rng(seed), trace.accepted.cumsum(axis=1)
    throws = [rng.random((len(reached), 1)) for _ in range(number - 1)]
    return [trace, *(replace(trace, ranks=(throw >= reached).sum(axis=1)) for throw in throws)]


def _sampled(trace: Trace, seed: int) -> tuple[Trace, Int[np.ndarray, "sampled"]]:
    """Randomly drawn whole texts, enough to choose on, and their indices.

    If texts are so long that fewer than `WHOLE_TEXTS` fit, a stretch of each that begins anywhere is taken:
    the beginning of a text is not like the rest.
    """
    if len(trace.tokens) <= MOST_POSITIONS:
        return trace, np.arange(trace.texts)
    rng = np.random.default_rng(seed)
    order, lengths = rng.permutation(trace.texts), np.diff(trace.offsets)
    whole = int(np.searchsorted(np.cumsum(lengths[order]), MOST_POSITIONS, side="right"))
    if whole >= WHOLE_TEXTS:
        texts = np.sort(order[:whole])
        return trace.part(texts), texts
    texts = np.sort(order[:WHOLE_TEXTS])
    length = MOST_POSITIONS // len(texts)
    latest = np.minimum(lengths[texts] - length, trace.text_kept[texts] - 1).clip(min=0)
    part = trace.part(texts, length, rng.integers(latest + 1))
    beyond = np.minimum(lengths[texts] - trace.text_kept[texts], length // 4)
    return replace(part, kept=np.minimum(part.text_kept, length - beyond)), texts
