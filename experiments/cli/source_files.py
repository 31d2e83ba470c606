"""`treespec datastore` and `skip-set`: files for the draft sources `retrieval` and `layer_skip`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from treespec.experiments.cli.common import (
    AsJson,
    Debug,
    Quiet,
    echo,
    friendly,
    json_text,
    progress,
)
from treespec.experiments.cli.help import app, examples

_datastores = typer.Typer(no_args_is_help=True)
app.add_typer(
    _datastores,
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


@_datastores.command(
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
        from treespec.experiments.config.places import require_inputs

        require_inputs({"--model": model})
        files = _files(texts)
        from treespec.experiments.run.datastores import build_datastore
        from treespec.experiments.run.models import calm_transformers
        from treespec.experiments.run.progress import Reporter
        from treespec.models.outline import outline_pair

        require_new(out, option="")
        require_within("--most-tokens", most, 1, 2**31 - 1)
        calm_transformers()
        pair, reporter = outline_pair(model, "none"), Reporter(progress(quiet))
        store, left_out = build_datastore(out, files, pair, reporter, named=texts or (), most=most)
        _show(store.path, store.about | {"left_out": left_out}, as_json, quiet)


@_datastores.command(
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
        from treespec.files import open_file

        with open_file(file, None):  # a wrong path is told before torch is imported
            pass
        from treespec.draft import Datastore

        store = Datastore(file)
        _show(store.path, store.about, as_json, quiet=False)


def _files(given: Sequence[Path] | None) -> list[Path]:
    """The files to read, each once, in an order that does not depend on the machine."""
    from treespec.experiments.errors import ConfigError
    from treespec.files import open_file

    if not given:
        from treespec.experiments.run.held_out import installed_code

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
        echo(json_text({"file": path, "bytes": size, **about}))
    elif not quiet:
        echo(
            f"{path}: {about['tokens']:,} tokens of {about['texts']:,} texts, {size / 1e6:.1f} MB; "
            f"vocabulary {about['vocab_size']:,}, tokenizer {about['tokenizer'][:16] or 'unknown'}"
        )
        if note := about_left_out(**about.get("left_out", {})):
            echo(note)


_skip_sets = typer.Typer(no_args_is_help=True)
app.add_typer(
    _skip_sets,
    name="skip-set",
    help="Search for a skip set for the source `layer_skip`.",
    rich_help_panel="Trees",
    epilog=examples(
        "treespec skip-set search skip.json --size 4",
        "treespec skip-set search skip.json notes.md --model Qwen/Qwen3-8B --size 20",
    ),
)

HELD_OUT_FROM = 1024
"""Position in the embedded prompts where the texts of a search begin: runs measure the tokens before it."""


@_skip_sets.callback()
def _skip_set() -> None:
    """Search for a skip set."""


@_skip_sets.command(
    "search",
    epilog=examples(
        "treespec skip-set search skip.json --size 4",
        "treespec skip-set search skip.json notes.md --model Qwen/Qwen3-8B --size 20 --device cuda",
    ),
)
def skip_set_command(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")],
    texts: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[TEXTS]...",
            help="Text files that no run measures.  [the embedded prompts after their first "
            f"{HELD_OUT_FROM:,} tokens]",
        ),
    ] = None,
    size: Annotated[int, typer.Option("--size", help="Number of sublayers to skip.")] = 1,
    model: Annotated[
        str, typer.Option("--model", help="The target: a folder or hub id.")
    ] = "embedded",
    temperature: Annotated[float, typer.Option("--temperature", help="0 for greedy.")] = 1.0,
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens to take of each text.")] = 128,
    most_texts: Annotated[int, typer.Option("--most-texts", help="Maximum texts to use.")] = 8,
    most_sets: Annotated[int, typer.Option("--most-sets", help="Maximum sets to try.")] = 1000,
    dtype: Annotated[str, typer.Option("--dtype", help="Dtype of the target.")] = "float32",
    device: Annotated[str, typer.Option("--device", help="Device of the target.")] = "cpu",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Search for the attention and feed-forward sublayers that a target can skip when it drafts.

    Each set is scored by the acceptance rate of its draft along the texts, in one pass. Sublayers are added
    one by one, then exchanged as long as that helps.
    """
    with friendly(debug):
        from treespec.experiments.config.files import require_new, require_within
        from treespec.experiments.config.places import require_inputs
        from treespec.files import read_text

        require_inputs({"--model": model})
        given = [read_text(path) for path in texts] if texts else None
        from treespec.draft.skip_set import SkipSets, fewest_sets
        from treespec.experiments.run.models import calm_transformers
        from treespec.models.load import load_pair
        from treespec.models.outline import outline_pair
        from treespec.sampling.distributions import Sampling

        require_new(out, option="")
        require_within("--tokens", tokens, 2, 100_000)
        require_within("--most-texts", most_texts, 1, 100_000)
        sampling = Sampling(temperature)
        calm_transformers()
        layers = outline_pair(model, "none").target.layer_count
        require_within("--size", size, 1, 2 * layers - 1)
        require_within("--most-sets", most_sets, fewest_sets(size, layers), 10**9)
        pair = load_pair(model, "none", dtype=dtype, device=device)
        sets = SkipSets(pair.target, _encoded(given, pair.tokenizer, tokens)[:most_texts], sampling)
        console = progress(quiet)

        def say(tried: int, acceptance: float) -> None:
            if console is not None:
                console.print(f"{tried:,} sets tried, acceptance {acceptance:.3f}", highlight=False)

        best = sets.search(size, most_sets, say)
        best.save(out)
        if as_json:
            echo(json_text({"file": out, **best.model_dump()}))
        elif not quiet:
            echo(
                f"{out}: without {', '.join(best.skip)} the acceptance rate is {best.acceptance:.3f} "
                f"over {best.tokens:,} tokens"
            )


def _encoded(texts: Sequence[str] | None, tokenizer: Any, tokens: int) -> list[list[int]]:
    """The first tokens of each text; by default, of the embedded prompts from `HELD_OUT_FROM` on."""
    from treespec.experiments.config.schema import EmbeddedPrompts
    from treespec.experiments.errors import ConfigError
    from treespec.experiments.run.prompts import read_prompts

    start = 0
    if texts is None:
        prompts = read_prompts(EmbeddedPrompts(kind="embedded"))
        start, texts = HELD_OUT_FROM, [prompt.text for prompt in prompts]
    ids = [tokenizer.encode(text, add_special_tokens=False, verbose=False) for text in texts]
    excerpts = [row[start : start + tokens] for row in ids if len(row) > start]
    if not excerpts:
        raise ConfigError("the texts have no tokens: name other files")
    return excerpts
