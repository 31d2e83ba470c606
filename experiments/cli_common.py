"""What all commands share: exit codes, messages instead of tracebacks, consoles."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "USER_ERROR",
    "ConfigArgument",
    "Debug",
    "Overrides",
    "Quiet",
    "calm_transformers",
    "complain",
    "friendly",
    "output",
    "progress",
]

PIPED_WIDTH = 120
"""Columns of a table that goes to a file or a pipe."""

USER_ERROR = 2
FAILED = 1
INTERRUPTED = 130

ConfigArgument = Annotated[
    str, typer.Argument(help="A YAML file, or the name of a shipped config.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Such as models.dtype=float32 seed=1."),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No progress, no table.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def progress(quiet: bool) -> "Console | None":
    """Where progress is shown."""
    from rich.console import Console

    return None if quiet else Console(stderr=True)


def output() -> "Console":
    """Where tables are printed."""
    from rich.console import Console

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=PIPED_WIDTH if piped else None)


def calm_transformers() -> None:
    """No progress bars and advice of transformers between ours."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@contextmanager
def friendly(debug: bool) -> Iterator[None]:
    """One clear message instead of a traceback; `--debug` shows the traceback too."""
    from treespec.errors import TreespecError

    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        complain("interrupted; `treespec run` goes on where it stopped")
        raise typer.Exit(INTERRUPTED) from None
    except TreespecError as error:
        if debug:
            traceback.print_exc()
        complain(f"error: {error}")
        raise typer.Exit(USER_ERROR) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        hint = "" if debug else " (--debug shows where)"
        complain(f"error: {type(error).__name__}: {error}{hint}")
        raise typer.Exit(FAILED) from None


def complain(text: str) -> None:
    """Say what is wrong, beside what is printed."""
    print(text, file=sys.stderr)
