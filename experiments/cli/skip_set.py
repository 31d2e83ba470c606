"""`treespec skip-set`: search for the sublayers that the draft source `layer_skip` should skip."""

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


@_group.callback()
def _skip_set() -> None:
    """Search for a skip set."""


@_group.command(
    "search",
    epilog=examples(
        "treespec skip-set search skip.json --size 4",
        "treespec skip-set search skip.json notes.md --model Qwen/Qwen3-8B --size 20 --device cuda",
    ),
)
def search_command(
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
        from treespec.draft.skip_set import SkipSets
        from treespec.experiments.config.files import require_new, require_within
        from treespec.experiments.run.models import calm_transformers
        from treespec.files import read_text
        from treespec.models.load import load_pair
        from treespec.sampling.distributions import Sampling

        require_new(out, option="")
        require_within("--size", size, 1, 20_000)
        require_within("--tokens", tokens, 2, 100_000)
        require_within("--most-texts", most_texts, 1, 100_000)
        require_within("--most-sets", most_sets, 1, 10**9)
        sampling = Sampling(temperature)
        given = [read_text(path) for path in texts] if texts else None
        calm_transformers()
        pair = load_pair(model, "none", dtype=dtype, device=device)
        sets = SkipSets(pair.target, _encoded(given, pair.tokenizer, tokens)[:most_texts], sampling)
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
