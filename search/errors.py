"""What can be wrong with a search for a tree. Every message says what was given and the way out."""

from treespec.errors import TreespecError

__all__ = [
    "InfeasibleTree",
    "InvalidAcceptance",
    "InvalidCalibration",
    "InvalidGrowth",
    "InvalidLimit",
    "InvalidTrace",
    "SearchError",
    "SmallSample",
]


class SearchError(TreespecError, ValueError):
    """Base class of all errors that `search` raises on purpose."""


class InvalidAcceptance(SearchError):
    """Acceptance rates that are no probabilities, or do not cover the tree that they are asked about."""


class InvalidLimit(SearchError):
    """A size, depth, branching or other setting that is out of range or beyond the known rates."""


class InfeasibleTree(SearchError):
    """A size that no tree within the given depth and branching has."""


class InvalidTrace(SearchError):
    """A trace or a record of decoding that is damaged, or does not reach what is asked of it."""


class InvalidCalibration(SearchError):
    """Predictions and outcomes that no calibration follows from, or a map that is none."""


class InvalidGrowth(SearchError):
    """A setting of a growth policy that is out of range, or times or a calibration it cannot use."""


class SmallSample(UserWarning):
    """What was recorded is too little for what is estimated from it; the message has the numbers."""
