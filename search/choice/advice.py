"""The advice of a ranking: one shape, or those that are not decided between and what would decide."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

import numpy as np

from treespec.search.choice.rows import Choice, Kind, Speed, bounds
from treespec.search.intervals import Interval, expanded_tail

__all__ = ["MOST_DRAWS", "Advice", "Needed", "advise", "shared_level"]

HOPELESS_FACTOR = 100
"""A decision that takes more than this many times the recorded texts is called hopeless."""
MOST_DRAWS = 100_000
"""Resamples beyond which more texts are asked for instead of more resamples."""
EQUAL_WITHIN = 0.005
"""Relative difference of two speeds below which deciding between them is not worth a measurement."""

WORDS = {"tree": "tree", "chain": "chain", "growth": "tree that grows", "plain": "plain decoding"}
"""Kinds of shapes, in words."""


@dataclass(frozen=True)
class Needed:
    """The measurements that would decide between two shapes, if their true difference is the estimated one.

    The errors from texts and from times both shrink with the square root of the number of measurements.
    While the times use at most half of the variance that a decision allows, the texts get the rest and only
    texts are asked for. Otherwise the texts get what the recorded ones use, at most half, and the times
    have to be steadier. So the request changes little with what was measured.

    Args:
        texts: number of additional texts; 0 if texts do not matter, None if their number is unknown.
        steadier: factor by which the error of the times has to shrink, which takes its square times as many
            repeats; 1 if the times suffice.
        hopeless: whether no measurement is worthwhile: the difference is too small, or, if `texts` is set,
            even that many more would not decide.
        draws: resamples that the bounds need; 0 if there are enough.
    """

    texts: int | None
    steadier: float
    hopeless: bool = False
    draws: int = 0

    def __str__(self) -> str:
        if self.hopeless and self.texts:
            return (
                f"More than {self.texts:,} more texts like these would be needed to decide: take what is "
                "simpler"
            )
        if self.hopeless:
            return (
                f"They look equally fast, less than {100 * EQUAL_WITHIN:g} % apart, and hardly any "
                "measurement would decide: take what is simpler"
            )
        parts = []
        if self.texts is None:
            parts.append("more steps of acceptance")
        elif self.texts:
            parts.append(
                f"about {self.texts} more {'text' if self.texts == 1 else 'texts'} like these"
            )
        if self.repeats > 1:
            parts.append(f"{self.repeats:.1f} times as many repeats (`treespec profile --repeats`)")
        if self.draws:
            parts.append(f"draws = {self.draws}")
        return f"{_sentence(' and '.join(parts) or 'a few more texts or repeats')} would decide"

    @property
    def repeats(self) -> float:
        """The factor by which repeats of the timing have to increase, rounded up to a tenth."""
        return ceil(10 * self.steadier**2 - 1e-9) / 10


@dataclass(frozen=True, eq=False)
class Advice:
    """Comparison of the best tree, the best chain and plain decoding.

    A shape is advised only if the intervals of its speed over plain decoding and over the best of the
    other kind both exclude 1. Together they have the level of the ranking (each of two 97.5 % at 0.95), so
    that of two equally fast shapes, one is advised in at most 5 % of all searches. Otherwise no shape is
    advised: `use` is None, and `between` lists the shapes that are not told apart. No shape is advised
    either where the bounds for so few texts lie beyond all resamples: two texts that agree by chance would
    decide anything.

    With several traces or laws, the best of the same kind from each other trace and law has to be excluded
    as well. All of them count as one additional comparison, however many they are: to be advised, a shape
    has to be faster than each, and the more are equally fast, the less often one is so far ahead of all
    (Gutmann & Maymin, Annals of Statistics 1987; Hung & Fithian, arXiv:1610.03944).

    Args:
        use: the shape to use, possibly plain decoding, or None.
        first: the shape with the highest estimated speed.
        between: `first`, and the shapes that it is not shown to be faster than.
        over: the speed of `first` over each of the others, by `name`.
        others: the best of the other kinds, and of the same kind from each other trace and law, fastest
            first.
        needed: what would decide; None if it is decided.
        alike: shapes of `between` that even `needed` would not tell from the first, though it would others.
        level: confidence level of each comparison.
        tree_over_chain: the speed of the best tree over that of the best chain, whichever is first; None if
            either is missing.
    """

    use: Choice | None
    first: Choice
    between: tuple[Choice, ...]
    over: dict[str, Interval]
    others: tuple[Choice, ...]
    needed: Needed | None
    alike: tuple[Choice, ...] = ()
    level: float = 0.95
    tree_over_chain: Interval | None = None

    def name(self, choice: Choice) -> str:
        """The key of a shape in `over`: its kind, with trace and law if `first` is of the same kind."""
        return _name(choice, self.first)

    def __str__(self) -> str:
        first = self.first
        if self.use is None:
            names = [self._with_speed(choice) for choice in self.between]
            text = f"Not decided between {', '.join(names[:-1])} and {names[-1]}."
            for choice in self.others:
                if choice not in self.between:
                    share = _in_text(self.over[self.name(choice)].inverse())
                    text += f" {_sentence(_the(choice))} has {share} of the speed of the first."
            text += self._tree_against_chain()
            if not self.alike:
                return f"{text} {self.needed}.{self._missing()}"
            decidable = [choice for choice in self.between[1:] if choice not in self.alike]
            told, alike = (
                " and ".join(_the(choice) for choice in choices)
                for choices in (decidable, self.alike)
            )
            return (
                f"{text} {self.needed} between the first and {told}; hardly any measurement would between "
                f"the first and {alike}: take what is simpler.{self._missing()}"
            )
        if first.kind == "plain":
            if not self.others:
                return f"Decode plainly:{self._missing().lower()}"
            compared = {choice.kind for choice in self.others}
            kinds = " or ".join(word for kind, word in WORDS.items() if kind in compared)
            slower = [
                f"{_best(choice)} has {_in_text(choice.speedup)} of its speed"
                for choice in self.others
            ]
            return (
                f"Decode plainly: no {kinds} is predicted to be faster. {_sentence(_listed(slower))}."
                f"{self._tree_against_chain()}{self._missing()}"
            )
        faster = [f"{_in_text(first.speedup)} times plain decoding"]
        faster += [
            f"{_in_text(self.over[self.name(choice)])} times "
            f"{_the(choice) if choice.kind == first.kind else _best(choice)}"
            for choice in self.others
            if choice.kind != "plain"
        ]
        return f"Use {_the(first)}: {_listed(faster)}.{self._tree_against_chain()}{self._missing()}"

    def _tree_against_chain(self) -> str:
        """A sentence that compares tree and chain, where the first is neither."""
        if self.tree_over_chain is None or self.first.kind in ("tree", "chain"):
            return ""
        return (
            f" The best tree is {_in_text(self.tree_over_chain)} times as fast as the best chain."
        )

    def _with_speed(self, choice: Choice) -> str:
        """The shape with its speed: over plain decoding, or for a rival of the first over the first's."""
        if choice.kind == "plain":
            return choice.label
        speed = _in_text(choice.speedup)
        if choice is self.first:
            speed += " times plain decoding"
        elif choice.kind == self.first.kind:
            # Only the first was corrected for the bias of choosing, so that speed-ups would mislead.
            speed = f"{_in_text(self.over[self.name(choice)].inverse())} of the speed of the first"
        return f"the {choice.label} ({_origin(choice)}: {speed})"

    def _missing(self) -> str:
        """A sentence that names tree or chain if there was none to compare with."""
        choices = (self.first, *self.others)
        growths = [choice.growth for choice in choices if choice.growth is not None]
        if any(growth.config.get("kind") == "budget" for growth in growths):
            return ""  # a text source has trees and chains among its budgets
        compared = {choice.kind for choice in choices}
        missing = " or ".join(kind for kind in ("tree", "chain") if kind not in compared)
        return f" There was no {missing} to compare with." if missing else ""

    def to_dict(self) -> dict[str, Any]:
        """The advice as plain data; shapes are named by kind, as in the rows of the ranking."""
        needed = self.needed
        return {
            "use": None if self.use is None else self.use.kind,
            "first": self.first.kind,
            "between": [self.name(choice) for choice in self.between],
            "alike": [self.name(choice) for choice in self.alike],
            "over": {name: ratio._asdict() for name, ratio in self.over.items()},
            "tree_over_chain": self.tree_over_chain and self.tree_over_chain._asdict(),
            "others": [
                {
                    "name": self.name(choice),
                    "kind": choice.kind,
                    "label": choice.label,
                    "speedup": choice.speedup._asdict(),
                }
                for choice in self.others
            ],
            "needed": None
            if needed is None
            else {
                "texts": needed.texts,
                "steadier": needed.steadier,
                "repeats": needed.repeats,
                "hopeless": needed.hopeless,
                "draws": needed.draws,
            },
        }


