"""Do two tokenizers give ids the same meaning? Speculation is only possible if they do."""

from transformers import PreTrainedTokenizerBase as Tokenizer

from treespec.errors import TokenizerMismatch

__all__ = ["require_same_tokenizer"]

PROBE = (
    "The quick brown fox doesn't jump over the lazy dog 12345.678 times.\n\n"
    "def f(x_1: list[int]) -> None:\n\treturn  x_1[-1:] != {'naïve': \"déjà vu\"}  # Übergröße\r\n"
    "    Ελληνικά, русский, עברית, 日本語と한국어 🙂👩‍💻 ½ ﬁ\u00a0\u200b e\u0301"
)
"""Text on which tokenizers with equal vocabularies but other merges, splits or normalisation differ."""


def require_same_tokenizer(target: Tokenizer, draft: Tokenizer) -> None:
    """Refuse a pair whose token ids do not mean the same text.

    Compared are the vocabularies, special tokens included, id by id, and the ids of a probe text, followed
    by some 300 of the target's own tokens. Not compared is what only matters to whoever calls the draft's
    tokenizer, and nobody does: which of the special tokens begins or ends a text (a base draft for a chat
    target), padding, chat templates. How far the models' own embedding tables are padded is no part of a
    tokenizer.

    Raises:
        TokenizerMismatch: naming the first token that differs.
    """
    ours, theirs = ({i: t for t, i in tok.get_vocab().items()} for tok in (target, draft))
    for token_id in sorted(ours.keys() | theirs.keys()):
        if ours.get(token_id) != theirs.get(token_id):
            _refuse(
                f"token {token_id} is {_shown(ours.get(token_id))} for the target and "
                f"{_shown(theirs.get(token_id))} for the draft (their vocabularies: {len(ours)} and "
                f"{len(theirs)} tokens)"
            )
    sample = sorted(ours)[:: len(ours) // 300 + 1]
    text = f"{PROBE}{target.decode(sample, skip_special_tokens=True)}"
    mine, yours = (
        tok.encode(text, add_special_tokens=False, verbose=False) for tok in (target, draft)
    )
    if mine != yours:
        place = next(
            (i for i, (a, b) in enumerate(zip(mine, yours, strict=False)) if a != b),
            min(len(mine), len(yours)),
        )
        a, b = (
            _shown(v.get(next(iter(ids[place:]), -1))) for v, ids in ((ours, mine), (theirs, yours))
        )
        _refuse(
            "their vocabularies are equal, but they split text differently: token "
            f"{place} of a probe text is {a} for the target and {b} for the draft"
        )


def _shown(token: str | None) -> str:
    return "missing" if token is None else repr(token)


def _refuse(difference: str) -> None:
    raise TokenizerMismatch(
        f"target and draft have different tokenizers: {difference}; choose a draft of the target's family"
    )
