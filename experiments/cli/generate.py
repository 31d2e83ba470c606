"""`treespec generate`: decode one text, and show which of its tokens were drafted."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treespec.experiments.cli.common import (
    AsJson,
    Debug,
    Plugins,
    complain,
    friendly,
    json_text,
    yaml_or_name,
)
from treespec.experiments.cli.help import app, examples
from treespec.files import brief

if TYPE_CHECKING:
    from treespec.experiments.run.one_text import OneText, Piece


ACCEPTED, ADDED = "green", "yellow"
"""Colours of tokens: accepted draft tokens, and tokens added by the target."""


@app.command(
    "generate",
    rich_help_panel="Experiments",
    epilog=examples(
        "treespec generate 'def fibonacci(n):'",
        "treespec generate 'def fibonacci(n):' --shape kary:2x3 --temperature 0.8",
        "treespec generate --file prompt.txt --shape plain --json",
        "treespec generate 'def fibonacci(n):' --source '{source: lookup, ngram: 2}'",
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
        str | None,
        typer.Option(
            "--target",
            help="The target, instead of --pair: a folder, GGUF file or hub id, or smollm2 (`models get`).",
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            "--draft", help="The draft model of --target: a folder, GGUF file or hub id, or none."
        ),
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Dtype of both models.")] = "float32",
    draft_dtype: Annotated[
        str | None, typer.Option("--draft-dtype", help="Dtype of the draft.  [that of --dtype]")
    ] = None,
    quantised: Annotated[
        str | None,
        typer.Option(
            "--quantised",
            help="Quantise the target while it is loaded: int8-weight-only, int8-dynamic, "
            "bitsandbytes-int8 or bitsandbytes-nf4.",
        ),
    ] = None,
    draft_quantised: Annotated[
        str | None, typer.Option("--draft-quantised", help="The same for the draft.")
    ] = None,
    other_tokenizer: Annotated[
        bool,
        typer.Option("--other-tokenizer", help="Take a draft that has another tokenizer too."),
    ] = False,
    device: Annotated[str, typer.Option("--device", help="Device of both models.")] = "cpu",
    source: Annotated[
        str | None,
        typer.Option(
            "--source", help="The draft source: lookup, or '{source: mine, n: 2}'.  [model]"
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            "--shape",
            help="The tree, as in a config; plain for no draft.  [expansion:3x2x1; depth 4 if the source "
            "takes a budget]",
        ),
    ] = None,
    law: Annotated[str | None, typer.Option("--law", help="How children are drawn.")] = None,
    rule: Annotated[str | None, typer.Option("--rule", help="How children are accepted.")] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="0 for greedy.  [0]")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Keep the k most probable tokens.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Keep the top tokens up to this probability.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option("--min-p", help="Minimum probability relative to the top token.")
    ] = None,
    more: Annotated[
        str | None,
        typer.Option(
            "--sampling",
            help="Further settings, as in a config: '{repetition_penalty: 1.1}', '{from: model}'.",
        ),
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", help="Maximum number of new tokens.")] = 128,
    seed: Annotated[int, typer.Option("--seed", help="Seed of all randomness.")] = 0,
    plugin: Plugins = None,
    encoder_source: Annotated[
        str | None,
        typer.Option(
            "--encoder-source",
            help="The text that an encoder-decoder reads; PROMPT, if any, begins its answer.",
        ),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Format the prompt with the tokenizer's chat template.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Decode one text, and show which tokens were drafted.

    The text goes to stdout while it is decoded; numbers go to stderr. On a terminal, accepted draft tokens
    are green, and tokens added by the target are yellow.
    """
    with friendly(debug):
        from treespec.experiments.config.places import require_inputs

        only_source = encoder_source is not None and prompt is file is None
        text = "" if only_source else _prompt(prompt, file)
        require_inputs({"--target": target, "--pair": pair, "--draft": draft})
        from treespec.experiments.config.plugged import plug_in
        from treespec.experiments.errors import ConfigError
        from treespec.experiments.run.models import calm_transformers
        from treespec.experiments.run.one_text import decode_one, one_text_config

        calm_transformers()
        plug_in(plugin or ())
        if pair is not None and (target is not None or draft is not None):
            raise ConfigError(
                "--pair names both models: give either --pair, or --target and --draft"
            )
        if target is None and draft is not None:
            raise ConfigError("--draft needs --target: give both, or --pair")
        models = {
            "target": target or pair, "draft": draft, "dtype": dtype, "device": device,
            "draft_dtype": draft_dtype, "quantised": quantised, "draft_quantised": draft_quantised,
            "other_tokenizer": other_tokenizer,
        }  # fmt: skip
        drafting = yaml_or_name("--source", source)
        drafting = {"source": drafting} if isinstance(drafting, str) else drafting
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        further = yaml_or_name("--sampling", more) or {}
        if not isinstance(further, dict):
            raise ConfigError(f"--sampling {brief(more)}: write '{{repetition_penalty: 1.1}}'")
        greedy = {} if "from" in further else {"temperature": 0.0}
        chosen = {key: value for key, value in given.items() if value is not None}
        sampling = greedy | further | chosen
        config = one_text_config(
            models,
            {"shape": yaml_or_name("--shape", shape), "draft": drafting, "law": law, "rule": rule},
            sampling,
            tokens=tokens,
            seed=seed,
            chat=chat,
        )
        if as_json:
            decoded = decode_one(config, text, say=complain, source=encoder_source)
            typer.echo(json_text(_data(decoded, config.samplings[0].name)))
            return
        on_terminal = sys.stdout.isatty()
        coloured = on_terminal and not os.environ.get("NO_COLOR")
        if on_terminal:
            _write(_visible(text), "bright_black" if coloured else None)

        def show(piece: "Piece") -> None:
            colour = (ACCEPTED if piece.accepted else ADDED) if coloured else None
            _write(_visible(piece.text) if on_terminal else piece.text, colour)

        decoded = decode_one(config, text, show, complain, source=encoder_source)
        if not decoded.text.endswith("\n"):
            typer.echo()
        complain(_numbers(decoded, config.samplings[0].name))


