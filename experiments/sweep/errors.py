"""What can go wrong around a sweep. Each ends the command with one message and exit code 2."""

from treespec.errors import TreespecError
from treespec.experiments.errors import NotWritten

__all__ = ["SweepError", "SweepNotWritten", "VersionsDiffer"]


class SweepError(TreespecError, OSError):
    """A sweep folder of another config, in use, or damaged; workers that cannot be had."""


class SweepNotWritten(SweepError, NotWritten):
    """A sweep's folder that cannot be written now."""


class VersionsDiffer(SweepError):
    """A worker runs other code or packages than the sweep was planned with."""
