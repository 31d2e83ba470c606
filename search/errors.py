"""What can be wrong with a search for a tree. Every message says what was given and the way out."""

from treespec.errors import TreespecError

__all__ = ["InfeasibleTree", "InvalidAcceptance", "InvalidLimit", "SearchError"]


class SearchError(TreespecError, ValueError):
    """Base class of all errors that `search` raises on purpose."""


class InvalidAcceptance(SearchError):
    """Acceptance rates that are no probabilities, or do not cover the tree that they are asked about."""


class InvalidLimit(SearchError):
    """A size, depth, branching or other setting that is out of range or beyond the known rates."""


class InfeasibleTree(SearchError):
    """A size that no tree within the given depth and branching has."""
