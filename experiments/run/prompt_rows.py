"""A prompt as its source has it, and how it is read from a line of JSONL or a row of a data set."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treespec.errors import InvalidPrompt
from treespec.experiments.errors import PromptError
from treespec.files import brief
from treespec.models.encoder_source import require_source_text

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class RawPrompt:
    """A prompt as its source has it.

    Args:
        id: file name, line number or question id.
        text: the prompt, or the last turn of a conversation; not empty.
        category: category in Spec-Bench and similar sets, or None.
        where: its place in the source, for messages, such as `questions.jsonl, line 3`.
        start: number of tokens to skip, in addition to those that the config skips.
        turns: number of turns that the source has for it, of which `text` is the first.
        file: the file that an excerpt is from; None for other prompts. Excerpts of one file are alike and
            count as one sample.
        revision: of a data set, its commit on the hub or a hash of a folder's texts; None for files.
        before: turns before `text`, role and content: a system prompt, earlier requests and answers.
        source: what an encoder-decoder reads; `text`, which may then be empty, begins its answer.
    """

    id: str
    text: str
    category: str | None
    where: str
    start: int = 0
    turns: int = 1
    file: str | None = None
    revision: str | None = None
    before: tuple[tuple[str, str], ...] = ()
    source: str | None = None


def prompt_in_row(
    row: Mapping[str, Any],
    field: str,
    name: str,
    number: int,
    where: str,
    source: str | None = None,
) -> RawPrompt:
    """The prompt of a line or row.

    Args:
        row: the line or row. Its field `system` may hold a system prompt.
        field: the field that holds text, a list of texts (the first counts), or a conversation; `messages`
            if there is no such field.
        name: the field that holds the id; else it is `id`, else the number.
        number: of the line or row.
        where: the same in words, for messages.
        source: the field that holds what an encoder-decoder reads, of which the prompt is optional.

    Raises:
        PromptError: if the row holds no prompt; names the place and the field.
    """
    read = None
    if source is not None:
        read = row.get(source)
        if not isinstance(read, str):
            raise PromptError(
                f"{where}: field {brief(source)} holds {brief(read)}, but the encoder needs a text to read"
            )
        try:
            require_source_text(read)
        except InvalidPrompt as error:
            raise PromptError(f"{where}: field {brief(source)}: {error}") from None
        row = {field: "", **row}
    field = "messages" if field not in row and "messages" in row else field
    if field not in row:
        present = ", ".join(map(str, row))[:200] or "none"
        raise PromptError(f"{where}: no field {brief(field)} (fields present: {present})")
    text, turns, before = row[field], 1, []
    if isinstance(text, list) and text and isinstance(text[0], Mapping):
        *before, (_, text) = _conversation(text, f"{where}: field {brief(field)}")
    elif isinstance(text, list) and text:
        text, turns = text[0], len(text)
    if not isinstance(text, str):
        raise PromptError(f"{where}: field {brief(field)} holds {brief(text)}, but text is needed")
    if not text.strip() and read is None:
        raise PromptError(f"{where}: field {field!r} is empty: a prompt needs text")
    if system := row.get("system"):
        if not isinstance(system, str):
            raise PromptError(f"{where}: field 'system' holds {brief(system)}, but text is needed")
        if before and before[0][0] == "system":
            raise PromptError(
                f"{where}: fields 'system' and {brief(field)} both hold a system prompt: keep one"
            )
        before.insert(0, ("system", system))
    category = row.get("category")
    identity = str(row.get(name, row.get("id", number)))
    category = None if category is None else str(category)
    texts = [*((field, told) for _, told in before), (field, text), ("id", identity)]
    texts.append((source or "", read or ""))
    for key, value in (*texts, ("category", category or "")):
        if _SURROGATE.search(value):
            raise PromptError(
                f"{where}: field {brief(key)} holds half a character (a lone surrogate): repair the text"
            )
    return RawPrompt(
        identity, text, category, where, turns=turns, before=tuple(before), source=read
    )


def _conversation(turns: Sequence[Any], where: str) -> list[tuple[str, str]]:
    """Role and content of the turns of a conversation, of which the user's is the last."""
    said: list[tuple[str, str]] = []
    for number, turn in enumerate(turns, start=1):
        given = turn if isinstance(turn, Mapping) else {}
        role, content = given.get("role"), given.get("content")
        if role not in ("user", "assistant") and (role != "system" or number > 1):
            raise PromptError(
                f"{where}, turn {number}: role = {brief(role, 60)}, but a turn is by `user` or "
                "`assistant`, and the first may be by `system`"
            )
        if not isinstance(content, str) or not content.strip():
            raise PromptError(
                f"{where}, turn {number}: content = {brief(content, 60)}, but text is needed"
            )
        said.append((role, content))
    if said[-1][0] != "user":
        raise PromptError(
            f"{where}: the last turn is by `{said[-1][0]}`, but the user's turn ends a prompt"
        )
    return said
