"""What can be asked of a model's passes, and what is said of those that it has."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["EAGER", "PASSES", "PassKind", "Passes"]

PassKind = Literal["eager", "compiled", "captured"]

PASSES = ("eager", "compiled", "captured", "auto")
"""What can be asked for."""


@dataclass(frozen=True)
class Passes:
    """How a model's passes over trees are run.

    Args:
        kind: "eager", operation by operation; "compiled", as one graph (`compiled_pass`); "captured", by
            replaying a CUDA graph (`treespec.target.graph`).
        asked: what was asked for; None if nothing was.
        why: why it is this kind, where that is not what was asked for.
        seconds: that compiling took.
        packed_bytes: what copies of weights in compiled graphs take, besides the model's own; one set
            serves all caches. A part of a model has only those that the model does not have.
        frozen: whether compiled graphs read packed copies of the weights.
        unpacked: why compiled graphs read the model's own weights, if they do.
    """

    kind: PassKind
    asked: str | None = None
    why: str | None = None
    seconds: float = 0.0
    packed_bytes: int = 0
    frozen: bool = False
    unpacked: str | None = None


EAGER = Passes("eager")