def advise(
    contenders: Sequence[tuple[Choice, Speed]],
    level: float,
    rivals: Mapping[Kind, Sequence[tuple[Choice, Speed]]] = MappingProxyType({}),
) -> Advice:
    """Compare the best of each kind with each other, and the fastest of them with its rivals.

    Args:
        contenders: the best tree, chain, growth and plain decoding, where there are any.
        level: confidence that no comparison is wrong.
        rivals: by kind, the best of each other trace and law, with speeds corrected like the fastest's.
    """
    ordered = sorted(contenders, key=lambda contender: (-contender[1].rate, contender[0].size))
    (first, fastest), *others = ordered
    same_kind = rivals.get(first.kind, ())
    level = shared_level(level, len(ordered) + bool(same_kind))
    others = sorted([*others, *same_kind], key=lambda contender: -contender[1].rate)
    over, between, needs = {}, [first], []
    for choice, speed in others:
        texts = _common_texts(fastest, speed)
        drawn = fastest.rate_drawn / speed.rate_drawn
        ratio = over[_name(choice, first)] = bounds(fastest.rate / speed.rate, drawn, level, texts)
        if not (ratio.low > 1 and _within(texts, len(drawn), level)):
            between.append(choice)
            needs.append(_needed(fastest, speed, texts, level))
    decided = len(between) == 1
    alike = [choice for choice, need in zip(between[1:], needs, strict=True) if need.hopeless]
    return Advice(
        first if decided else None,
        first,
        tuple(between),
        over,
        tuple(choice for choice, _ in others),
        None if decided else _together(needs),
        tuple(alike) if len(alike) < len(needs) else (),
        level,
        _tree_over_chain({choice.kind: speed for choice, speed in contenders}, level),
    )


