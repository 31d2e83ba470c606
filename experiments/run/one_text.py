"""`treespec generate`: decode one text with a tree, and show tokens as soon as they are kept."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treespec import plugins
from treespec.errors import InvalidPrompt
from treespec.experiments.config.build import build, wants_measured
from treespec.experiments.config.file import validated
from treespec.experiments.config.generation import ignored_in_words
from treespec.experiments.config.schema import Config, TextPrompts
from treespec.experiments.errors import ConfigError, PromptError
from treespec.experiments.records.outcome import Outcome
from treespec.experiments.run.inputs import read_by, require_fits
from treespec.experiments.run.models import (
    OF_MODELS,
    as_eager,
    dequantised,
    heads_of,
    load_models,
)
from treespec.experiments.run.passes import load_with_passes
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompt_rows import RawPrompt
from treespec.experiments.run.proof_of_parts import require_proved
from treespec.experiments.run.unit import Bench
from treespec.files import brief
from treespec.models.encoder_source import require_source_text

if TYPE_CHECKING:
    from treespec.experiments.run.prompts import Prompt
    from treespec.models.load import Pair
    from treespec.models.outline import PairOutline


@dataclass(frozen=True)
class Piece:
    """Text that a token has completed.

    Args:
        text: text of this token, and of tokens before it that ended within a character.
        accepted: whether the token was drafted and accepted, rather than added by the target.
    """

    text: str
    accepted: bool


@dataclass(frozen=True)
class OneText:
    text: str
    tokens: tuple[int, ...]
    accepted: int
    steps: int
    method: str
    law: str
    rule: str
    seconds: float
    prefill_s: float

    @property
    def tokens_per_step(self) -> float:
        """Kept tokens per pass of the target."""
        return len(self.tokens) / self.steps

    @property
    def tokens_per_second(self) -> float:
        """Kept tokens per second, without the prefill."""
        return len(self.tokens) / self.seconds


def one_text_config(
    models: Mapping[str, Any],
    method: Mapping[str, Any],
    sampling: Mapping[str, Any],
    *,
    tokens: int,
    seed: int,
    chat: bool,
) -> Config:
    """The config of an experiment that decodes one text, checked and built like any other.

    Values of None in the three mappings stand for the defaults.

    Args:
        models: `models`, as in a config.
        method: `shape`, `draft`, `law` and `rule` of the method; the shape `plain` for no tree.
        sampling: a sampling setting, as in a config.
        tokens: the token budget.
        seed: seed of the coins.
        chat: whether the prompt is put into the chat template.

    Raises:
        ConfigError: if an option is wrong; names it.
    """

    def given(values: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in values.items() if value is not None}

    kind = "plain" if method["shape"] == "plain" else "tree"
    tree_options = {"--source": method["draft"], "--law": method["law"], "--rule": method["rule"]}
    if kind == "plain" and (misplaced := given(tree_options)):
        option = next(iter(misplaced))
        raise ConfigError(
            f"{option} applies to trees only: give a tree with --shape, or omit {option}"
        )
    tree = {"shape": _usual_shape(method["draft"])} | given(method)
    data = {
        "name": "generate",
        "models": given(models),
        "prompts": {"kind": "text", "path": "-", "chat_template": chat},
        "max_new_tokens": tokens,
        "samplings": [given(sampling)],
        "methods": [{"kind": kind, **(tree if kind == "tree" else {})}],
        "seed": seed,
    }
    with naming_options():
        config = validated(Path("-"), data)
        if wants_measured(config.methods[0]):
            raise ConfigError(
                f"--shape {brief(method['shape'])} depends on measurements of a run: give them, such as "
                "--shape '{kind: optimal, rates: [0.6, 0.2, 0.1], size: 16}', or choose another shape"
            )
        build(config)
    return config


def _usual_shape(draft: Mapping[str, Any] | None) -> Any:
    source = plugins.parts("source").get(str((draft or {}).get("source")))
    if source is None or source.trees == "any":
        return "expansion:3x2x1"
    return {"kind": "budget", "depth": 4}


@contextmanager
def naming_options() -> Iterator[None]:
    """Name options of the command, rather than keys of a config, in errors raised within."""
    try:
        yield
    except (ConfigError, *OF_MODELS) as error:
        message = re.sub(r"^-: ", "", str(error), flags=re.MULTILINE)
        message = re.sub(r"`models\.other_tokenizer: true`[^)]*\)`", "--other-tokenizer", message)
        message = re.sub(r"\bmethods\[0\]\.draft(?:\.source)?\b", "--source", message)
        keys = r"\b(?:methods\[0\]|samplings\[0\]|models)\.(\w+)"
        message = re.sub(keys, lambda key: f"--{key[1].replace('_', '-')}", message)
        message = message.replace("max_new_tokens = ", "--tokens = ").replace("methods[0]: ", "")
        message = re.sub(r"^seed = ", "--seed = ", message, flags=re.MULTILINE)
        raise type(error)(message) from None


def decode_one(
    config: Config,
    prompt: str,
    show: Callable[[Piece], None] = lambda piece: None,
    say: Callable[[str], None] = lambda text: None,
    load: Callable[[Any], "Pair"] = load_models,
    *,
    source: str | None = None,
) -> OneText:
    """Decode one text with the only method of a config.

    `source`: what an encoder-decoder reads; the prompt, which may then be empty, begins its answer.

    Raises:
        ConfigError, PromptError, LoadError: if the text cannot be decoded.
    """
    if not prompt and source is None:
        raise PromptError("the prompt is empty: give some text")
    if source is not None:
        try:
            require_source_text(source)
        except InvalidPrompt as error:
            raise PromptError(f"--encoder-source: {error}") from None
    experiment = build(config)
    with naming_options():
        require_proved(experiment, say)
    (method,), (sampling,) = experiment.methods, experiment.samplings
    assert isinstance(config.prompts, TextPrompts)
    prompts, raw = config.prompts, RawPrompt("prompt", prompt, None, "the prompt", source=source)

    def checked(pair: "Pair | PairOutline") -> "Prompt":
        if pair.target.needs_source and source is None:
            raise PromptError(
                "the target is an encoder-decoder: give the text that it reads with --encoder-source"
            )
        if source is not None and not pair.target.needs_source:
            raise PromptError(
                "--encoder-source is read by encoder-decoders, and the target is a decoder: put the text "
                "into the prompt"
            )
        (encoded,) = read_by(pair, [raw], prompts)
        require_fits(experiment, pair, [encoded])
        return encoded

    models = as_eager(config.models)
    with naming_options():
        loaded = load_with_passes(models, [method], load, Reporter(None), check=checked)
        pair, encoded = loaded.pair, checked(loaded.pair)
    asked = pair.target.model.generation_config
    ignored = ignored_in_words(asked, config.samplings, config.stop_strings)
    for sentence in filter(None, (*dequantised(pair), ignored)):
        say(sentence)
    for name, contract in heads_of([method], pair.target).items():
        say(f"{name}: {contract}")
    if method.synthetic:
        say("the text is meaningless: acceptance is given by rates")
    choice, steps, accepted = method.choices[sampling], [], 0
    pieces, bench = _Pieces(pair.tokenizer), Bench.of(experiment, pair)
    for step in bench.decode(method, encoded, sampling, seed=config.seed):
        drafted = min(step.verdict.accepted, step.kept)
        accepted += drafted
        steps.append(step)
        for piece in pieces.add(step.text, drafted):
            show(piece)
    for piece in pieces.rest():
        show(piece)
    outcome = Outcome.of(steps)
    return OneText(
        text=str(pair.tokenizer.decode(list(outcome.tokens), skip_special_tokens=True)),
        tokens=outcome.tokens,
        accepted=accepted,
        steps=len(steps),
        method=method.name,
        law=str(choice.law),
        rule=str(choice.rule),
        seconds=outcome.total_s - outcome.prefill_s,
        prefill_s=outcome.prefill_s,
    )


class _Pieces:
    """Decode tokens to text incrementally; each is decoded together with a few tokens before it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._context_start = self._shown = 0

    def add(self, ids: Sequence[int], drafted: int) -> Iterator[Piece]:
        """The pieces that these tokens complete; the first `drafted` of the tokens were accepted."""
        for i, token in enumerate(ids):
            self._ids.append(token)
            text = self._new_text()
            if text and not text.endswith("\ufffd"):  # else the last character is incomplete
                yield Piece(text, i < drafted)
                self._context_start, self._shown = self._shown, len(self._ids)

    def rest(self) -> Iterator[Piece]:
        """The text that is left at the end, an incomplete character included."""
        if text := self._new_text():
            yield Piece(text, False)

    def _new_text(self) -> str:
        before = self._text(self._ids[self._context_start : self._shown])
        return self._text(self._ids[self._context_start :])[len(before) :]

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))
