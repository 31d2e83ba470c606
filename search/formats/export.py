"""The result of an exporter, and the rows of the table of formats."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from treespec.tree.shape import TreeShape

NUMBERING = "the numbering of the nodes: the format numbers them level by level"


@dataclass(frozen=True)
class Export:
    """A shape in the format of another tool, and what the format cannot express.

    Attributes:
        content: the content of a file: text, or bytes if the format is binary.
        counts_root: whether its sizes and node numbers count the root (the last committed token).
        lost: sentences on properties of *this* shape that cannot be read back; empty if nothing is lost.
        notes: further sentences for users, on versions, limits and settings that belong to it.
        value: the content as an object: a list, a dictionary, tensors, a graph.

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
        load: converts text, bytes or objects of the other tool to a shape.
        dump: converts a shape to an `Export`.
        counts_root: whether sizes and node numbers count the root.
        loses: properties that a dump may lose; `Export.lost` names those of a given shape.
        about: one-line description for users.
    """

    load: Callable[[Any], TreeShape]
    dump: Callable[[TreeShape], Export]
    counts_root: bool
    loses: tuple[str, ...]
    about: str


def numbering(shape: TreeShape) -> tuple[str, ...]:
    """The loss of a format that numbers nodes level by level; none if the shape is numbered like this, too.

    It is so numbered, with siblings in index order, exactly if the parent array is non-decreasing.
    """
    return () if tuple(sorted(shape.parents)) == shape.parents else (NUMBERING,)
