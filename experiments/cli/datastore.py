"""`treespec datastore`: build or describe a datastore of texts for the draft source `retrieval`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from treespec.experiments.cli.common import (
    AsJson,
    Debug,
    Quiet,
    friendly,
    output,
    progress,
)
from treespec.experiments.cli.help import app, examples
from treespec.experiments.cli.json import json_text

_group = typer.Typer(no_args_is_help=True)
app.add_typer(
    _group,
    name="datastore",
    help="Build or describe a datastore for the source `retrieval`.",
    rich_help_panel="Trees",
    epilog=examples(
        "treespec datastore build python.datastore",
        "treespec datastore build docs.datastore docs README.md",
        "treespec datastore info python.datastore",
    ),
)

TEXTS = (".py", ".md", ".txt", ".rst", ".log")
"""Suffixes of the files to take from a given folder."""


@_group.command(
    "build",
    epilog=examples(
        "treespec datastore build python.datastore",
        "treespec datastore build docs.datastore docs README.md --model embedded",
    ),
)
def build_command(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")],
    texts: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[TEXTS]...",
            help=f"Files, and folders whose {', '.join(TEXTS)} files to take.  [the .py files of the "
            "installed packages]",
        ),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", help="The model whose tokenizer to use: a folder or hub id.")
    ] = "embedded",
    most: Annotated[
        int | None,
        typer.Option("--most-tokens", help="Maximum tokens to store; the rest is cut off."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Encode texts, sort all their suffixes, and write both to one file.

    Without TEXTS, takes the packages installed beside treespec, but not the standard library, which holds
    the embedded pair's held-out files. Copies of these files are left out everywhere.
    """
    with friendly(debug):
        from treespec.experiments.config.files import require_new, require_within
        from treespec.experiments.run.datastores import build_datastore
        from treespec.experiments.run.models import calm_transformers
        from treespec.experiments.run.progress import Reporter
        from treespec.models.load import outline_pair

        require_new(out, option="")
        require_within("--most-tokens", most, 1, 2**31 - 1)
        files = _files(texts)
        calm_transformers()
        pair, reporter = outline_pair(model, "none"), Reporter(progress(quiet))
        store, left_out = build_datastore(out, files, pair, reporter, named=texts or (), most=most)
        _show(store.path, store.about | {"left_out": left_out}, as_json, quiet)


@_group.command(
    "info",
    epilog=examples(
        "treespec datastore info python.datastore",
        "treespec datastore info python.datastore --json",
    ),
)
def info_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A datastore.")],
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print the texts, tokens and tokenizer of a datastore."""
    with friendly(debug):
        from treespec.draft import Datastore

        store = Datastore(file)
        _show(store.path, store.about, as_json, quiet=False)


def _files(given: Sequence[Path] | None) -> list[Path]:
    """The files to read, each once, in an order that does not depend on the machine."""
    from treespec.experiments.errors import ConfigError
    from treespec.experiments.run.held_out import installed_code
    from treespec.files import open_file

    if not given:
        return installed_code()
    paths: dict[Path, None] = {}
    for path in given:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix in TEXTS and p.is_file())
            if not inside:
                raise ConfigError(f"{path}: no file in it ends in {', '.join(TEXTS)}")
            paths |= dict.fromkeys(inside)
        else:
            with open_file(path):  # report problems before minutes of encoding
                paths[path] = None
    return list(paths)


def _show(path: Path, about: dict[str, Any], as_json: bool, quiet: bool) -> None:
    from treespec.experiments.run.datastores import about_left_out

    size = path.stat().st_size
    if as_json:
        typer.echo(json_text({"file": path, "bytes": size, **about}))
    elif not quiet:
        output().print(
            f"{path}: {about['tokens']:,} tokens of {about['texts']:,} texts, {size / 1e6:.1f} MB; "
            f"vocabulary {about['vocab_size']:,}, tokenizer {about['tokenizer'][:16] or 'unknown'}",
            highlight=False,
            soft_wrap=True,
        )
        if note := about_left_out(**about.get("left_out", {})):
            output().print(note, highlight=False, soft_wrap=True)
