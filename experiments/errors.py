"""What a user can get wrong around runs and sweeps. Each ends a command with one message, exit code 2."""

import errno

from treespec.errors import TreespecError


class ConfigError(TreespecError, ValueError):
    """A config that cannot be run: the message names the file and the path in it."""


class PromptError(TreespecError, ValueError):
    """A prompt source that cannot be read, or a prompt that cannot be decoded."""


class TooFewPrompts(PromptError):
    """A prompt source with fewer prompts than are asked for.

    Args:
        message: what is said.
        present: prompts that it has.
        source: its path.
    """

    def __init__(self, message: str, present: int, source: str) -> None:
        super().__init__(message)
        self.present, self.source = present, source


class TrainingError(TreespecError, RuntimeError):
    """A draft cannot be trained, or not on."""


class RunFolderError(TreespecError, OSError):
    """A run folder of another config, in use, or damaged."""


class NoFinishedPrompt(RunFolderError):
    """A run folder that is in order, but has nothing to report."""


class ForeignFolder(RunFolderError):
    """A folder that is not ours, or holds files of others where a run writes: nothing is written there."""


class NotWritten(TreespecError, OSError):
    """A folder that cannot be written now. What is in it stays, and the same command goes on."""


class RunNotWritten(RunFolderError, NotWritten):
    """A run folder that cannot be written now."""


class SweepError(TreespecError, OSError):
    """A sweep folder of another config, in use, or damaged; workers that cannot be had."""


class SweepNotWritten(SweepError, NotWritten):
    """A sweep's folder that cannot be written now."""


class VersionsDiffer(SweepError):
    """A worker runs other code or packages than the sweep was planned with."""


DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of such errors."""
