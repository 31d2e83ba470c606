"""What a user can get wrong around a run. Each ends the command with one message and exit code 2."""

from treespec.errors import TreespecError

__all__ = [
    "ConfigError",
    "ForeignFolder",
    "NoFinishedPrompt",
    "NotWritten",
    "PromptError",
    "RunFolderError",
    "RunNotWritten",
]


class ConfigError(TreespecError, ValueError):
    """A config that cannot be run: the message names the file and the path in it."""


class PromptError(TreespecError, ValueError):
    """A prompt source that cannot be read, or a prompt that cannot be decoded."""


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
