"""What an encoder-decoder reads: the ids of a text, and sources that an encoder cannot read."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from treespec.checks import shown
from treespec.errors import InvalidPrompt

if TYPE_CHECKING:  # `import treespec` does not load transformers
    from transformers import PreTrainedTokenizerBase as Tokenizer


def source_ids(tokenizer: "Tokenizer", text: str) -> list[int]:
    """The ids of a source, with the special tokens that the tokenizer adds.

    Raises:
        InvalidPrompt: if there is no text.
    """
    require_source_text(text)
    encoded: Any = tokenizer(text, verbose=False)
    return encoded.input_ids


def require_source_text(text: str) -> None:
    """Refuse a source of spaces, of which a tokenizer still makes an end-of-text token.

    Raises:
        InvalidPrompt: if it is one.
    """
    if not text.strip():
        raise InvalidPrompt("the source has no tokens: give the text that the encoder is to read")


def require_source(source: Sequence[int], length: int, vocab_size: int) -> None:
    """Refuse a source that an encoder cannot read.

    Args:
        source: token ids.
        length: number of tokens that the encoder takes (`treespec.models.support.source_length`).
        vocab_size: number of token ids that it can embed.

    Raises:
        InvalidPrompt: if the source is empty, too long, or holds other ids.
    """
    if not source:
        require_source_text("")
    beyond = next((token for token in source if not 0 <= token < vocab_size), None)
    if beyond is not None:
        raise InvalidPrompt(
            f"the source holds token id {shown(beyond)}, but the model's ids are 0..{vocab_size - 1}"
        )
    if len(source) > length:
        raise InvalidPrompt(
            f"the source has {len(source)} tokens, but the encoder takes {length}: shorten it"
        )
