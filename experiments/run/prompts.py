"""Read and encode prompts: our own sets, a text file, JSONL, Spec-Bench, or a data set."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from treespec.errors import InvalidPrompt, Unreadable, in_words, text_of
from treespec.experiments.config.schema import (
    ChatPrompts,
    Config,
    EmbeddedPrompts,
    HfDatasetPrompts,
    JsonlPrompts,
    Prompts,
    SpecBenchPrompts,
    SummaryPrompts,
    TaskPrompts,
    TextPrompts,
)
from treespec.experiments.errors import ConfigError, PromptError, TooFewPrompts
from treespec.experiments.run.prompt_rows import RawPrompt, prompt_in_row
from treespec.experiments.run.seeds import keys_of
from treespec.files import DATA_BYTES, brief, in_json, open_file, parse_json, read_text
from treespec.models.encoder_source import source_ids

if TYPE_CHECKING:
    from treespec.models.load import Pair

OURS = {
    EmbeddedPrompts: "held_out.jsonl", TaskPrompts: "tasks.jsonl", ChatPrompts: "chat.jsonl",
    SummaryPrompts: "chat.jsonl",
}  # fmt: skip
"""Files of our own prompts, beside the embedded pair."""

TUNING_FROM, TUNING = 96, 48
"""Where the `chat` prompts for tuning begin, and how many they are."""

LETTERS_SHOWN = 4000
"""Letters of a prompt that the manifest keeps for reports."""


@dataclass(frozen=True)
class Prompt:
    """An encoded prompt; `key` seeds its coins (`keys_of`), for the rest see `RawPrompt`.

    `source`: token ids for the encoder; empty for decoders.
    """

    index: int
    id: str
    category: str | None
    ids: tuple[int, ...]
    where: str
    key: int
    file: str | None = None
    source: tuple[int, ...] = ()

    @property
    def read(self) -> tuple[int, ...]:
        """All token ids that the models read: an encoder's source and the prompt."""
        return self.source + self.ids


def read_prompts(config: Prompts, more: int | None = None) -> list[RawPrompt]:
    """Read all prompts of a source, including those past `count`; needs no model or tokenizer.

    JSONL files and data sets are read only up to `count` and so many `more` prompts (None: to the end), so
    the rest may be long or malformed.
    """
    least = config.least_characters or 0
    enough = None if config.count is None or more is None else config.skip + config.count + more
    if isinstance(config, EmbeddedPrompts | TaskPrompts | ChatPrompts | SummaryPrompts):
        path = Path(str(files("treespec"))) / "embedded" / OURS[type(config)]
    else:
        path = Path(config.path)
    match config:
        case EmbeddedPrompts():
            prompts = list(_jsonl(path, field="text", name="file"))
        case TaskPrompts() | ChatPrompts():
            prompts = list(_jsonl(path, field="turns", name="id"))
        case SummaryPrompts():
            rows = _jsonl(path, field="turns", name="id")
            prompts = [
                replace(r, text="", source=r.text) for r in rows if r.category == "summaries"
            ]
        case TextPrompts():
            prompts = _text(path, config.separator)
        case HfDatasetPrompts():
            prompts = _data_set(config, least, enough)
        case JsonlPrompts():
            rows = _jsonl(path, config.field, "question_id", config.source)
            prompts = _first(rows, least, enough)
        case SpecBenchPrompts():
            prompts = _first(_jsonl(path, "turns", "question_id"), least, enough)
    if isinstance(config, ChatPrompts) and config.count is None and config.skip < TUNING_FROM:
        prompts = prompts[:TUNING_FROM]
    prompts = [prompt for prompt in prompts if _length(prompt) >= least]
    if isinstance(config, EmbeddedPrompts) and config.excerpts is not None:
        prompts = _excerpts(prompts, config.excerpts)
    prompts = prompts[config.skip :]
    if least and not prompts:
        raise PromptError(f"prompts.least_characters = {least}, but {path} has no such prompt")
    if config.count is not None and config.count > len(prompts):
        length = f" of at least {least} characters" if least else ""
        raise TooFewPrompts(
            f"prompts.count = {config.count}, but {path} has {len(prompts)} prompts{length}",
            len(prompts),
            f"{path}",
        )
    return prompts


def embedded_prompts(tokenizer: Any, count: int, tokens: int) -> list[Prompt]:
    """The first embedded prompts, encoded as in a run."""
    config = EmbeddedPrompts(kind="embedded", count=count, tokens=tokens)
    return encode(read_prompts(config)[:count], config, tokenizer)


