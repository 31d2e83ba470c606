"""Errors of measured times. Every message says what was given and the way out."""

from treespec.search.errors import SearchError


class InvalidLatency(SearchError):
    """Invalid times, or a file of times that cannot be read."""


class NotMeasured(SearchError):
    """A size, prefix, batch or law that the times do not cover; nothing is extrapolated."""
