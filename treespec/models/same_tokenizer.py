"""Check that two tokenizers give token ids the same meaning, without which speculation is impossible."""

from transformers import PreTrainedTokenizerBase as Tokenizer

from treespec.errors import TokenizerMismatch

PROBE = (
    "The quick brown fox doesn't jump over the lazy dog 12345.678 times.\n\n"
    "def f(x_1: list[int]) -> None:\n\treturn  x_1[-1:] != {'naïve': \"déjà vu\"}  # Übergröße\r\n"
    "    Ελληνικά, русский, עברית, 日本語と한국어 🙂👩‍💻 ½ ﬁ\u00a0\u200b e\u0301"
)
"""Text that tokenizers with equal vocabularies but different merges, splits or normalisation encode
differently."""


def require_same_tokenizer(target: Tokenizer, draft: Tokenizer) -> None:
    """Refuse a pair whose token ids do not mean the same text.

    The vocabularies are compared id by id, special tokens included, and so are the ids of a probe text
    followed by about 300 of the target's own tokens. Settings that matter only when the draft's tokenizer
    is called are not compared, because it is never called: which special tokens begin or end a text (a base
    draft for a chat target), padding, chat templates. The padding of the models' embedding tables is not
    part of a tokenizer.
    """
    name = f" ({draft.name_or_path!r})" if draft.name_or_path else ""
    target_vocab, draft_vocab = (
        {token_id: token for token, token_id in tokenizer.get_vocab().items()}
        for tokenizer in (target, draft)
    )
    for token_id in sorted(target_vocab.keys() | draft_vocab.keys()):
        if target_vocab.get(token_id) != draft_vocab.get(token_id):
            _refuse(
                name,
                f"token {token_id} is {_shown(target_vocab.get(token_id))} for the target and "
                f"{_shown(draft_vocab.get(token_id))} for the draft (their vocabularies: "
                f"{len(target_vocab)} and {len(draft_vocab)} tokens)",
            )
    sample = sorted(target_vocab)[:: len(target_vocab) // 300 + 1]
    text = f"{PROBE}{target.decode(sample, skip_special_tokens=True)}"
    target_ids, draft_ids = (
        tokenizer.encode(text, add_special_tokens=False, verbose=False)
        for tokenizer in (target, draft)
    )
    if target_ids != draft_ids:
        place = next(
            (i for i, (a, b) in enumerate(zip(target_ids, draft_ids, strict=False)) if a != b),
            min(len(target_ids), len(draft_ids)),
        )
        target_token, draft_token = (
            _shown(vocab.get(next(iter(ids[place:]), -1)))
            for vocab, ids in ((target_vocab, target_ids), (draft_vocab, draft_ids))
        )
        _refuse(
            name,
            "their vocabularies are equal, but they split text differently: token "
            f"{place} of a probe text is {target_token} for the target and {draft_token} for the draft",
        )


def _shown(token: str | None) -> str:
    return "missing" if token is None else repr(token)


def _refuse(draft: str, difference: str) -> None:
    raise TokenizerMismatch(
        f"target and draft{draft} have different tokenizers: {difference}; choose a draft of the "
        "target's family, or say that it may be another one (`models.other_tokenizer: true`; `load_pair("
        "..., other_tokenizer=True)`)"
    )
