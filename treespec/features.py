"""What a drafter reads of the target's passes, besides logits. The project's one convention of counting.

A target of L layers has L + 1 *boundaries*: boundary i is the input of layer i. So boundary 0 is the
output of the embeddings, boundary i the output of the i-th layer (counted from 1), and boundary L the
output of the last layer *before* the final norm. "post" is the state after this norm, which the head reads.
Formats that count otherwise (by the layer whose output is meant, or by an index into `hidden_states` of
transformers, whose last entry is after the norm) are translated where they are read.

A drafter states `reads = Features(...)`. `decode` tells the target once, before the prefill; from then on
every pass returns these features, `[T, F, H]`: for each of its T tokens the boundaries in the order in
which they were asked for, and then the final state. Whoever asks for nothing pays nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from treespec.checks import instance, integer, sequence
from treespec.errors import InvalidArgument, UnsupportedModel

__all__ = ["Features", "LendsFeatures", "ReadsFeatures", "lend", "prefill", "reads_of"]


@dataclass(frozen=True)
class Features:
    """Hidden states and rows of the target that a drafter reads.

    Args:
        boundaries: boundaries in the order in which the drafter reads them; see the module.
        final: "post" for the state after the final norm, which is always the last feature.
        cache: number of first layers whose cached rows the drafter reads. They are no features: the
            drafter reads them in the cache of the target that it is bound to (`ReadsTarget.bind_target`).

    Raises:
        InvalidArgument: if a boundary is not an integer of at least 0 or is repeated, `final` is unknown,
            or `cache` is not an integer of at least 0.

    Example:
        >>> (Features((2, 15), "post") | Features((15, 27))).boundaries
        (2, 15, 27)
    """

    boundaries: tuple[int, ...] = ()
    final: Literal["post"] | None = None
    cache: int = 0

    def __post_init__(self) -> None:
        given = sequence("boundaries", self.boundaries, "boundaries of layers")
        boundaries = tuple(integer(f"boundaries[{i}]", b, least=0) for i, b in enumerate(given))
        repeated = next((b for i, b in enumerate(boundaries) if b in boundaries[:i]), None)
        if repeated is not None:
            raise InvalidArgument(f"boundaries = {boundaries} has {repeated} twice: name each once")
        if self.final not in (None, "post"):
            raise InvalidArgument(
                f"final = {self.final!r}, but must be 'post' (after the final norm) or None; the state "
                "before the final norm is the last boundary"
            )
        object.__setattr__(self, "boundaries", boundaries)
        object.__setattr__(self, "cache", integer("cache", self.cache, least=0))

    @property
    def states(self) -> tuple[int | Literal["post"], ...]:
        """The features in their order, F in number."""
        return self.boundaries if self.final is None else (*self.boundaries, self.final)

    def __or__(self, other: "Features") -> "Features":
        """What serves both: these boundaries, then those of the other that are not among them."""
        further = (b for b in other.boundaries if b not in self.boundaries)
        return Features(
            (*self.boundaries, *further), self.final or other.final, max(self.cache, other.cache)
        )

    def part(
        self, features: Float[Tensor, "T F H"] | None, reads: "Features"
    ) -> Float[Tensor, "T P H"] | None:
        """Of these features, those that a part of the drafter reads; None if it reads none.

        Args:
            features: features of some tokens.
            reads: a part of what is read here.

        Raises:
            InvalidArgument: if there are no features, but the part reads some.
        """
        if not reads.states:
            return None
        if features is None:
            raise InvalidArgument(
                f"the drafter reads features {reads.states} of the target, but was given none: decode with "
                "a target that lends them, and call prefill(tokens, features)"
            )
        if reads.states == self.states:
            return features
        return features[:, [self.states.index(state) for state in reads.states]]


@runtime_checkable
class ReadsFeatures(Protocol):
    """A drafter that reads features.

    In `commit`, `step.features` holds those of the step's tokens but the bonus.
    """

    @property
    def reads(self) -> Features:
        """What it reads; constant."""

    def prefill(self, tokens: Int[Tensor, "T"], features: Float[Tensor, "T-1 F H"], /) -> None:
        """Start over on a prompt, with the features of all its tokens but the last, the first root.

        Called without `features` if `reads` has no boundary and no final state.
        """


@runtime_checkable
class LendsFeatures(Protocol):
    """A target, or a model that runs trees, whose passes can return features."""

    def lend(self, reads: Features) -> None:
        """From the next `prefill` on, return these features with every pass.

        Raises:
            InvalidArgument: if the model does not have such a boundary.
            UnsupportedModel: if the features of this model cannot be had.
        """


def reads_of(drafter: Any) -> Features:
    """What a drafter reads: nothing if it does not say.

    Raises:
        InvalidArgument: if `reads` is not a `Features`.
    """
    reads = getattr(drafter, "reads", None)
    if reads is None:
        return Features()
    instance(f"`reads` of {type(drafter).__name__}", reads, Features, "a Features")
    return reads


def lend(owner: Any, reads: Features) -> None:
    """Let a target or a model lend what is read; one that cannot lend may lend nothing.

    Raises:
        InvalidArgument, UnsupportedModel: see `LendsFeatures.lend`; also if the owner cannot lend.
    """
    if isinstance(owner, LendsFeatures):
        owner.lend(reads)
    elif reads.states:
        raise UnsupportedModel(
            f"the drafter reads features {reads.states} of the target, but {type(owner).__name__} cannot "
            "lend any: it has no method 'lend'"
        )


def prefill(
    drafter: Any,
    tokens: Int[Tensor, "T"],
    features: Float[Tensor, "P F H"] | None,
    lent: Features,
) -> None:
    """Start a drafter on a prompt, with its own part of the features if it reads any.

    Args:
        drafter: the drafter.
        tokens: the prompt.
        features: those of all tokens but the last; None if none were lent.
        lent: what these features are.
    """
    own = lent.part(features, reads_of(drafter))
    if own is None:
        drafter.prefill(tokens)
    else:
        drafter.prefill(tokens, own)


def united(drafters: Sequence[Any]) -> Features:
    """What several drafters read together.

    Raises:
        InvalidArgument: see `reads_of`.
    """
    reads = Features()
    for drafter in drafters:
        reads |= reads_of(drafter)
    return reads
