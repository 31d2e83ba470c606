"""Shared by all commands: exit codes, arguments, consoles, and messages in place of tracebacks."""

import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from glob import escape, glob
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from treespec.errors import TreespecError, in_words, text_of, visible
from treespec.experiments.cli.completion import complete_override
from treespec.experiments.errors import DISK_FULL

if TYPE_CHECKING:
    from rich.console import Console

    from treespec.experiments.config.schema import Config


PIPED_WIDTH = 120

DEFECT = (
    "treespec stopped at an error that it should have handled: a bug in treespec, whatever the input. "
    "Please report it as an issue in its repository, with this command"
)

FULL = "finished results are kept, nothing half written: free some space, then run the same command again"

USER_ERROR = 2
FAILED = 1
INTERRUPTED = 130
UNREAD = 141
"""The reader of our output has closed it, as `head` does: what shells report of such programs."""

CONFIGS = Path(__file__).parents[1] / "configs"


def complete_config(incomplete: str) -> list[str]:
    """Shipped configs and YAML files whose names begin with this text, for shell completion."""
    shipped = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    files = sorted(path for end in ("yaml", "yml") for path in glob(f"{escape(incomplete)}*.{end}"))
    return [*(name for name in shipped if name.startswith(incomplete)), *files]


def _inputs(context: typer.Context, overrides: list[str] | None) -> list[str] | None:
    """The callback of overrides: check the config and the paths in them before a command's slow imports."""
    if "config" in context.params and not context.resilient_parsing:
        with friendly("--debug" in sys.argv):
            from treespec.experiments.config.file import read_data
            from treespec.experiments.config.places import require_inputs

            config = context.params["config"]
            require_inputs(read_data(config, overrides or ())[1], before=read_data(config)[1])
    return overrides


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
        help="Override keys: models.dtype=float32 methods.3.shape=kary:2x3.",
        autocompletion=complete_override,
        callback=_inputs,
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="A Python file that registers parts named in the config (docs/plugins.md); repeatable.",
    ),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print no progress and no table.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print only one JSON object; progress goes to stderr. null means not available.",
    ),
]

ExecutorName = Annotated[
    Literal["process", "local", "slurm"],
    typer.Option(
        "--executor",
        help="process: one by one in this process; local: worker processes; slurm: a cluster.",
    ),
]
Workers = Annotated[
    int | None, typer.Option("--workers", help="Jobs in parallel; for local, 1 by default.")
]
SlurmOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm",
        metavar="KEY=VALUE",
        help="An option of sbatch, such as partition=gpu; repeatable.",
    ),
]


def load(
    config: str,
    overrides: list[str] | None,
    plugins: list[Path] | None = None,
    manifest: Path | None = None,
) -> "Config":
    """Load the config and plug-ins of a command that runs models, and silence transformers."""
    from treespec.experiments.config.file import load_config
    from treespec.experiments.config.plugged import plug_in
    from treespec.experiments.run.models import calm_transformers

    calm_transformers()
    plug_in(plugins or (), manifest)
    return load_config(config, overrides or ())


def progress(quiet: bool) -> "Console | None":
    """The console for progress (stderr); None if `quiet`."""
    from rich.console import Console

    return None if quiet else Console(stderr=True)


def working(text: str) -> AbstractContextManager[object]:
    """Show a spinner with this text while a step of some seconds runs, on terminals only."""
    console = progress(quiet=False)
    return console.status(f"{text} ...") if console and console.is_terminal else nullcontext()


def output() -> "Console":
    """The console for tables (stdout)."""
    from rich.console import Console

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=PIPED_WIDTH if piped else None)


@contextmanager
def friendly(debug: bool, interrupted: str = "interrupted") -> Iterator[None]:
    """Turn exceptions into one clear message and an exit code."""
    try:
        yield
    except (typer.Exit, BrokenPipeError):  # BrokenPipeError: the reader closed our output
        raise
    except KeyboardInterrupt:
        complain(interrupted)
        raise typer.Exit(INTERRUPTED) from None
    except BaseException as error:  # SystemExit too: a plug-in that ends the program is an error
        if isinstance(error.__context__, BrokenPipeError):  # rich ends the program then
            raise
        raise typer.Exit(answer(error, debug)) from None


