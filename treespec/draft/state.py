"""Files of what a source has learned: written once, loaded unchanged for every prompt."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treespec.errors import Unreadable
from treespec.files import open_file, parse_json, write_whole

VERSION = 1

MOST_BYTES = 2**31
"""Largest size in bytes of a file that is loaded as a whole."""

HEADER = "header"

DAMAGED = "damaged, or not a file of a draft source: create it again"

Arrays = dict[str, NDArray[np.int64]]


def save_state(
    path: str | os.PathLike[str],
    kind: str,
    arrays: Mapping[str, NDArray[np.int64]],
    vocab_size: int,
    tokenizer: str = "",
    target: str = "",
) -> None:
    """Write what a source has learned: arrays of token ids and counts, and which tokenizer they belong to.

    An existing file is replaced once the new one is complete. `tokenizer`: the tokenizer's
    `tokenizer_digest`; empty if unknown, but then configs refuse the file. `target`: fingerprint of the
    model whose passes the state was learned from; empty if unknown, or if the state was learned from texts
    alone.
    """
    header = {"kind": kind, "version": VERSION, "vocab_size": vocab_size, "tokenizer": tokenizer}
    header["target"] = target
    text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    write_whole(
        Path(path),
        lambda file: np.savez(file, **{HEADER: text, **arrays}),  # pyrefly: ignore[bad-argument-type]
    )


def load_state(
    path: str | os.PathLike[str],
    kind: str,
    dimensions: Mapping[str, int],
    vocab_size: int | None = None,
    tokenizer: str = "",
    target: str = "",
) -> Arrays:
    """Read a file written by `save_state`.

    `vocab_size`: the target's vocabulary size; None to skip the check. `tokenizer`: digest of the target's
    tokenizer; empty to skip the check. `target`: the target's fingerprint, for a state learned from its
    passes; empty to skip the check.
    """
    with open_file(path, MOST_BYTES) as file:
        try:
            with np.load(file, allow_pickle=False) as members:
                header = parse_json(members[HEADER].tobytes())
                _require_kind(path, header, kind)
                arrays = {name: members[name] for name in dimensions}
        except Exception as error:  # of zip, zlib, numpy or JSON
            own = isinstance(error, Unreadable) and str(error).startswith(os.fspath(path))
            raise (error if own else Unreadable(f"{path}: {DAMAGED}")) from None
    if any(array.ndim != dimensions[name] for name, array in arrays.items()):
        raise Unreadable(f"{path}: {DAMAGED}")
    require_same_tokens(os.fspath(path), header, vocab_size, tokenizer)
    if target:
        _require_same_target(path, header, target)
    return arrays


def require_same_tokens(
    name: str, header: Mapping[str, Any], vocab_size: int | None, tokenizer: str
) -> None:
    """Refuse a file that was made with another tokenizer.

    `vocab_size`: the target's vocabulary size; None to skip the check. `tokenizer`: digest of the target's
    tokenizer; empty to skip the check.
    """
    if type(header.get("vocab_size")) is not int or not isinstance(header.get("tokenizer"), str):
        raise Unreadable(f"{name}: does not state its vocabulary and tokenizer: create it again")
    if vocab_size is not None and header["vocab_size"] > vocab_size:
        raise Unreadable(
            f"{name}: made with a vocabulary of {header['vocab_size']} tokens, but the target has "
            f"{vocab_size}: create it again with the target's tokenizer"
        )
    if tokenizer and not header["tokenizer"]:
        raise Unreadable(
            f"{name}: does not state the tokenizer of its ids, and the target's has the digest "
            f"{tokenizer[:16]}...: create it again with that digest "
            "(treespec.draft.state.tokenizer_digest), or by `treespec datastore build`"
        )
    if tokenizer and header["tokenizer"] != tokenizer:
        raise Unreadable(
            f"{name}: made with another tokenizer (digest {header['tokenizer'][:16]}..., the target's is "
            f"{tokenizer[:16]}...): create it again with the target's tokenizer"
        )


def tokenizer_digest(tokenizer: Any) -> str:
    """A digest of what a tokenizer's ids mean: of its vocabulary and of how it splits a test text."""
    from treespec.models.same_tokenizer import PROBE

    meanings = sorted((token_id, token) for token, token_id in tokenizer.get_vocab().items())
    split = tokenizer.encode(PROBE, add_special_tokens=False, verbose=False)
    return hashlib.sha256(json.dumps([meanings, split]).encode()).hexdigest()


def _require_kind(path: str | os.PathLike[str], header: Any, kind: str) -> None:
    if not isinstance(header, dict) or not {"kind", "version"} <= set(header):
        raise Unreadable(f"{path}: not a file of a draft source")
    if header["kind"] != kind:
        raise Unreadable(f"{path}: a {header['kind']}, but a {kind} is needed here")
    if type(header["version"]) is not int or header["version"] != VERSION:  # `true` equals 1
        raise Unreadable(
            f"{path}: of version {header['version']}, but this treespec reads version {VERSION}: "
            "install a newer treespec, or create it again"
        )


def _require_same_target(
    path: str | os.PathLike[str], header: Mapping[str, Any], target: str
) -> None:
    """Refuse state learned from another target, whose best tokens would be drafted for this one."""
    learned_from = header.get("target")
    if not isinstance(learned_from, str) or not learned_from:
        raise Unreadable(
            f"{path}: does not say which target it was learned from, and the target is {target}: create it "
            "again with save(..., target=pair.target.fingerprint)"
        )
    if learned_from != target:
        raise Unreadable(
            f"{path}: learned from another target ({learned_from}), but the target is {target}: create it "
            "again with this target"
        )
