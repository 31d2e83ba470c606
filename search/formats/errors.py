"""What can go wrong with tree files. Every message says where, what was given and what is allowed."""

from treespec.errors import InvalidTree, TreespecError

__all__ = ["FormatError", "MalformedTree", "NoShape", "NotExportable", "UnknownFormat"]


class FormatError(TreespecError, ValueError):
    """Base class of all errors about formats of other tools."""


class UnknownFormat(FormatError):
    """A format name that is not in the table, or an input that could be of several formats."""


class MalformedTree(FormatError, InvalidTree):
    """An input that is not what its format says, or no tree."""


class NoShape(FormatError):
    """Settings that their engine takes, but from which no shape follows."""


class NotExportable(FormatError):
    """A shape that a format has no words for."""
