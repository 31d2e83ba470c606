"""Files and numbers that are given on the command line, looked at before anything runs."""

from pathlib import Path

from experiments.errors import ConfigError
from treespec.reading import brief

__all__ = ["is_file", "is_there", "require_at_most", "require_new"]


def is_file(text: str) -> bool:
    """Whether a text that may also be a tree or rates is the name of a file."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a null in it
        return False


def is_there(text: str) -> bool:
    """Whether a text that may also be a tree or rates is the name of a file, folder, device or pipe."""
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def require_at_most(name: str, value: int, most: int) -> None:
    """Refuse a number that would run out of memory or time before anything useful happens.

    Raises:
        ConfigError: naming it.
    """
    if value > most:
        raise ConfigError(f"{name} = {brief(value, 60)}: must be at most {most:,}")


def require_new(out: Path) -> None:
    """Refuse, before anything is measured, a file that is there already or cannot be made.

    Raises:
        ConfigError: naming it.
    """
    if out.exists():
        raise ConfigError(f"--out {out} is there already: name another file")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")
