"""Errors of the search for a tree. Every message says what was given and the way out."""

from treespec.errors import TreespecError


class SearchError(TreespecError, ValueError):
    """Base class of all errors that `search` raises deliberately."""


class InvalidAcceptance(SearchError):
    """Acceptance rates that are not probabilities, or do not cover the requested tree."""


class InvalidLimit(SearchError):
    """A size, depth, branching or other setting that is out of range or not covered by the rates."""


class InfeasibleTree(SearchError):
    """A size that no tree within the given depth and branching can have."""


class InvalidTrace(SearchError):
    """A trace or record of decoding that is damaged, or does not cover what was requested."""


class InvalidCalibration(SearchError):
    """Predictions and outcomes that cannot be calibrated, or an invalid calibration map."""


class InvalidGrowth(SearchError):
    """A growth policy's setting that is out of range, or times or a calibration that it cannot use."""


class InvalidLatency(SearchError):
    """Invalid times, or a file of times that cannot be read."""


class NotMeasured(SearchError):
    """A size, prefix, batch or law that the times do not cover; nothing is extrapolated."""


class SmallSample(UserWarning):
    """Too little was recorded for what is estimated from it; the message gives the numbers."""