def _tree_over_chain(best: Mapping[Kind, Speed], level: float) -> Interval | None:
    """The speed of the best tree over that of the best chain; None if either is missing."""
    if not {"tree", "chain"} <= best.keys():
        return None
    tree, chain = best["tree"], best["chain"]
    texts = _common_texts(tree, chain)
    return bounds(tree.rate / chain.rate, tree.rate_drawn / chain.rate_drawn, level, texts)


def _common_texts(left: Speed, right: Speed) -> int | None:
    """The smaller number of resampled texts of two speeds; None if neither is known."""
    return min((speed.texts for speed in (left, right) if speed.texts), default=None)


def shared_level(level: float, contenders: int) -> float:
    """The level of each comparison of the first with another so that all together have this level."""
    return 1 - (1 - level) / max(1, contenders - 1)


def _within(texts: int | None, draws: int, level: float) -> bool:
    """Whether the bounds for this number of texts lie within this number of resamples."""
    return texts is None or expanded_tail(texts, level) * draws >= 1


def _needed(first: Speed, other: Speed, texts: int | None, level: float) -> Needed:
    """The measurements that would put the interval of the ratio of two speeds above 1."""
    difference = float(np.log(first.rate / other.rate))
    if difference < EQUAL_WITHIN:
        return Needed(None, 1.0, hopeless=True)
    z = NormalDist().inv_cdf((1 + level) / 2)
    text_variance = float(np.var(np.log(first.tokens_drawn / other.tokens_drawn)))
    time_variance = float(np.var(np.log(first.seconds_drawn / other.seconds_drawn)))
    allowed = (difference / z) ** 2
    left_for_texts, steadier = allowed - time_variance, 1.0
    if time_variance > allowed / 2:
        used = text_variance if texts is None else text_variance * _widened(texts, level)
        left_for_texts = min(allowed / 2, used)
        steadier = max(1.0, sqrt(time_variance / (allowed - left_for_texts)))
    if texts is None:
        enough = text_variance <= left_for_texts and steadier > 1
        return Needed(0 if enough else None, steadier)
    draws = len(first.tokens_drawn)
    more = _more_texts(texts, text_variance, left_for_texts, level, draws)
    if more is not None:
        return Needed(more, steadier)
    more = _more_texts(texts, text_variance, left_for_texts, level, MOST_DRAWS)
    if more is None:
        return Needed(HOPELESS_FACTOR * texts, steadier, hopeless=True)
    return Needed(more, steadier, draws=ceil(1 / expanded_tail(texts + more, level)))


