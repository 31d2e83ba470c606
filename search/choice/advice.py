"""The advice of a ranking: one shape, or those that are not decided between and what would decide."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log
from typing import Any

import numpy as np

from treespec.search.choice.rows import Choice, Speed, quantile
from treespec.search.intervals import Interval

HOPELESS_FACTOR = 100
"""A decision that takes more than this many times the recorded texts is called hopeless."""
EQUAL_WITHIN = 0.005
"""Relative difference of two speeds below which deciding between them is not worth a measurement."""

FEWEST_TEXTS = 4
"""Independent texts below which no shape is advised: so few may agree by chance."""

ALIKE = 1e-9
"""Relative range of resampled tokens per step, from rounding alone, if all texts are equal."""

WORDS = {"tree": "tree", "chain": "chain", "growth": "tree that grows", "plain": "plain decoding"}


@dataclass(frozen=True)
class Needed:
    """The measurements that would decide between two shapes, if their true difference is the estimated one.

    The errors from texts and from times both shrink with the square root of the number of measurements. The
    times may use half of the variance that a decision allows, and the texts use the rest.

    Args:
        texts: number of additional texts; 0 if texts do not matter, None if their number is unknown.
        repeats: factor by which the repeats of the timing have to increase; 1 if the times suffice.
        hopeless: whether no measurement is worthwhile: the difference is too small, or it would take more
            than `HOPELESS_FACTOR` times as many texts.
    """

    texts: int | None
    repeats: float = 1.0
    hopeless: bool = False

    def __str__(self) -> str:
        parts = []
        if self.texts is None:
            parts.append("more steps of acceptance")
        elif self.texts:
            parts.append(f"about {self.texts} more text{'s' * (self.texts > 1)} like these")
        if self.repeats > 1:
            parts.append(f"{self.repeats:.1f} times as many repeats (`treespec profile --repeats`)")
        return " and ".join(parts) or "a few more texts or repeats"


@dataclass(frozen=True, eq=False)
class Advice:
    """Comparison of the best tree, chain, tree that grows and plain decoding.

    A shape is advised only if two intervals exclude 1: of its speed over plain decoding, and of its speed
    over the runner-up, that is over each of the others. Each has half of the error that the level of the
    ranking permits (97.5 % at 0.95), so that of two equally fast shapes, one is advised in at most 5 % of
    all searches. All others count as one comparison, however many they are: the more are equally fast, the
    less often one is so far ahead of all (Gutmann & Maymin, Annals of Statistics 1987). Otherwise no shape
    is advised: `use` is None, and `between` lists the shapes that are not told apart. Nor is a shape
    advised about which there are `doubts`: rates without intervals, a time that is interpolated, or that no
    tree could be considered.

    Args:
        use: the shape to use, possibly plain decoding, or None.
        first: the shape with the highest estimated speed.
        over: the speed of `first` over each of the others, by `name`.
        others: the best of the other kinds, and of the same kind from each other trace and law, fastest
            first.
        needs: what would tell `first` from each shape that it is not shown to be faster than, by `name`.
        level: confidence level of each comparison.
        tree_over_chain: the speed of the best tree over that of the best chain, whichever is first; None if
            either is missing.
        too_few: why the texts are too few to advise a shape, whatever the intervals are; empty if they are
            not.
    """

    use: Choice | None
    first: Choice
    over: dict[str, Interval]
    others: tuple[Choice, ...]
    needs: dict[str, Needed]
    level: float = 0.95
    tree_over_chain: Interval | None = None
    too_few: str = ""

    @property
    def between(self) -> tuple[Choice, ...]:
        """`first`, and the shapes that it is not shown to be faster than."""
        return (self.first, *(other for other in self.others if self.name(other) in self.needs))

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why `first` is not advised, whatever the intervals are; none if there is no other shape."""
        return self.first.doubts if self.others else ()

    @property
    def needed(self) -> Needed | None:
        """What decides all comparisons, hopeless ones aside unless all are; None if decided."""
        if not self.needs:
            return None
        decidable = [need for need in self.needs.values() if not need.hopeless]
        if not decidable:
            return next(iter(self.needs.values()))
        numbers = [need.texts for need in decidable if need.texts is not None]
        repeats = max(need.repeats for need in decidable)
        return Needed(max(numbers, default=None), repeats)

    def name(self, choice: Choice) -> str:
        """The key of a shape in `over`: its kind, with trace and law if `first` is of the same kind."""
        return _name(choice, self.first)

    def __str__(self) -> str:
        doubts = self.doubts
        if self.needs or self.too_few:
            text = self._undecided()
        elif self.first.kind == "plain":
            slower = [
                f"{_best(other)} has {_in_text(other.speedup)} of its speed"
                for other in self.others
            ]
            text = "By prediction plain decoding is the fastest." if doubts else "Decode plainly."
            text += f" {_sentence(_listed(slower))}." if slower else ""
        else:
            faster = [f"{_in_text(self.first.speedup)} times plain decoding"]
            faster += [
                f"{_in_text(self.over[self.name(other)])} times "
                f"{_the(other) if other.kind == self.first.kind else _best(other)}"
                for other in self.others
                if other.kind != "plain"
            ]
            fastest = "By prediction the fastest is" if doubts else "Use"
            text = f"{fastest} {_the(self.first)}: {_listed(faster)}."
        if self.tree_over_chain is not None and self.first.kind in ("growth", "plain"):
            ratio = _in_text(self.tree_over_chain)
            text += f" The best tree is {ratio} times as fast as the best chain."
        if doubts:
            text += f" This is not advice: {_listed(doubts)}."
        compared = {choice.kind for choice in (self.first, *self.others)}
        missing = [kind for kind in ("tree", "chain") if kind not in compared]
        if missing and not self._budgets():  # a text source has trees and chains among its budgets
            text += f" There was no {' or '.join(missing)} to compare with."
        return text

    def _budgets(self) -> bool:
        growths = [choice.growth for choice in (self.first, *self.others) if choice.growth]
        return any(growth.config.get("kind") == "budget" for growth in growths)

    def _undecided(self) -> str:
        names = [self._with_speed(choice) for choice in self.between]
        text = f"Not decided between {_listed(names)}."
        if self.too_few:
            return f"{text} The texts are too few to advise a shape: {self.too_few}."
        for other in self.others:
            if other not in self.between:
                share = _in_text(self.over[self.name(other)].inverse())
                text += f" {_sentence(_the(other))} has {share} of the speed of the first."
        equal = [other for other in self.between[1:] if self.needs[self.name(other)].hopeless]
        apart = [_the(other) for other in self.between[1:] if other not in equal]
        if apart:
            needed = _sentence(str(self.needed))
            text += f" {needed} would tell the first from {_listed(apart)}."
        if equal:
            alike = _listed([_the(other) for other in equal])
            text += f" Hardly any measurement would tell it from {alike}: take what is simpler."
        return text

    def _with_speed(self, choice: Choice) -> str:
        """The shape with its speed: over plain decoding, or for a rival of the first over the first's."""
        if choice.kind == "plain":
            return choice.label
        speed = f"{_in_text(choice.speedup)} times plain decoding"
        if choice is not self.first and choice.kind == self.first.kind:
            speed = f"{_in_text(self.over[self.name(choice)].inverse())} of the speed of the first"
        return f"the {choice.label} ({_origin(choice)}: {speed})"

    def to_dict(self) -> dict[str, Any]:
        """The advice as plain data; shapes are named by kind, as in the rows of the ranking."""
        needed = self.needed
        return {
            "use": None if self.use is None else self.use.kind,
            "first": self.first.kind,
            "between": [self.name(choice) for choice in self.between],
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
            "needed": None if needed is None else vars(needed),
            "too_few": self.too_few or None,
            "doubts": list(self.doubts),
        }


