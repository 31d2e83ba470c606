"""The tokens that a target and a draft of another tokenizer both know (arXiv:2502.05202, Algorithm 4)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase as Tokenizer

from treespec.errors import TokenizerMismatch
from treespec.models.codec import Codec, codec_of, plain_text, token_bytes


@dataclass(frozen=True, eq=False)
class SharedTokens:
    """How a draft of another tokenizer reads and writes the target's token ids.

    Args:
        target_ids: ids of the shared tokens for the target.
        draft_ids: ids of the same tokens for the draft.
        vocab_size: number of the target's token ids.
        pieces: the draft's ids, at least one, of a token of the target.
        read: the draft's ids of a text given in the target's.
        target: the target's text and ids.
        draft: the draft's text and ids.
    """

    target_ids: Int[Tensor, " S"]
    draft_ids: Int[Tensor, " S"]
    vocab_size: int
    pieces: Callable[[int], tuple[int, ...]]
    read: Callable[[Sequence[int]], list[int]]
    target: Codec
    draft: Codec


def shared_tokens(
    target: Tokenizer, draft: Tokenizer, vocab_size: int, draft_vocab_size: int
) -> SharedTokens:
    """The tokens that stand for the same bytes in two tokenizers.

    Special tokens are not shared: where the target has one, the draft reads a token that opens or ends a
    text, if it has one.

    Args:
        target: the target's tokenizer.
        draft: the draft's.
        vocab_size: number of the target's token ids.
        draft_vocab_size: width of the draft's logits.

    Raises:
        TokenizerMismatch: if they share no token.
    """
    texts = {i: text for i, text in token_bytes(target).items() if i < vocab_size}
    # Of two tokens of one byte (a piece and a byte token) the piece, which has the higher id, counts.
    known = {text: i for i, text in sorted(token_bytes(draft).items()) if i < draft_vocab_size}
    own = {text: i for i, text in sorted(texts.items())}
    pairs = {i: known[text] for text, i in own.items() if text in known}
    if not pairs:
        name = f" ({draft.name_or_path!r})" if draft.name_or_path else ""
        raise TokenizerMismatch(
            f"target and draft{name} share no token (their vocabularies: {len(target):,} and "
            f"{len(draft):,}): nothing that the draft writes is a token of the target; choose another draft"
        )
    codecs = codec_of(target), codec_of(draft)
    special = (draft.bos_token_id, draft.eos_token_id, draft.unk_token_id, draft.pad_token_id)
    nothing = next((i for i in special if i is not None and i < draft_vocab_size), 0)

    @cache
    def pieces(token: int) -> tuple[int, ...]:
        if token in pairs:
            return (pairs[token],)
        text = texts.get(token, b"")
        try:
            found = codecs[1].inside(text.decode())
        except UnicodeDecodeError:
            found = [known[bytes([byte])] for byte in text if bytes([byte]) in known]
        return tuple(found) or (nothing,)

    def read(tokens: Sequence[int]) -> list[int]:
        return [*codecs[1].opening, *codecs[1].ids(plain_text(*codecs, tokens))]

    ids = sorted(pairs)
    return SharedTokens(
        torch.tensor(ids), torch.tensor([pairs[i] for i in ids]), vocab_size, pieces, read, *codecs
    )
