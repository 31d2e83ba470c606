"""Read a folder of texts: as they are, or as prompts that the target answers or continues."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from treespec.errors import Unreadable
from treespec.experiments.errors import PromptError
from treespec.experiments.training.texts.chat import Chat
from treespec.files import DATA_BYTES, parse_json, read_text

SUFFIXES = (".txt", ".md", ".py", ".jsonl")

PIECE = 512
"""Tokens of a piece that a long text is cut into."""

BEGINNING = 64
"""Tokens of a piece that are a prompt, if the target continues it."""

SHORTEST_PIECE = 32
"""Tokens of a piece below which it is left out, unless it is the whole text."""

Turns = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Given:
    """A text, or the turns of a conversation (role and content), and its place for messages."""

    text: str | Turns
    where: str


def read_given(folder: Path) -> tuple[list[Given], str]:
    """All texts of a folder, and a digest of them.

    Files end in .txt, .md, .py or .jsonl. A line of JSONL has a field `text`; `messages`, with `role` and
    `content`; or `turns`, of the user and the assistant in turn.

    Raises:
        PromptError: if there is no text; if a line is no such object; names folder, or file and line.
    """
    files = sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES and p.is_file())
    try:
        given = [text for file in files for text in _of_file(file)]
    except Unreadable as error:
        raise PromptError(f"--texts: {error}") from None
    given = [
        text for text in given if text.text if not isinstance(text.text, str) or text.text.strip()
    ]
    if not given:
        raise PromptError(
            f"--texts {folder}: there is no text in it: give a folder with files that end in "
            f"{', '.join(SUFFIXES)}"
        )
    digest = hashlib.sha256(repr([text.text for text in given]).encode())
    return given, digest.hexdigest()


def _of_file(file: Path) -> Iterator[Given]:
    text = read_text(file, DATA_BYTES)
    if file.suffix != ".jsonl":
        yield Given(text, str(file))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{file}, line {number}"
            try:
                row = parse_json(line, constants=True)
            except Unreadable as error:
                raise PromptError(f"--texts: {where}: not JSON: {error.said}") from None
            yield Given(_of_row(row, where), where)


def _of_row(row: Any, where: str) -> str | Turns:
    """The text or the turns of a line."""
    match row:
        case {"text": str(text)}:
            return text
        case {"messages": [*messages]} if messages and all(map(_is_message, messages)):
            return tuple((message["role"], message["content"]) for message in messages)
        case {"turns": [*turns]} if turns and all(isinstance(turn, str) for turn in turns):
            return tuple((("user", "assistant")[i % 2], turn) for i, turn in enumerate(turns))
    fields = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
    raise PromptError(
        f"--texts: {where}: needs a field text (a text), turns (texts of user and assistant in turn) or "
        f"messages (objects with role and content), but has {fields[:200] or 'none'}"
    )


def _is_message(message: Any) -> bool:
    return isinstance(message, Mapping) and all(
        isinstance(message.get(k), str) for k in ("role", "content")
    )


def as_they_are(given: Sequence[Given], tokenizer: Any) -> list[tuple[tuple[int, ...], int]]:
    """Token ids of texts, and how many of them are a prompt: 0, or all before a conversation's last answer.

    Texts are cut into pieces of at most `PIECE` tokens, conversations are not.

    Raises:
        PromptError: if a conversation ends without an answer, or the tokenizer has no chat template.
    """
    found = list[tuple[tuple[int, ...], int]]()
    for text in given:
        if isinstance(text.text, str):
            found += [(piece, 0) for piece in _pieces(text.text, tokenizer)]
            continue
        chat, turns = _chat_for(text, tokenizer), text.text
        if turns[-1][0] != "assistant":
            raise PromptError(
                f"--texts: {text.where}: the conversation ends with a message of {turns[-1][0]!r}, so "
                "there is no answer to learn from; let the target answer with --continue"
            )
        prompt, whole = chat.prompt(turns[:-1]), chat.told(turns)
        # Some templates open an answer otherwise than they write it into a conversation.
        shared = takewhile(lambda pair: pair[0] == pair[1], zip(prompt, whole, strict=False))
        found.append((tuple(whole), len([*shared])))
    return found


def as_prompts(given: Sequence[Given], tokenizer: Any) -> list[tuple[int, ...]]:
    """Token ids of prompts: the beginnings of pieces, and conversations up to the user's last message.

    Raises:
        PromptError: if the tokenizer has no chat template for a conversation.
    """
    found = list[tuple[int, ...]]()
    for text in given:
        if isinstance(text.text, str):
            found += [piece[:BEGINNING] for piece in _pieces(text.text, tokenizer)]
        else:
            last = max((i for i, turn in enumerate(text.text) if turn[0] == "user"), default=-1)
            found.append(tuple(_chat_for(text, tokenizer).prompt(text.text[: last + 1])))
    return found


def _chat_for(text: Given, tokenizer: Any) -> Chat:
    chat = Chat.of(tokenizer)
    if chat is None:
        raise PromptError(
            f"--texts: {text.where}: holds a conversation, but the target's tokenizer has no chat "
            "template: give texts (a field text), or a chat model"
        )
    return chat


def _pieces(text: str, tokenizer: Any) -> list[tuple[int, ...]]:
    ids = tuple(tokenizer.encode(text, add_special_tokens=False, verbose=False))
    pieces = [ids[start : start + PIECE] for start in range(0, len(ids), PIECE)]
    return [piece for piece in pieces if piece is pieces[0] or len(piece) >= SHORTEST_PIECE]
