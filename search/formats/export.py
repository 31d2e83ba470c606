"""What an exporter returns, and what the table of formats holds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from treespec.shape import TreeShape

__all__ = ["NUMBERING", "Export", "Format", "numbering"]

NUMBERING = "the numbering of the nodes: the format numbers them level by level"


@dataclass(frozen=True)
class Export:
    """A shape in the words of another tool, and what these words leave out.

    Attributes:
        content: what is written to a file: text, or bytes where the format is binary.
        counts_root: whether the sizes and node numbers in it count the root (the last committed token).
        lost: what of *this* shape cannot be read back, a sentence each; empty if nothing is lost.
        notes: what a user must know besides: versions, limits, settings that go with it.
        value: the same as an object: a list, a dictionary, tensors, a graph.

    Example:
        >>> print(Export("[[0]]", counts_root=False).report())
        Nothing is lost. The root is not counted.
    """

    content: str | bytes
    counts_root: bool
    lost: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    value: Any = field(default=None, compare=False)

    def report(self) -> str:
        """The losses, whether the root is counted, and the notes, as lines of text."""
        lines = [f"Lost: {loss}." for loss in self.lost] or ["Nothing is lost."]
        lines[-1] += f" The root is {'' if self.counts_root else 'not '}counted."
        return "\n".join([*lines, *(f"Note: {note}." for note in self.notes)])


class Format(NamedTuple):
    """A row of the table of formats.

    Attributes:
        load: from text, bytes or objects of the other tool to a shape.
        dump: from a shape to an `Export`.
        counts_root: whether sizes and node numbers count the root.
        loses: what a dump may lose, whatever the shape; `Export.lost` says it of one shape.
        about: one line for people.
    """

    load: Callable[[Any], TreeShape]
    dump: Callable[[TreeShape], Export]
    counts_root: bool
    loses: tuple[str, ...]
    about: str


def numbering(shape: TreeShape) -> tuple[str, ...]:
    """The loss of a format that numbers nodes level by level: none if the shape does so too.

    Nodes are in that order, siblings in index order, exactly when no parent is smaller than the one
    before it.
    """
    return () if tuple(sorted(shape.parents)) == shape.parents else (NUMBERING,)
