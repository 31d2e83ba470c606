"""Text to token ids and back, as a draft of another tokenizer needs it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from treespec.errors import InvalidPrompt

if TYPE_CHECKING:  # `import treespec` does not load transformers
    from transformers import PreTrainedTokenizerBase as Tokenizer

CUT = "\ufffd"
"""What bytes that are no whole character are decoded to."""


@dataclass(frozen=True)
class Codec:
    """A tokenizer without its special tokens: they are no text, and text never becomes one.

    Args:
        decode: the text of token ids; special tokens have none.
        encode: the ids of a text, and the index of the character at which each piece begins.
        opening: what the tokenizer puts before every text, such as a beginning-of-text token.
        special: its special tokens by id, as text spells them.
    """

    decode: Callable[[Sequence[int]], str]
    encode: Callable[[str], tuple[list[int], list[int]]]
    opening: tuple[int, ...] = ()
    special: Mapping[int, str] = field(default_factory=dict)

    def ids(self, text: str) -> list[int]:
        """The ids of a text, without the opening."""
        return self.encode(text)[0]

    def inside(self, text: str) -> list[int]:
        """The ids of a text that follows other text: without a space that is put before every text."""
        ids, starts = self.encode("\n" + text)
        return ids[starts.index(1) :] if 1 in starts else self.ids(text)


def plain_text(target: Codec, draft: Codec, tokens: Sequence[int]) -> str:
    """The text of a prompt, in which the draft's special tokens must not be spelled out.

    Raises:
        InvalidPrompt: if one is.
    """
    text = target.decode(tokens)
    special = next((token for token in sorted(draft.special.values()) if token in text), None)
    if special is not None:
        raise InvalidPrompt(
            f"the text contains {special!r}, a special token of the draft's tokenizer but not of the "
            "target's, so the draft cannot read it as text: change the prompt, or choose another draft"
        )
    return text


def codec_of(tokenizer: "Tokenizer") -> Codec:
    """The codec of a tokenizer of transformers; one that tells no places is read anew at every step."""

    def decode(ids: Sequence[int]) -> str:
        return str(
            tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def encode(text: str) -> tuple[list[int], list[int]]:
        places = tokenizer.is_fast
        found: Any = tokenizer(
            text, add_special_tokens=False, split_special_tokens=True,
            return_offsets_mapping=places, verbose=False,
        )  # fmt: skip
        if not places:
            return found["input_ids"], []
        ids: list[int] = []
        starts: list[int] = []
        for token, (start, end) in zip(found["input_ids"], found["offset_mapping"], strict=True):
            # Unigram vocabularies hold their special tokens as pieces, which win where text spells them.
            letters = letters_of(token) if text[start:end] == special.get(token) else [token]
            ids += letters
            starts += range(start, start + len(letters))
        return ids, starts

    @cache
    def letters_of(token: int) -> list[int]:
        found = (tokenizer.convert_tokens_to_ids(letter) for letter in special[token])
        return [i for i in found if isinstance(i, int) and i not in special]

    special = {i: str(tokenizer.convert_ids_to_tokens(i)) for i in special_ids(tokenizer)}
    begun = tokenizer.encode("a", add_special_tokens=True, verbose=False)
    plain = tokenizer.encode("a", add_special_tokens=False, verbose=False)
    at = next((i for i in range(len(begun)) if begun[i : i + len(plain)] == plain), 0)
    return Codec(decode, encode, tuple(begun[:at]), special)


def special_ids(tokenizer: "Tokenizer") -> set[int]:
    """The ids of tokens that are no text."""
    added = tokenizer.added_tokens_decoder
    return {*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)}


def token_bytes(tokenizer: "Tokenizer") -> dict[int, bytes]:
    """The bytes that each token stands for, by id; special tokens are left out.

    Byte-level alphabets, `▁` for a space, byte tokens such as `<0x0A>`, and `##` for the middle of a word
    are read; so the pieces of two kinds of tokenizers can be compared. A piece that begins a word counts as
    one with a space before it.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = "" if backend is None else json.dumps(json.loads(backend.to_str())["decoder"])
    added, special = tokenizer.added_tokens_decoder, special_ids(tokenizer)
    found = {}
    for token, index in tokenizer.get_vocab().items():
        if index in special:
            continue
        if index in added:
            found[index] = token.encode()
        elif "ByteLevel" in decoder:
            found[index] = b"".join(
                bytes([byte]) if (byte := _alphabet().get(char)) is not None else char.encode()
                for char in token
            )
        elif len(token) == 6 and token.startswith("<0x"):
            found[index] = bytes.fromhex(token[3:5])
        elif "WordPiece" in decoder:
            found[index] = (token[2:] if token.startswith("##") else " " + token).encode()
        else:
            found[index] = token.replace("▁", " ").encode()
    return found


@cache
def _alphabet() -> dict[str, int]:
    """The characters by which byte-level vocabularies write bytes (GPT-2)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {
        chr(256 + i): byte for i, byte in enumerate(hidden)
    }