def _prompt(given: str | None, file: Path | None) -> str:
    from treespec.errors import Unreadable
    from treespec.experiments.errors import ConfigError, PromptError
    from treespec.files import TEXT_BYTES, read_text

    if (given is None) == (file is None):
        raise ConfigError("give one prompt: as an argument, - for stdin, or with --file")
    if file is not None:
        try:
            return read_text(file)
        except Unreadable as error:
            raise PromptError(str(error)) from None
    if given != "-":
        return given or ""
    content = sys.stdin.buffer.read(TEXT_BYTES + 1)
    if len(content) > TEXT_BYTES:
        raise PromptError(f"stdin: more than {TEXT_BYTES:,} bytes for one prompt")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise PromptError("stdin: not UTF-8") from None


def _write(text: str, colour: str | None) -> None:
    typer.secho(text, nl=False, fg=colour, color=colour is not None)
    sys.stdout.flush()


def _visible(text: str) -> str:
    """A text without control characters, which a terminal would obey."""
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


def _numbers(decoded: "OneText", sampling: str) -> str:
    return (
        f"{len(decoded.tokens)} tokens ({decoded.accepted} of them drafted) in {decoded.steps} steps: "
        f"{decoded.tokens_per_step:.2f} tokens per step, {decoded.tokens_per_second:.1f} tokens per second "
        f"({decoded.method}, {decoded.rule}, {sampling})"
    )


def _data(decoded: "OneText", sampling: str) -> dict[str, Any]:
    return {
        "text": decoded.text,
        "ids": list(decoded.tokens),
        "tokens": len(decoded.tokens),
        "accepted": decoded.accepted,
        "steps": decoded.steps,
        "tokens_per_step": decoded.tokens_per_step,
        "tokens_per_second": decoded.tokens_per_second,
        "prefill_s": decoded.prefill_s,
        "method": decoded.method,
        "law": decoded.law,
        "rule": decoded.rule,
        "sampling": sampling,
    }