def _widened(texts: int, level: float) -> float:
    """The squared width of the interval expanded for few texts over that of the normal one."""
    normal = NormalDist()
    expanded = normal.inv_cdf(max(expanded_tail(texts, level), 1e-300))
    return (expanded / normal.inv_cdf((1 + level) / 2)) ** 2


def _more_texts(
    texts: int, variance: float, allowed: float, level: float, draws: int
) -> int | None:
    """The number of additional texts that put an interval above 1 and its bounds within the resamples.

    Args:
        texts: number of recorded texts.
        variance: variance over these texts.
        allowed: variance at which a normal interval excludes 1.
        level: confidence level of the interval.
        draws: number of resamples.

    Returns:
        None if it exceeds `HOPELESS_FACTOR` times the recorded texts.
    """

    def enough(number: int) -> bool:
        if not _within(number, draws, level):
            return False
        return number * allowed * (1 + 1e-12) >= texts * variance * _widened(number, level)

    numbers = range(texts, texts * (1 + HOPELESS_FACTOR) + 1)
    index = bisect_left(numbers, True, key=enough)
    return None if index == len(numbers) else index


def _together(needs: Sequence[Needed]) -> Needed:
    """The measurements that decide all comparisons; hopeless ones are left out, unless all are."""
    decidable = [need for need in needs if not need.hopeless]
    if not decidable:
        return needs[0]
    numbers = [need.texts for need in decidable]
    texts = None if None in numbers else max(number for number in numbers if number is not None)
    steadier = max(need.steadier for need in decidable)
    return Needed(texts, steadier, draws=max(need.draws for need in decidable))


def _name(choice: Choice, first: Choice) -> str:
    """The name of a compared shape: its kind, with trace and law if it is a rival of the same kind."""
    rival = choice is not first and choice.kind == first.kind
    return f"{choice.kind} ({_origin(choice)})" if rival else choice.kind


def _origin(choice: Choice) -> str:
    return ", ".join(name for name in (choice.source, choice.law) if name)


def _the(choice: Choice) -> str:
    """The shape in words, with trace and law."""
    return choice.label if choice.kind == "plain" else f"the {choice.label} ({_origin(choice)})"


def _best(choice: Choice) -> str:
    """The best shape of a kind, in words."""
    return f"the best {WORDS[choice.kind]} ({choice.label})"


def _listed(parts: Sequence[str]) -> str:
    """Join parts of a sentence with commas and `and`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts)


def _sentence(text: str) -> str:
    """Capitalise the first letter; leave the rest, with its names, as it is."""
    return text[:1].upper() + text[1:]


def _in_text(value: Interval) -> str:
    return value.text(in_sentence=True)
