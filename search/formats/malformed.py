"""Errors of tree files. Every message says where, what was given and what is allowed."""

from treespec.errors import InvalidTree, TreespecError


class FormatError(TreespecError, ValueError):
    """Base class of all errors about the formats of other tools."""


class UnknownFormat(FormatError):
    """An unknown name of a format, or an input whose format is ambiguous."""


class MalformedTree(FormatError, InvalidTree):
    """An input that does not conform to its format, or is not a tree."""


class NoShape(FormatError):
    """Settings that are valid for their engine, but do not determine a shape."""


class NotExportable(FormatError):
    """A shape that a format cannot express."""
