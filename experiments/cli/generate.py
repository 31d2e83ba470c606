"""`treespec generate`: decode one text, and see which of its tokens were drafted."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treespec.experiments.cli.common import AsJson, Debug, Plugins, complain, friendly
from treespec.experiments.cli.help import examples
from treespec.experiments.cli.json import json_text

if TYPE_CHECKING:
    from treespec.experiments.run.one_text import OneText, Piece

__all__ = ["app"]

app = typer.Typer()

LARGEST_PROMPT = 2**24
"""Bytes of a prompt."""

ACCEPTED, ADDED = "green", "yellow"
"""Colours of tokens: drafted and accepted, or added by the target."""


@app.command(
    "generate",
    rich_help_panel="Experiments",
    epilog=examples(
        "treespec generate 'def main('",
        "treespec generate 'def main(' --shape kary:2x3 --temperature 0.8",
        "treespec generate --file prompt.txt --shape plain --json",
        "treespec generate 'def main(' --source '{source: lookup, ngram: 2}'",
        "treespec generate 'Hi' --target Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B",
    ),
)
def generate_command(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The text to continue; - for stdin.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", help="A file with the prompt.")] = None,
    pair: Annotated[
        str | None,
        typer.Option("--pair", help="embedded, or a folder with target and draft.  [embedded]"),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Instead of --pair: a folder or hub id.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", help="A folder or hub id, or none.")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Of both models.")] = "float32",
    device: Annotated[str, typer.Option("--device", help="Of both models.")] = "cpu",
    source: Annotated[
        str | None,
        typer.Option("--source", help="What drafts: lookup, '{source: mine, n: 2}'.  [model]"),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            "--shape",
            help="The tree, as in a config; plain for no draft.  [expansion:3x2x1; a source that takes a "
            "budget: depth 4]",
        ),
    ] = None,
    law: Annotated[str | None, typer.Option("--law", help="How children are drawn.")] = None,
    rule: Annotated[str | None, typer.Option("--rule", help="How they are accepted.")] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="0 for greedy.")] = 0.0,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Most probable tokens.")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", help="Their probability.")] = None,
    min_p: Annotated[float | None, typer.Option("--min-p", help="Of the first one's.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", help="New tokens at most.")] = 128,
    seed: Annotated[int, typer.Option("--seed", help="Of all randomness.")] = 0,
    plugin: Plugins = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put the prompt into the tokenizer's chat template.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Decode one text, and see which tokens were drafted.

    The text goes to stdout as it comes, numbers go to stderr. On a terminal accepted draft tokens are
    green, and the tokens that the target adds are yellow.
    """
    with friendly(debug):
        from treespec.experiments.config.plugged import plug_in
        from treespec.experiments.errors import ConfigError
        from treespec.experiments.run.models import calm_transformers
        from treespec.experiments.run.one_text import decode_one, one_text_config

        calm_transformers()
        plug_in(plugin or ())
        if pair is not None and (target is not None or draft is not None):
            raise ConfigError("--pair brings both models: give it, or --target and --draft")
        if target is None and draft is not None:
            raise ConfigError("--draft is of a --target: give both, or a --pair")
        models = {"target": target or pair, "draft": draft, "dtype": dtype, "device": device}
        sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        config = one_text_config(
            models,
            {"shape": _shape(shape), "draft": _source(source), "law": law, "rule": rule},
            sampling,
            tokens=tokens,
            seed=seed,
            chat=chat,
        )
        text = _prompt(prompt, file)
        if as_json:
            made = decode_one(config, text, say=complain)
            typer.echo(json_text(_data(made, config.samplings[0].name)))
            return
        screen = sys.stdout.isatty()
        coloured = screen and not os.environ.get("NO_COLOR")
        if screen:
            _write(_visible(text), "bright_black" if coloured else None)

        def show(piece: "Piece") -> None:
            colour = (ACCEPTED if piece.accepted else ADDED) if coloured else None
            _write(_visible(piece.text) if screen else piece.text, colour)

        made = decode_one(config, text, show, complain)
        if not made.text.endswith("\n"):
            typer.echo()
        complain(_numbers(made, config.samplings[0].name))


def _shape(text: str | None) -> Any:
    """A shape as it is typed: spelled, or a mapping in YAML."""
    if text is None or not text.lstrip().startswith("{"):
        return text and text.strip()
    return _yaml("--shape", text)


def _source(text: str | None) -> Any:
    """A draft source as it is typed: its name, or a mapping in YAML."""
    if text is None:
        return None
    return _yaml("--source", text) if text.lstrip().startswith("{") else {"source": text.strip()}


def _yaml(option: str, text: str) -> Any:
    from treespec.errors import Unreadable
    from treespec.experiments.errors import ConfigError
    from treespec.reading_yaml import NotYaml, parse_yaml

    try:
        return parse_yaml(text)
    except NotYaml as error:
        raise ConfigError(f"{option} is no YAML: {error}") from None
    except Unreadable as error:
        raise ConfigError(f"{option}: {error}") from None


def _prompt(given: str | None, file: Path | None) -> str:
    """The text to continue, from one of its three places."""
    from treespec.errors import Unreadable
    from treespec.experiments.errors import ConfigError, PromptError
    from treespec.reading import read_text

    if (given is None) == (file is None):
        raise ConfigError("give one prompt: as an argument, - for stdin, or with --file")
    if file is not None:
        try:
            return read_text(file, LARGEST_PROMPT)
        except Unreadable as error:
            raise PromptError(str(error)) from None
    if given != "-":
        return given or ""
    content = sys.stdin.buffer.read(LARGEST_PROMPT + 1)
    if len(content) > LARGEST_PROMPT:
        raise PromptError(f"stdin: more than {LARGEST_PROMPT:,} bytes for one prompt")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise PromptError("stdin: not UTF-8") from None


def _write(text: str, colour: str | None) -> None:
    typer.secho(text, nl=False, fg=colour, color=colour is not None)
    sys.stdout.flush()


def _visible(text: str) -> str:
    """A text without what would command a terminal."""
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


def _numbers(made: "OneText", sampling: str) -> str:
    """What it took, in one line."""
    return (
        f"{len(made.tokens)} tokens ({made.accepted} of them drafted) in {made.steps} steps: "
        f"{made.tokens_per_step:.2f} tokens per step, {made.tokens_per_second:.1f} tokens per second "
        f"({made.method}, {made.rule}, {sampling})"
    )


def _data(made: "OneText", sampling: str) -> dict[str, Any]:
    """What --json prints."""
    return {
        "text": made.text,
        "ids": list(made.tokens),
        "tokens": len(made.tokens),
        "accepted": made.accepted,
        "steps": made.steps,
        "tokens_per_step": made.tokens_per_step,
        "tokens_per_second": made.tokens_per_second,
        "prefill_s": made.prefill_s,
        "method": made.method,
        "law": made.law,
        "rule": made.rule,
        "sampling": sampling,
    }