def answer(error: BaseException, debug: bool = False) -> int:
    """Say in one message what went wrong, and return the exit code."""
    if debug:
        complain(traceback.format_exc())
    message, code = _message_and_code(error, debug)
    complain(f"error: {message}")
    return code


def option_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def complain(text: str) -> None:
    with suppress(OSError):  # a closed or full stderr: the exit code still says it
        print(visible(text), file=sys.stderr)


def echo(text: str, *, nl: bool = True) -> None:
    """Print to stdout, without control characters of files and names."""
    typer.echo(visible(text), nl=nl)


def _message_and_code(error: BaseException, debug: bool) -> tuple[str, int]:
    if isinstance(error, TreespecError):
        return text_of(error), USER_ERROR
    if isinstance(error, OSError):
        where = error.filename or ("standard output" if fails(sys.stdout) else "")
        message = f"{where}: " * bool(where) + (error.strerror or text_of(error))
        if error.errno in DISK_FULL:
            return f"{message}; {FULL}", FAILED
        return message, USER_ERROR
    if isinstance(error, UnicodeEncodeError):
        return f"{error}: set PYTHONUTF8=1, or repair the text", USER_ERROR
    if not isinstance(error, Exception):
        return in_words(error, "a plug-in or model that this command ran"), USER_ERROR
    if isinstance(error, MemoryError):
        return "out of memory: use smaller models, trees or files", FAILED
    return f"{DEFECT} and {'the traceback above' if debug else 'what --debug shows'}", FAILED


def yaml_or_name(option: str, text: str | None) -> Any:
    """What an option names: YAML in braces, or else the text itself."""
    if text is None or not text.lstrip().startswith("{"):
        return text and text.strip()
    from treespec.errors import Unreadable
    from treespec.experiments.errors import ConfigError
    from treespec.files import parse_yaml

    try:
        return parse_yaml(text)
    except Unreadable as error:
        raise ConfigError(f"{option} is not YAML: {error}") from None


def fails(stream: IO[str]) -> bool:
    """Whether a stream still has text that it cannot write."""
    try:
        stream.flush()
    except OSError:
        return True
    return False


JSON_VERSION = 2


def json_text(data: Mapping[str, Any]) -> str:
    """What a command prints with `--json`: one object with stable keys.

    Every object has a `version`, which changes if a key is removed or changes its meaning; new keys may be
    added without a new version. NaN and infinities are null. Intervals are `{"estimate", "low", "high"}`.

        report, run   folder, name, finished, report, samplings: [{sampling, baseline, prompts, attempted,
                      failed, verdict, comparisons: [{left, right, ratio, prompts, winner}],
                      methods: [{method, kind, group, law, rule, parents, lossless, tokens_per_step,
                      tokens_per_second, speedup, ...}]}]; run also: already_finished, failures
        run --dry-run  folder, name, prompts, samplings, units, until, finished_units, already_finished,
                      seconds, basis, methods: [{method, sampling, nodes, depth, law, rule,
                      waits_for_search, seconds_per_text}]
        check-lossless  passed, verdict, laws, greedy, config, ...: as in the check.json of --out
        search        shape, expected_tokens, chain, format; with --latency: verdict, rows, ...
        replay        rows: one for each trace and tree
        estimate      see `treespec.experiments.measure.estimate`
        diff          the fields of `treespec.experiments.report.diff.RunDiff`
        sweep         folder, jobs: [{job, state, errors, error, attempts}], rows: of summary.parquet, notes
        configs       configs: [{name, path, about}]; of one config: path, config
        models list   models: [{name, wheel, megabytes, folder: where it is, or null}]
        generate      text, ids, tokens, accepted, steps, tokens_per_step, tokens_per_second, prefill_s,
                      method, law, rule, sampling
        draft check   contract, warning: a sentence or null, rows: [{conventions, keys, right: shares of
                      steps by depth, tokens_per_step, steps}], the stated conventions first
        train data    folder, recipe, texts, tokens, answer_tokens, greedy_texts, invented_prompts, batches,
                      dropped, leaks, distinct_4_grams, openings: [{text, texts}]
        datastore     file, bytes, texts, tokens, vocab_size, tokenizer, sorted_by
        doctor        ok, facts, tests, speeds, said
    """
    from treespec.experiments.records.plain_data import plain_data

    return json.dumps({"version": JSON_VERSION} | plain_data(data), indent=1)
