"""What a ranking advises: one shape, or which it cannot tell apart and what would decide between them."""

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
"""Times the texts there are: as many more are no advice."""
MOST_DRAWS = 100_000
"""Resamples beyond which more texts are asked for instead of more of them."""
EQUAL_WITHIN = 0.005
"""Relative difference of two speeds below which deciding between them is not worth a measurement."""

WORDS = {"tree": "tree", "chain": "chain", "growth": "tree that grows", "plain": "plain decoding"}
"""Kinds of shapes."""


@dataclass(frozen=True)
class Needed:
    """What would decide between two shapes, if their difference is as large as it looks.

    Both errors shrink with the square root of the measurements. While the times take at most half of the
    variance that a decision allows, texts get the rest of it and only they are asked for. Else texts get
    what those there are take, at most half, and the times have to be steadier. So what is asked for changes
    little with what was measured.

    Args:
        texts: how many more; 0 if texts do not matter, None if it is not known how many there are.
        steadier: how many times smaller the error of the times has to be, which takes the square of it
            times as many repeats; 1 if they will do.
        hopeless: neither is worth the trouble: the difference is too small, or, with `texts`, even so many
            more would not do.
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
        """How many times as many repeats of the times it takes, rounded up to a tenth."""
        return ceil(10 * self.steadier**2 - 1e-9) / 10


@dataclass(frozen=True, eq=False)
class Advice:
    """The best tree, the best chain and plain decoding, held against each other.

    A shape is advised only if the intervals of its speed over plain decoding and over the best of the
    other kind both exclude 1. Together they have the level of the ranking (each of two 97.5 % at 0.95), so
    that of two equally fast shapes either is advised in at most 5 % of all searches. Otherwise none is:
    `use` is None, and `between` has those that are not told apart. Nor is one where the bounds for so few
    texts lie beyond all resamples: two texts that agree by chance would decide anything.

    Of several traces or laws, the best of the same kind of each other one has to be excluded as well. All
    of them count as one comparison more, however many they are: to be advised, a shape has to be told from
    each, and the more are as fast, the less often one is so far ahead of all (Gutmann & Maymin, Annals of
    Statistics 1987; Hung & Fithian, arXiv:1610.03944).

    Args:
        use: the shape to use (plain decoding is one), or None.
        first: the one that looks fastest.
        between: `first`, and those that it is not proved to be faster than.
        over: the speed of `first` over each of the others, by `name`.
        others: the best of the other kinds, and of the same kind from each other trace and law, fastest
            first.
        needed: what would decide; None if it is decided.
        alike: of `between`, those that even this would not tell from the first, while it would the others.
        level: of each comparison.
        tree_over_chain: the speed of the best tree over that of the best chain, whatever is first; None
            without either.
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
        """What `over` calls one of the others: its kind; with trace and law if it is that of the first."""
        return _name(choice, self.first)

    def __str__(self) -> str:
        first = self.first
        if self.use is None:
            names = [self._valued(one) for one in self.between]
            said = f"Not decided between {', '.join(names[:-1])} and {names[-1]}."
            for one in self.others:
                if one not in self.between:
                    share = _said(self.over[self.name(one)].inverse())
                    said += f" {_sentence(_the(one))} has {share} of the speed of the first."
            said += self._kinds()
            if not self.alike:
                return f"{said} {self.needed}.{self._missing()}"
            others = [one for one in self.between[1:] if one not in self.alike]
            told, alike = (" and ".join(map(_the, some)) for some in (others, self.alike))
            return (
                f"{said} {self.needed} between the first and {told}; hardly any measurement would between "
                f"the first and {alike}: take what is simpler.{self._missing()}"
            )
        if first.kind == "plain":
            if not self.others:
                return f"Decode plainly:{self._missing().lower()}"
            there = {one.kind for one in self.others}
            kinds = " or ".join(word for kind, word in WORDS.items() if kind in there)
            near = [f"{_best(one)} has {_said(one.speedup)} of its speed" for one in self.others]
            return (
                f"Decode plainly: no {kinds} is predicted to be faster. {_sentence(_listed(near))}."
                f"{self._kinds()}{self._missing()}"
            )
        faster = [f"{_said(first.speedup)} times plain decoding"]
        faster += [
            f"{_said(self.over[self.name(one)])} times "
            f"{_the(one) if one.kind == first.kind else _best(one)}"
            for one in self.others
            if one.kind != "plain"
        ]
        return f"Use {_the(first)}: {_listed(faster)}.{self._kinds()}{self._missing()}"

    def _kinds(self) -> str:
        """A sentence on tree against chain, where the first is neither and is held against both."""
        if self.tree_over_chain is None or self.first.kind in ("tree", "chain"):
            return ""
        return f" The best tree is {_said(self.tree_over_chain)} times as fast as the best chain."

    def _valued(self, choice: Choice) -> str:
        """The shape with its speed: the first's over plain decoding, of its rivals over the first's."""
        if choice.kind == "plain":
            return choice.label
        said = _said(choice.speedup)
        if choice is self.first:
            said += " times plain decoding"
        elif choice.kind == self.first.kind:
            # What choosing flatters was taken off the first alone, so that speed-ups would mislead.
            said = f"{_said(self.over[self.name(choice)].inverse())} of the speed of the first"
        return f"the {choice.label} ({_origin(choice)}: {said})"

    def _missing(self) -> str:
        """A sentence on what there was none of, tree or chain; each is held against the other, always."""
        every = (self.first, *self.others)
        growths = [one.growth for one in every if one.growth is not None]
        if any(growth.config.get("kind") == "budget" for growth in growths):
            return ""  # of a text source, which has trees and chains among its budgets
        there = {one.kind for one in every}
        missing = " or ".join(kind for kind in ("tree", "chain") if kind not in there)
        return f" There was no {missing} to compare with." if missing else ""

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data; shapes by kind, as rows of the ranking have them."""
        needed = self.needed
        return {
            "use": None if self.use is None else self.use.kind,
            "first": self.first.kind,
            "between": [self.name(one) for one in self.between],
            "alike": [self.name(one) for one in self.alike],
            "over": {name: ratio._asdict() for name, ratio in self.over.items()},
            "tree_over_chain": self.tree_over_chain and self.tree_over_chain._asdict(),
            "others": [
                {
                    "name": self.name(one),
                    "kind": one.kind,
                    "label": one.label,
                    "speedup": one.speedup._asdict(),
                }
                for one in self.others
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
    """Hold the best of each kind against each other, and the best of all against its rivals.

    Args:
        contenders: the best tree, the best chain, plain decoding, as far as there are.
        level: of confidence, that no comparison is wrong.
        rivals: by kind, the best of each other trace and law, with speeds as the best of all has them.
    """
    ordered = sorted(contenders, key=lambda one: (-one[1].rate, one[0].size))
    (first, fastest), *others = ordered
    same_kind = rivals.get(first.kind, ())
    level = shared_level(level, len(ordered) + bool(same_kind))
    others = sorted([*others, *same_kind], key=lambda one: -one[1].rate)
    over, open_ones, needs = {}, [first], []
    for choice, speed in others:
        texts = min((one.texts for one in (fastest, speed) if one.texts), default=None)
        drawn = fastest.rate_drawn / speed.rate_drawn
        ratio = over[_name(choice, first)] = bounds(fastest.rate / speed.rate, drawn, level, texts)
        if not (ratio.low > 1 and _within(texts, len(drawn), level)):
            open_ones.append(choice)
            needs.append(_needed(fastest, speed, texts, level))
    decided = len(open_ones) == 1
    alike = [one for one, need in zip(open_ones[1:], needs, strict=True) if need.hopeless]
    return Advice(
        first if decided else None,
        first,
        tuple(open_ones),
        over,
        tuple(choice for choice, _ in others),
        None if decided else _together(needs),
        tuple(alike) if len(alike) < len(needs) else (),
        level,
        _tree_over_chain({choice.kind: speed for choice, speed in contenders}, level),
    )


def _tree_over_chain(best: Mapping[Kind, Speed], level: float) -> Interval | None:
    """The speed of the best tree over that of the best chain, if there are both."""
    if not {"tree", "chain"} <= best.keys():
        return None
    tree, chain = best["tree"], best["chain"]
    texts = min((one.texts for one in (tree, chain) if one.texts), default=None)
    return bounds(tree.rate / chain.rate, tree.rate_drawn / chain.rate_drawn, level, texts)


def shared_level(level: float, contenders: int) -> float:
    """The level of each comparison of the first with another, if all together are to have this one."""
    return 1 - (1 - level) / max(1, contenders - 1)


def _within(texts: int | None, draws: int, level: float) -> bool:
    """Whether the bounds for so many texts lie within this number of resamples."""
    return texts is None or expanded_tail(texts, level) * draws >= 1


def _needed(first: Speed, other: Speed, texts: int | None, level: float) -> Needed:
    """What would put an interval of the ratio of two speeds above 1."""
    difference = float(np.log(first.rate / other.rate))
    if difference < EQUAL_WITHIN:
        return Needed(None, 1.0, hopeless=True)
    z = NormalDist().inv_cdf((1 + level) / 2)
    of_texts = float(np.var(np.log(first.tokens_drawn / other.tokens_drawn)))
    of_times = float(np.var(np.log(first.seconds_drawn / other.seconds_drawn)))
    allowed = (difference / z) ** 2
    left, steadier = allowed - of_times, 1.0
    if of_times > allowed / 2:
        taken = of_texts if texts is None else of_texts * _widened(texts, level)
        left = min(allowed / 2, taken)
        steadier = max(1.0, sqrt(of_times / (allowed - left)))
    if texts is None:
        enough = of_texts <= left and steadier > 1
        return Needed(0 if enough else None, steadier)
    draws = len(first.tokens_drawn)
    more = _more_texts(texts, of_texts, left, level, draws)
    if more is not None:
        return Needed(more, steadier)
    more = _more_texts(texts, of_texts, left, level, MOST_DRAWS)
    if more is None:
        return Needed(HOPELESS_FACTOR * texts, steadier, hopeless=True)
    return Needed(more, steadier, draws=ceil(1 / expanded_tail(texts + more, level)))


def _widened(texts: int, level: float) -> float:
    """How many times the variance of a normal interval the expanded one of so few texts allows for."""
    normal = NormalDist()
    few = normal.inv_cdf(max(expanded_tail(texts, level), 1e-300))
    return (few / normal.inv_cdf((1 + level) / 2)) ** 2


def _more_texts(
    texts: int, variance: float, allowed: float, level: float, draws: int
) -> int | None:
    """How many more texts put an interval above 1 and its bounds within the resamples.

    Args:
        texts: that there are.
        variance: that they leave.
        allowed: the one that a normal interval allows.
        level: of the interval.
        draws: resamples.

    Returns:
        None if it is more than anybody would record.
    """

    def enough(number: int) -> bool:
        if not _within(number, draws, level):
            return False
        return number * allowed * (1 + 1e-12) >= texts * variance * _widened(number, level)

    numbers = range(texts, texts * (1 + HOPELESS_FACTOR) + 1)
    index = bisect_left(numbers, True, key=enough)
    return None if index == len(numbers) else index


def _together(needs: Sequence[Needed]) -> Needed:
    """What decides between several; those that nothing decides between are left out, unless all are."""
    some = [one for one in needs if not one.hopeless]
    if not some:
        return needs[0]
    numbers = [one.texts for one in some]
    texts = None if None in numbers else max(one for one in numbers if one is not None)
    return Needed(texts, max(one.steadier for one in some), draws=max(one.draws for one in some))


def _name(choice: Choice, first: Choice) -> str:
    """What one of those compared is called: its kind; with trace and law if `first` is of that kind."""
    rival = choice is not first and choice.kind == first.kind
    return f"{choice.kind} ({_origin(choice)})" if rival else choice.kind


def _origin(choice: Choice) -> str:
    return ", ".join(name for name in (choice.source, choice.law) if name)


def _the(choice: Choice) -> str:
    """The shape in words, with what it is drawn by."""
    return choice.label if choice.kind == "plain" else f"the {choice.label} ({_origin(choice)})"


def _best(choice: Choice) -> str:
    """The best shape of a kind, in words."""
    return f"the best {WORDS[choice.kind]} ({choice.label})"


def _listed(parts: Sequence[str]) -> str:
    """Parts of a sentence, with commas and an `and`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts)


def _sentence(text: str) -> str:
    """With a capital letter at its beginning, and names in it as they are."""
    return text[:1].upper() + text[1:]


def _said(value: Interval) -> str:
    return value.text(in_sentence=True)
