"""The rows of a ranking: a shape's tokens, time and speed, as estimated and under every resample."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float

from treespec.search.intervals import Interval
from treespec.tree.shape import TreeShape

Kind: TypeAlias = Literal["tree", "chain", "growth", "plain"]
Basis: TypeAlias = Literal["", "replay", "other texts"]
"""The origin of a shape's tokens: rates ("", also for plain decoding, which needs none), its own replay on
all texts of a trace, or the replay of shapes chosen on the other half of the texts."""


@dataclass(frozen=True, eq=False)
class Speed:
    """Tokens and time of a step, as estimated and under every resample.

    Args:
        tokens: expected tokens per step.
        seconds: seconds per step.
        tokens_drawn, seconds_drawn: tokens and seconds under each resample.
        texts: number of resampled texts, where it is known.
    """

    tokens: float
    seconds: float
    tokens_drawn: Float[np.ndarray, "draws"]
    seconds_drawn: Float[np.ndarray, "draws"]
    texts: int | None = None

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    @property
    def rate_drawn(self) -> Float[np.ndarray, "draws"]:
        """Tokens per second under the resamples."""
        return self.tokens_drawn / self.seconds_drawn

    def over(self, other: "Speed", level: float) -> Interval:
        """The ratio of the two speeds; both are resampled together."""
        texts = min((speed.texts for speed in (self, other) if speed.texts), default=None)
        return bounds(self.rate / other.rate, self.rate_drawn / other.rate_drawn, level, texts)


def with_sure(name: str, sure: float | None) -> str:
    """The name of a tree, with the share of its replayed steps that are sure, unless all are.

    `sure` is the share of steps proved to be those of a live run; None for a tree that does not grow.
    """
    return name if sure is None or sure == 1 else f"{name} ({sure:.1%} of steps sure)"


@dataclass(frozen=True, eq=False)
class Growing:
    """Description of a tree that grows by the draft's probabilities on each text.

    Args:
        name: name of the growth, with its settings.
        config: the growth as a config spells it.
        nodes: nodes verified per step on average, the root included.
        depth: maximum number of edges of a tree.
        sure: share of its replayed steps that are proved to be those of a live run.
    """

    name: str
    config: Mapping[str, Any]
    nodes: float
    depth: int
    sure: float

    def __str__(self) -> str:
        return with_sure(self.name, self.sure)


@dataclass(frozen=True, eq=False)
class Choice:
    """One row of a ranking.

    Args:
        shape: the topology; the root alone for a tree that grows, whose topology changes with each step.
        law: how children are drawn; for plain decoding, the law whose sampling settings it has.
        speed: its tokens and time of a step, of each text.
        source: name of its trace, if there are several; otherwise empty.
        basis: origin of its tokens.
        growth: description of a tree that grows; None for other shapes.
        plain: the plain decoding that it is compared with.
        batch: number of texts decoded at once.
        level: confidence level of its intervals.
        doubts: why it is not advised, however fast it is predicted to be; empty if nothing is against it.
    """

    shape: TreeShape
    law: str
    speed: Speed = field(repr=False)
    source: str = ""
    basis: Basis = ""
    growth: Growing | None = None
    plain: Speed | None = field(default=None, repr=False)
    batch: int = 1
    level: float = 0.95
    doubts: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """A tree, a chain, a tree that grows, or plain decoding (the root alone)."""
        if self.growth is not None:
            return "growth"
        return "plain" if self.shape.size == 1 else "chain" if self.shape.is_chain else "tree"

    @property
    def group(self) -> tuple[Kind, str, str]:
        """Shapes of one kind, source and law are alternatives, of which the first one was chosen."""
        return self.kind, self.source, self.law

    @cached_property
    def tokens_per_step(self) -> Interval:
        """Expected tokens per step of each text."""
        speed = self.speed
        return bounds(speed.tokens, speed.tokens_drawn, self.level, speed.texts)

    @cached_property
    def step_s(self) -> Interval:
        """Seconds per step."""
        return bounds(self.speed.seconds, self.speed.seconds_drawn, self.level)

    @cached_property
    def tokens_per_s(self) -> Interval:
        """Tokens per second of all texts of the batch together."""
        speed = self.speed
        return bounds(speed.rate, speed.rate_drawn, self.level, speed.texts).scaled(self.batch)

    @cached_property
    def speedup(self) -> Interval:
        """Speed over that of plain decoding."""
        return self.speed.over(self.plain or self.speed, self.level)

    @property
    def size(self) -> int:
        """Nodes, the root included; 1 for a tree that grows."""
        return self.shape.size

    @property
    def nodes(self) -> float:
        """Nodes that a step verifies; for a tree that grows, their mean."""
        return self.size if self.growth is None else self.growth.nodes

    @property
    def depth(self) -> int:
        """Edges between the root and the deepest node; for a tree that grows, their maximum."""
        return self.shape.depth if self.growth is None else self.growth.depth

    @property
    def label(self) -> str:
        """The shape in words."""
        if self.growth is not None:
            return str(self.growth)
        if self.kind == "plain":
            return "plain decoding"
        if self.kind == "chain":
            return f"chain of {self.depth}"
        return f"tree of {self.size} nodes, {self.depth} deep"


def bounds(
    estimate: float, drawn: Float[np.ndarray, "draws"], level: float, texts: int | None = None
) -> Interval:
    """The interval of a positive estimate from its resamples, of this number of texts if it is known.

    It is normal in the logarithm.
    """
    wide = float(np.exp(min(quantile(level, texts) * np.log(drawn).std(), 700.0)))
    return Interval(float(estimate), float(estimate) / wide, float(estimate) * wide)


def quantile(level: float, texts: int | None) -> float:
    """Half the width of an interval in standard deviations of resamples.

    With a number of resampled texts, Student's quantile of these replaces the normal one, so that two texts
    that agree by chance decide nothing.
    """
    from scipy.special import ndtri, stdtrit

    tail = (1 + level) / 2
    if texts is None:
        return float(ndtri(tail))
    return float(stdtrit(texts - 1, tail) * np.sqrt(texts / (texts - 1)))
