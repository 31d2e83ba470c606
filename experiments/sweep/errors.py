"""What can go wrong around a sweep. Each ends the command with one message and exit code 2."""

from treespec.errors import TreespecError

__all__ = ["SweepError", "VersionsDiffer"]


class SweepError(TreespecError, OSError):
    """A sweep folder of another config, in use, or damaged; workers that cannot be had."""


class VersionsDiffer(SweepError):
    """A worker runs other code or packages than the sweep was planned with."""