def encode(
    prompts: Sequence[RawPrompt],
    config: Prompts,
    tokenizer: Any,
    first: int = 0,
    begin: Sequence[int] = (),
) -> list[Prompt]:
    """Encode prompts as token ids, truncated and with the chat template applied.

    `start` and `tokens` cut the text itself, before it is put into a chat template.

    `first` is the index of the first prompt. `begin`: tokens that begin the text of an encoder-decoder,
    whose source is read as it is; empty for decoders.
    """
    if isinstance(config, SummaryPrompts) and not begin:
        raise PromptError(
            "prompts.kind = 'summaries' is read by encoder-decoders: name such a target, or kind 'chat'"
        )
    if (source := getattr(config, "source", None)) is not None and not begin:
        raise PromptError(
            f"prompts.source = {brief(source, 60)} is read by encoder-decoders in a run: name such a "
            "target, or remove it"
        )
    template = isinstance(config, ChatPrompts) or getattr(config, "chat_template", False)
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if template is True and not has_template:
        key, other = "chat_template = true", "use 'auto' or false"
        if isinstance(config, ChatPrompts):
            key, other = "kind = 'chat'", "name other prompts"
        raise PromptError(
            f"prompts.{key}, but the tokenizer has no chat template; {other}, or an instruction-tuned model"
        )
    chat = has_template and template is not False
    system = getattr(config, "system", None)
    turns = next((f"{prompt.where}: several turns" for prompt in prompts if prompt.before), None)
    needs = turns if system is None else f"prompts.system = {brief(system, 60)}"
    if needs is not None and not chat:
        raise PromptError(
            f"{needs}, but texts are put into no chat template: set prompts.chat_template for a model that "
            f"has one, or remove {'them' if system is None else 'prompts.system'}"
        )
    rows = []
    for prompt in prompts:
        start = config.start + prompt.start
        window = slice(start, None if config.tokens is None else start + config.tokens)
        if chat:
            ids = _chat(prompt, window, tokenizer, system)
        else:
            ids = tokenizer.encode(prompt.text, verbose=False, add_special_tokens=not begin)[window]
        ids = [*begin, *ids]
        if not ids:
            skipped = f" after the first {start}, which are skipped" if start else ""
            raise PromptError(f"{prompt.where}: the prompt has no tokens{skipped}")
        rows.append(tuple(ids))
    sources = [_source(prompt, tokenizer) for prompt in prompts]
    keys = keys_of(source + ids for source, ids in zip(sources, rows, strict=True))
    return [
        Prompt(index, prompt.id, prompt.category, ids, prompt.where, key, prompt.file, source)
        for index, (prompt, ids, key, source) in enumerate(
            zip(prompts, rows, keys, sources, strict=True), start=first
        )
    ]


def _source(prompt: RawPrompt, tokenizer: Any) -> tuple[int, ...]:
    """The token ids that an encoder reads; none for a prompt without a source."""
    if prompt.source is None:
        return ()
    try:
        return tuple(source_ids(tokenizer, prompt.source))
    except InvalidPrompt as error:
        raise PromptError(f"{prompt.where}: {error}") from None


def behind(pair: "Pair", prompt: Prompt) -> "Pair":
    """The pair behind the source of a prompt, if it has one; a pair that is there already stays."""
    return pair if prompt.source == (pair.source or ()) else pair.on(prompt.source)


def batches_of(prompts: Sequence[Prompt], batch: int) -> list[tuple[Prompt, ...]]:
    """The prompts in batches, in order."""
    return [tuple(prompts[i : i + batch]) for i in range(0, len(prompts), batch)]


