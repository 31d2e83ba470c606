"""`treespec skip-set`: search which sublayers the draft source `layer_skip` leaves out."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treespec.experiments.cli.common import AsJson, Debug, Quiet, friendly, output, progress
from treespec.experiments.cli.help import examples
from treespec.experiments.cli.json import json_text

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["app"]

app = typer.Typer()
_group = typer.Typer(no_args_is_help=True)
app.add_typer(
    _group,
    name="skip-set",
    help="Search a skip set, for the source `layer_skip`.",
    rich_help_panel="Trees",
    epilog=examples(
        "treespec skip-set search skip.json --size 4",
        "treespec skip-set search skip.json notes.md --model Qwen/Qwen3-8B --size 20",
    ),
)

LARGEST_TEXT = 2**24
"""Bytes of a text."""

HELD_OUT_FROM = 1024
"""Token of the embedded prompts at which the texts of a search begin: runs measure what comes before."""


@_group.callback()
def _skip_set() -> None:
    """Search a skip set."""


@_group.command(
    "search",
    epilog=examples(
        "treespec skip-set search skip.json --size 4",
        "treespec skip-set search skip.json notes.md --model Qwen/Qwen3-8B --size 20 --device cuda",
    ),
)
def search_command(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file that is written.")],
    texts: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[TEXTS]...",
            help="Text files that no run measures.  [the embedded prompts behind their first "
            f"{HELD_OUT_FROM:,} tokens]",
        ),
    ] = None,
    size: Annotated[int, typer.Option("--size", help="Sublayers to leave out.")] = 1,
    model: Annotated[
        str, typer.Option("--model", help="The target: a folder or hub id.")
    ] = "embedded",
    temperature: Annotated[float, typer.Option("--temperature", help="0 for greedy.")] = 1.0,
    tokens: Annotated[int, typer.Option("--tokens", help="To take of each text.")] = 128,
    most_texts: Annotated[int, typer.Option("--most-texts", help="Texts to take.")] = 8,
    most_sets: Annotated[int, typer.Option("--most-sets", help="Sets to try.")] = 1000,
    dtype: Annotated[str, typer.Option("--dtype", help="Of the target.")] = "float32",
    device: Annotated[str, typer.Option("--device", help="Of the target.")] = "cpu",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Search the attentions and feed-forward parts that a target can do without when it drafts.

    A set is judged by the acceptance rate of its draft along texts, one pass for each set. Sublayers are
    added one by one, then exchanged while that helps.
    """
    with friendly(debug):
        from treespec.distributions import Sampling
        from treespec.draft.skip_set import SkipSets
        from treespec.experiments.config.files import require_new, require_within
        from treespec.experiments.run.models import calm_transformers
        from treespec.models.load import load_pair

        require_new(out, option="")
        require_within("--size", size, 1, 20_000)
        require_within("--tokens", tokens, 2, 100_000)
        require_within("--most-texts", most_texts, 1, 100_000)
        require_within("--most-sets", most_sets, 1, 10**9)
        sampling = Sampling(temperature)
        read = _texts(texts)
        calm_transformers()
        pair = load_pair(model, "none", dtype=dtype, device=device)
        sets = SkipSets(pair.target, _encoded(read, pair, tokens)[:most_texts], sampling)
        console = progress(quiet)

        def say(tried: int, acceptance: float) -> None:
            if console is not None:
                console.print(f"{tried:,} sets tried, acceptance {acceptance:.3f}", highlight=False)

        best = sets.search(size, most_sets, say)
        best.save(out)
        if as_json:
            typer.echo(json_text({"file": out, **best.model_dump()}))
        elif not quiet:
            output().print(
                f"{out}: without {', '.join(best.skip)} the acceptance rate is {best.acceptance:.3f} "
                f"over {best.tokens:,} tokens",
                highlight=False,
                soft_wrap=True,
            )


def _texts(given: Sequence[Path] | None) -> list[str] | None:
    """The texts of the files; None if none is named.

    Raises:
        Unreadable: if one cannot be read.
    """
    from treespec.reading import read_text

    return [read_text(path, LARGEST_TEXT) for path in given] if given else None


def _encoded(texts: Sequence[str] | None, pair: "Pair", tokens: int) -> list[list[int]]:
    """Their tokens, or those of the embedded prompts from where runs leave off.

    Raises:
        ConfigError: if there is none.
    """
    from treespec.experiments.config.schema import EmbeddedPrompts
    from treespec.experiments.errors import ConfigError
    from treespec.experiments.run.prompts import read_prompts

    first, given = 0, texts
    if given is None:
        prompts = read_prompts(EmbeddedPrompts(kind="embedded"))
        first, given = HELD_OUT_FROM, [prompt.text for prompt in prompts]
    ids = [pair.tokenizer.encode(text, add_special_tokens=False, verbose=False) for text in given]
    pieces = [row[first : first + tokens] for row in ids if len(row) > first]
    if not pieces:
        raise ConfigError("the texts have no tokens: name other files")
    return pieces
