"""`treespec datastore`: build or describe a datastore of texts for the draft source `retrieval`."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treespec.experiments.cli.common import (
    LARGEST_TEXT,
    AsJson,
    Debug,
    Quiet,
    friendly,
    output,
    progress,
)
from treespec.experiments.cli.help import app, examples
from treespec.experiments.cli.json import json_text

if TYPE_CHECKING:
    from rich.console import Console

    from treespec.experiments.run.held_out import HeldOut

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

BATCH = 256
"""Files to encode at once."""


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
        from treespec.draft import Datastore
        from treespec.draft.state import tokenizer_digest
        from treespec.experiments.config.files import require_new, require_within
        from treespec.experiments.run.models import calm_transformers
        from treespec.models.load import outline_pair

        require_new(out, option="")
        require_within("--most-tokens", most, 1, 2**31 - 1)
        files = _files(texts)
        left_out = {"copies_of_held_out": 0, "unreadable": 0}
        calm_transformers()
        pair = outline_pair(model, "none")
        store = Datastore.build(
            out,
            _encoded(files, texts or (), left_out, pair.tokenizer, most, progress(quiet)),
            vocab_size=pair.target.vocab_size,
            tokenizer=tokenizer_digest(pair.tokenizer),
        )
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
    """Print how many texts and tokens a datastore holds, and of which tokenizer."""
    with friendly(debug):
        from treespec.draft import Datastore

        store = Datastore(file)
        _show(store.path, store.about, as_json, quiet=False)


def _files(given: Sequence[Path] | None) -> list[Path]:
    """The files to read, each once, in an order that does not depend on the machine.

    Raises:
        ConfigError: if a folder contains no text files.
        Unreadable: if a named file is missing or too large.
    """
    from treespec.experiments.errors import ConfigError
    from treespec.experiments.run.held_out import installed_code
    from treespec.reading import open_file

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
            with open_file(path, LARGEST_TEXT):  # report problems before minutes of encoding
                paths[path] = None
    return list(paths)


def _encoded(
    files: Sequence[Path],
    named: Collection[Path],
    left_out: dict[str, int],
    tokenizer: Any,
    most: int | None,
    console: "Console | None",
) -> Iterator[list[int]]:
    """The token ids of each file, without copies of held-out files and unreadable files of folders.

    Args:
        files: to read.
        named: those given by name, not found in a folder, which must be readable.
        left_out: gets the numbers of copies and of unreadable files.
        tokenizer: encodes them.
        most: number of tokens to end after; None for no limit.
        console: where to show progress.

    Raises:
        ConfigError: if nothing is left.
        Unreadable: if a named file is not text.
    """
    from treespec.experiments.errors import ConfigError
    from treespec.experiments.run.held_out import HeldOut

    held_out, tokens = HeldOut(), 0
    for start in range(0, len(files), BATCH):
        if console is not None:
            console.print(f"{start:,} of {len(files):,} files, {tokens:,} tokens", highlight=False)
        texts = _read(files[start : start + BATCH], named, left_out, held_out)
        if not texts:
            continue
        for ids in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]:
            yield ids if most is None else ids[: most - tokens]
            tokens += len(ids)
            if most is not None and tokens >= most:
                return
    if not tokens:
        raise ConfigError(f"nothing to store: {_left_out(**left_out) or 'the files are empty'}")


def _read(
    files: Sequence[Path], named: Collection[Path], left_out: dict[str, int], held_out: "HeldOut"
) -> list[str]:
    """The texts of files; see `_encoded`."""
    from treespec.errors import Unreadable
    from treespec.reading import read_text

    texts = []
    for file in files:
        try:
            text = read_text(file, LARGEST_TEXT)
        except Unreadable:
            if file in named:
                raise
            left_out["unreadable"] += 1
            continue
        if held_out.has_copy(file.name, text):
            left_out["copies_of_held_out"] += 1
        else:
            texts.append(text)
    return texts


def _left_out(copies_of_held_out: int = 0, unreadable: int = 0) -> str:
    """How many files were left out and why, in words; empty if none were."""
    reasons = []
    if copies_of_held_out:
        what = "copy of a held-out file" if copies_of_held_out == 1 else "copies of held-out files"
        reasons.append(f"{copies_of_held_out:,} {what}")
    if unreadable:
        reasons.append(
            f"{unreadable:,} {'file' if unreadable == 1 else 'files'} not in UTF-8 or larger than "
            f"{LARGEST_TEXT // 2**20} MiB"
        )
    return f"left out {' and '.join(reasons)}" if reasons else ""


def _show(path: Path, about: dict[str, Any], as_json: bool, quiet: bool) -> None:
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
        if note := _left_out(**about.get("left_out", {})):
            output().print(note, highlight=False, soft_wrap=True)