def samples_of(prompts: Sequence[Prompt], batch: int = 1) -> list[int] | None:
    """For each prompt, the number of its independent sample; None if each prompt is one.

    Equal prompts, excerpts of one file, and prompts of one batch are one sample.
    """
    first: dict[Any, int] = {}
    pairs = [
        (i, first.setdefault(mark, i))
        for i, prompt in enumerate(prompts)
        for mark in (prompt.read, prompt.file, i // batch)
        if mark is not None
    ]
    ones = np.ones(len(pairs), dtype=np.int8)
    graph = coo_array((ones, np.transpose(pairs)), shape=(len(prompts), len(prompts)))
    count, samples = connected_components(graph, directed=False)
    return None if count == len(prompts) else samples.tolist()


def _excerpts(files: Sequence[RawPrompt], starts: Mapping[str, int]) -> list[RawPrompt]:
    """One excerpt of every file for each category.

    The order of categories is reversed in every other file, so that each category is at even and at odd
    places equally often: verdicts choose on one half of the prompts and measure on the other.
    """
    excerpts = []
    for number, file in enumerate(files):
        order = list(starts.items())[:: -1 if number % 2 else 1]
        excerpts += [
            replace(file, id=f"{file.id}, {name}", category=name, start=start, file=file.id)
            for name, start in order
        ]
    return excerpts


def texts_of(prompts: Sequence[Prompt], tokenizer: Any) -> list[str]:
    """Prompts as text, as models read them; long prompts are cut to their end, after an ellipsis."""
    texts = [str(tokenizer.decode(list(prompt.read))) for prompt in prompts]
    return [text if len(text) <= LETTERS_SHOWN else f"…{text[-LETTERS_SHOWN:]}" for text in texts]


def hash_of(prompts: Sequence[Prompt]) -> str:
    """SHA-256 of the token ids of prompts."""
    return sha256(json.dumps([prompt.read for prompt in prompts]).encode()).hexdigest()


def unread_turns(prompts: Sequence[RawPrompt]) -> str:
    """A note on prompts of which only the first turn is read; empty if there are none."""
    several = [prompt for prompt in prompts if prompt.turns > 1]
    if not several:
        return ""
    return (
        f"{several[0].where}: only the first of its {several[0].turns} turns is read, as of "
        f"{len(several)} of {len(prompts)} prompts: later turns follow an answer, which no file holds"
    )


def _chat(prompt: RawPrompt, window: slice, tokenizer: Any, system: str | None) -> list[int]:
    """Token ids of the chat template around the tokens of the last turn that lie in a window."""
    text, before = prompt.text, prompt.before
    if window != slice(0, None):
        ids = tokenizer.encode(text, add_special_tokens=False)[window]
        if not ids:
            return []
        text = tokenizer.decode(ids)
    if system is not None and (not before or before[0][0] != "system"):
        before = (("system", system), *before)
    turns = [{"role": role, "content": content} for role, content in (*before, ("user", text))]
    try:
        rendered = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # a template is code of its own: an unknown filter, no such variable
        raise PromptError(
            f"the tokenizer's chat template fails ({text_of(error)[:300]}): repair it, or set "
            "prompts.chat_template to false"
        ) from None
    return tokenizer.encode(rendered, add_special_tokens=False)


def _text(path: Path, separator: str | None) -> list[RawPrompt]:
    text = _read(path)
    if separator is None:
        return [RawPrompt(path.name, text, None, str(path))]
    parts: list[list[str]] = [[]]
    for line in text.splitlines(keepends=True):
        if line.rstrip("\r\n") == separator:
            parts.append([])
        else:
            parts[-1].append(line)
    prompts = []
    for i, part in enumerate(parts):
        where = f"{path}, prompt {i + 1} of {len(parts)}"
        if not "".join(part).strip():
            raise PromptError(f"{where}: the prompt is empty")
        prompts.append(RawPrompt(f"{path.name}:{i + 1}", "".join(part), None, where))
    return prompts


def _length(prompt: RawPrompt) -> int:
    """Characters of what the models read: of the source, for encoder-decoders."""
    return len(prompt.source or prompt.text)


def _first(prompts: Iterable[RawPrompt], least: int, enough: int | None) -> list[RawPrompt]:
    """All prompts, or those up to the `enough`-th that has at least `least` characters."""
    taken: list[RawPrompt] = []
    long_enough = 0
    for prompt in prompts:
        taken.append(prompt)
        long_enough += _length(prompt) >= least
        if long_enough == enough:
            break
    return taken


def _jsonl(path: Path, field: str, name: str, source: str | None = None) -> Iterator[RawPrompt]:
    """The prompts of a file, one at a time."""
    for number, line in _lines(path):
        where = f"{path}, line {number}"
        try:
            row = parse_json(line, constants=True)
        except Unreadable as error:
            raise PromptError(f"{where}: not JSON: {error.said}") from None
        if not isinstance(row, dict):
            raise PromptError(f"{where}: expected a JSON object, got {in_json(row)}")
        yield prompt_in_row(row, field, name, number, where, source)


def _data_set(config: HfDatasetPrompts, least: int, enough: int | None) -> list[RawPrompt]:
    """Read the prompts of a split: all, or up to the `enough`-th that has at least `least` characters."""
    split, revision = _split_of(config)
    needed = ("field", config.field) if config.source is None else ("source", config.source)
    if needed[1] not in split.column_names:
        raise PromptError(
            f"prompts.{needed[0]} = {needed[1]!r}: {config.path} has no such column (it has "
            f"{', '.join(split.column_names)[:200]})"
        )
    if not len(split):
        raise PromptError(
            f"prompts.split = {config.split!r}: that part of {config.path} has no rows"
        )
    columns = {
        config.field,
        config.source or config.field,
        "question_id",
        "id",
        "category",
        "system",
    } & set(split.column_names)
    rows = enumerate(split.select_columns(sorted(columns)), start=1)
    place = f"{config.path}, {config.split}, row"
    found = (
        prompt_in_row(row, config.field, "question_id", number, f"{place} {number}", config.source)
        for number, row in rows
    )
    prompts = _first(found, least, enough)
    if revision is None:
        told = [[*p.before, p.text] if p.before else p.text for p in prompts]
        told += [p.source for p in prompts if p.source is not None]
        texts = sha256(json.dumps(told).encode())
        revision = f"sha256:{texts.hexdigest()}"
    return [replace(prompt, revision=revision) for prompt in prompts]


def _split_of(config: HfDatasetPrompts) -> tuple[Any, str | None]:
    """Load a split of a data set; also return its commit on the hub, None for a data set in a folder."""
    try:
        import datasets
    except ImportError:
        raise PromptError(
            "prompts.kind = 'hf_dataset' needs the package datasets: pip install datasets"
        ) from None
    local = Path(config.path).is_dir()
    if local and config.revision is not None:
        raise PromptError(
            f"prompts.revision = {config.revision!r}, but {config.path} is a folder, which has no "
            "revisions: remove prompts.revision"
        )
    datasets.disable_progress_bars()
    try:
        builder = datasets.load_dataset_builder(
            config.path, config.subset, revision=config.revision
        )
        builder.download_and_prepare()
        return builder.as_dataset(split=config.split), None if local else builder.hash
    except Exception as error:
        raise PromptError(
            f"prompts: the split {brief(config.split)} of the data set {brief(config.path)} cannot be "
            f"loaded: {in_words(error.__cause__ or error, 'the package datasets')}"
        ) from None


def _read(path: Path) -> str:
    try:
        text = read_text(path, encoding="utf-8-sig")
    except Unreadable as error:
        raise PromptError(f"prompts.path = {error}") from None
    if not text or text.isspace():
        raise PromptError(f"{path}: the file is empty: a prompt needs text")
    return text


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The nonempty lines of a file with their numbers, one line at a time in memory."""
    nonempty = False
    try:
        with open_file(path, DATA_BYTES) as file:
            for number, line in enumerate(file, start=1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if text.strip():
                    nonempty = True
                    yield number, text
    except UnicodeDecodeError as error:
        raise PromptError(f"{path}: not UTF-8 text ({error.reason}); convert the file") from None
    except Unreadable as error:
        raise PromptError(f"prompts.path = {error}") from None
    if not nonempty:
        raise PromptError(f"{path}: the file is empty: a prompt needs text")


def search_prompts(config: Config) -> Prompts:
    """The prompts that the search measures on: its own, or the rest of the run's texts after their end.

    For `chat` prompts, those that are for tuning. For prompts with sources, the next ones: what follows the
    beginning of an answer would be measured behind the sources of the run.

    Raises:
        ConfigError: if nothing is left to measure on.
    """
    assert config.search is not None
    given = config.prompts
    if config.search.prompts is not None:
        return config.search.prompts
    if isinstance(given, ChatPrompts) and given.count and given.skip + given.count <= TUNING_FROM:
        return given.model_copy(update={"skip": TUNING_FROM, "count": min(given.count, TUNING)})
    if reads_sources(given):
        left = len(read_prompts(given.model_copy(update={"count": None}))) - (given.count or 0)
        if given.count is None or left < 1:
            raise ConfigError(
                "search.prompts: the run measures all prompts of its source, so none is left to measure "
                "on: name other prompts here, or lower prompts.count"
            )
        return given.model_copy(
            update={"skip": given.skip + given.count, "count": min(left, TUNING)}
        )
    if given.tokens is None:
        raise ConfigError(
            "search.prompts: the run's prompts are whole texts (prompts.tokens is null), so nothing of "
            "them is left to measure on: name other prompts here, or shorten the run's with prompts.tokens"
        )
    return following(given, config.max_new_tokens)


def reads_sources(prompts: Prompts) -> bool:
    """Whether these are prompts of encoder-decoders."""
    return isinstance(prompts, SummaryPrompts) or getattr(prompts, "source", None) is not None


def following(prompts: Prompts, max_new_tokens: int) -> Prompts:
    """The same texts after the part that a run uses: past the last excerpt's prompt and token budget."""
    last_excerpt = max((getattr(prompts, "excerpts", None) or {"": 0}).values())
    end = prompts.start + last_excerpt + (prompts.tokens or 0)
    return prompts.model_copy(update={"start": end + max_new_tokens})
