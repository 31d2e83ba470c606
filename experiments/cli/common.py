"""What all commands share: exit codes, messages instead of tracebacks, consoles."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from glob import escape, glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treespec.experiments.cli.completion import complete_override

if TYPE_CHECKING:
    from rich.console import Console

    from treespec.experiments.config.schema import Config

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "USER_ERROR",
    "AsJson",
    "ConfigArgument",
    "Debug",
    "Overrides",
    "Plugins",
    "Quiet",
    "complain",
    "complete_config",
    "friendly",
    "load",
    "option_of",
    "output",
    "progress",
    "working",
]

PIPED_WIDTH = 120
"""Columns of a table that goes to a file or a pipe."""

DEFECT = (
    "treespec stopped at something that it should have caught: a defect of treespec, whatever the input. "
    "Please report it as an issue of its repository, with this command"
)
"""Message for an error that no code expects."""

FULL = "what was finished before is kept: make room, then run the same command again"
"""Added to the message where the disk is full."""

USER_ERROR = 2
FAILED = 1
INTERRUPTED = 130

CONFIGS = Path(__file__).parents[1] / "configs"


def complete_config(incomplete: str) -> list[str]:
    """Shipped configs and YAML files whose names begin like this, for the completion of the shell."""
    shipped = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    files = sorted(path for end in ("yaml", "yml") for path in glob(f"{escape(incomplete)}*.{end}"))
    return [*(name for name in shipped if name.startswith(incomplete)), *files]


ConfigArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="A YAML file, or the name of a shipped config (`treespec configs`).",
        autocompletion=complete_config,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Such as models.dtype=float32 methods.3.shape=kary:2x3.",
        autocompletion=complete_override,
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="A Python file that registers parts which the config names (docs/plugins.md); repeatable.",
    ),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No progress, no table.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON object and nothing else; progress goes to stderr. Null: not available.",
    ),
]


def load(
    config: str,
    overrides: list[str] | None,
    plugins: list[Path] | None = None,
    manifest: Path | None = None,
) -> "Config":
    """The config of a command that runs models, which are kept from printing.

    Args:
        config: its file or name.
        overrides: of it.
        plugins: whose parts it may name.
        manifest: of a run that may go on, whose plug-ins are taken if none is given.
    """
    from treespec.experiments.config.file import load_config
    from treespec.experiments.config.plugged import plug_in
    from treespec.experiments.run.models import calm_transformers

    calm_transformers()
    plug_in(plugins or (), manifest)
    return load_config(config, overrides or ())


def progress(quiet: bool) -> "Console | None":
    """Where progress is shown."""
    from rich.console import Console

    return None if quiet else Console(stderr=True)


def working(text: str) -> AbstractContextManager[object]:
    """Says on a terminal that something of some seconds goes on; a file or a pipe has no use for it."""
    console = progress(quiet=False)
    return console.status(f"{text} ...") if console and console.is_terminal else nullcontext()


def output() -> "Console":
    """Where tables are printed."""
    from rich.console import Console

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=PIPED_WIDTH if piped else None)


@contextmanager
def friendly(debug: bool, interrupted: str = "interrupted") -> Iterator[None]:
    """One clear message instead of a traceback; `--debug` shows the traceback too.

    Args:
        debug: whether to show it.
        interrupted: the message after Ctrl-C.
    """
    try:
        yield
    except (typer.Exit, BrokenPipeError):  # the reader of our output has closed it
        raise
    except KeyboardInterrupt:
        complain(interrupted)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        said, code = _of_error(error, debug)
        complain(f"error: {said}")
        raise typer.Exit(code) from None


def option_of(name: str) -> str:
    """The option that sets an argument of this name."""
    return f"--{name.replace('_', '-')}"


def complain(text: str) -> None:
    """Print what is wrong to stderr."""
    print(text, file=sys.stderr)


def _of_error(error: Exception, debug: bool) -> tuple[str, int]:
    """The message for an error, and the exit code."""
    from treespec.errors import TreespecError
    from treespec.experiments.errors import DISK_FULL

    if isinstance(error, TreespecError):
        return str(error), USER_ERROR
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        said = f"{where}{error.strerror or error}"
        if error.errno in DISK_FULL:
            return f"{said}; {FULL}", FAILED
        return said, USER_ERROR
    if isinstance(error, MemoryError):
        return "out of memory: take smaller models, trees or files", FAILED
    return f"{DEFECT} and {'the traceback above' if debug else 'what --debug shows'}", FAILED