def advise(contenders: Sequence[Choice], level: float) -> Advice:
    """Compare the fastest of the contenders with each of the others."""
    ordered = sorted(contenders, key=lambda row: (-row.speed.rate, row.size))
    first, *others = ordered
    if len(others) > 1:
        level = 1 - (1 - level) / 2
    ratios = [(other, first.speed.over(other.speed, level)) for other in others]
    best = {row.kind: row.speed for row in reversed(ordered)}
    both = "tree" in best and "chain" in best
    too_few = _too_few([row.speed for row in ordered])
    decided = not too_few and all(ratio.low > 1 for _, ratio in ratios)
    return Advice(
        first if decided and not (others and first.doubts) else None,
        first,
        {_name(other, first): ratio for other, ratio in ratios},
        tuple(others),
        {
            _name(other, first): _needed(first.speed, other.speed, level)
            for other, ratio in ratios
            if too_few or not ratio.low > 1
        },
        level,
        best["tree"].over(best["chain"], level) if both else None,
        too_few,
    )


def _too_few(speeds: Sequence[Speed]) -> str:
    """Why the texts are too few to advise a shape: their number, or that they are all equal."""
    texts = min((speed.texts for speed in speeds if speed.texts), default=None)
    if texts is None or len(speeds) == 1:  # rates as they were typed, or nothing to compare with
        return ""
    if texts < FEWEST_TEXTS:
        return f"there are {texts}, but it takes at least {FEWEST_TEXTS}, better 24"
    if all(np.ptp(speed.tokens_drawn) < ALIKE * speed.tokens for speed in speeds):
        return f"all {texts} are equal, so that nothing is known of others; record different ones"
    return ""


def _needed(first: Speed, other: Speed, level: float) -> Needed:
    """The measurements that would put the interval of the ratio of two speeds above 1."""
    difference = log(first.rate / other.rate)
    if difference < EQUAL_WITHIN:
        return Needed(None, hopeless=True)
    of_texts = float(np.var(np.log(first.tokens_drawn / other.tokens_drawn)))
    of_times = float(np.var(np.log(first.seconds_drawn / other.seconds_drawn)))
    texts = min((speed.texts for speed in (first, other) if speed.texts), default=None)
    allowed = (difference / quantile(level, None)) ** 2
    if texts is None:
        known = of_texts <= allowed / 2
        return Needed(0 if known else None, max(1.0, ceil(20 * of_times / allowed) / 10))
    number = texts
    for _ in range(4):  # the more texts, the smaller Student's quantile
        left = allowed - min(of_times, allowed / 2)
        number = max(texts, ceil(texts * of_texts / left))
        allowed = (difference / quantile(level, number)) ** 2
    repeats = max(1.0, ceil(20 * of_times / allowed) / 10)
    return Needed(number - texts, repeats, hopeless=number > (1 + HOPELESS_FACTOR) * texts)


def _name(choice: Choice, first: Choice) -> str:
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
