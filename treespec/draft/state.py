"""What a source has learned, in a file: written once, loaded unchanged for every prompt."""

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treespec.errors import Unreadable
from treespec.reading import open_file, parse_json
from treespec.whole_file import write_whole

__all__ = ["load_state", "save_state", "tokenizer_digest"]

VERSION = 1

MOST_BYTES = 2**31
"""Of a file that is loaded as a whole."""

HEADER = "header"

DAMAGED = "damaged, or no file of a draft source: make it again"

Arrays = dict[str, NDArray[np.int64]]


def save_state(
    path: str | os.PathLike[str],
    kind: str,
    arrays: Mapping[str, NDArray[np.int64]],
    vocab_size: int,
    tokenizer: str = "",
    target: str = "",
) -> None:
    """Write what a source has learned: arrays of token ids and counts, and of which tokens they are.

    Args:
        path: of the file; one that is there is replaced once the new one is whole.
        kind: of the source, in words.
        arrays: by name.
        vocab_size: of the model.
        tokenizer: its `tokenizer_digest`; empty if it is not known, but then configs refuse the file.
        target: fingerprint of the model whose passes the state was learned from; empty if it is not known,
            or the state is one of texts alone.

    Raises:
        OSError: if it cannot be written.
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
    """What `save_state` wrote.

    Args:
        path: of the file.
        kind: that is wanted.
        dimensions: of the arrays that it must have, by name.
        vocab_size: of the target; None to look at nothing.
        tokenizer: digest of the target's; empty to look at nothing.
        target: its fingerprint, of a state that was learned from its passes; empty to look at nothing.

    Returns:
        The arrays, integers.

    Raises:
        Unreadable: beginning with the path: if there is no such file, it is damaged, of another kind or
            newer, or was made of another model's tokens or passes.
    """
    try:
        with (
            open_file(path, MOST_BYTES) as file,
            _zipped(np.load(file, allow_pickle=False)) as members,
        ):
            header = parse_json(members[HEADER].tobytes())
            _require_kind(path, header, kind)
            arrays = {name: members[name] for name in dimensions}
    except Unreadable as error:
        if str(error).startswith(os.fspath(path)):
            raise
        raise Unreadable(f"{path}: {DAMAGED}") from None
    except (
        *(OSError, ValueError, KeyError, EOFError, MemoryError, NotImplementedError, RuntimeError),
        *(zipfile.BadZipFile, zlib.error),
    ):
        raise Unreadable(f"{path}: {DAMAGED}") from None
    for name, array in arrays.items():
        if array.ndim != dimensions[name] or not np.issubdtype(array.dtype, np.integer):
            raise Unreadable(f"{path}: damaged: {name!r} is no array of whole numbers that fits")
    require_same_tokens(os.fspath(path), header, vocab_size, tokenizer)
    if target:
        _require_same_target(path, header, target)
    return arrays


def require_same_tokens(
    name: str, header: Mapping[str, Any], vocab_size: int | None, tokenizer: str
) -> None:
    """Refuse a file that was made of another model's tokens.

    Args:
        name: of the file.
        header: its `vocab_size` and `tokenizer`.
        vocab_size: of the target; None to look at nothing.
        tokenizer: digest of the target's; empty to look at nothing.

    Raises:
        Unreadable: saying what differs, or that the header does not say of which tokens the file is: then
            its ids may mean other text.
    """
    if type(header.get("vocab_size")) is not int or type(header.get("tokenizer")) is not str:
        raise Unreadable(f"{name}: damaged: it does not say of which tokens it is; make it again")
    if vocab_size is not None and header["vocab_size"] > vocab_size:
        raise Unreadable(
            f"{name}: made of a vocabulary of {header['vocab_size']} tokens, but the target has "
            f"{vocab_size}: make it again with the target's tokenizer"
        )
    if tokenizer and not header["tokenizer"]:
        raise Unreadable(
            f"{name}: does not say of which tokenizer its ids are, and the target's has the digest "
            f"{tokenizer[:16]}...: make it again with that digest (treespec.draft.state.tokenizer_digest), "
            "or by `treespec datastore build`"
        )
    if tokenizer and header["tokenizer"] != tokenizer:
        raise Unreadable(
            f"{name}: made with another tokenizer (digest {header['tokenizer'][:16]}..., the target's is "
            f"{tokenizer[:16]}...): make it again with the target's"
        )


def tokenizer_digest(tokenizer: Any) -> str:
    """A name for what the ids of a tokenizer mean: SHA-256 of its vocabulary and of how it splits a text.

    Args:
        tokenizer: of transformers.
    """
    from treespec.models.same_tokenizer import PROBE

    meanings = sorted((token_id, token) for token, token_id in tokenizer.get_vocab().items())
    split = tokenizer.encode(PROBE, add_special_tokens=False, verbose=False)
    return hashlib.sha256(json.dumps([meanings, split]).encode()).hexdigest()


def _require_kind(path: str | os.PathLike[str], header: Any, kind: str) -> None:
    if not isinstance(header, dict) or not {"kind", "version"} <= set(header):
        raise Unreadable(f"{path}: no file of a draft source")
    if header["kind"] != kind:
        raise Unreadable(f"{path}: a {header['kind']}, but a {kind} is needed here")
    if header["version"] != VERSION:
        raise Unreadable(
            f"{path}: of version {header['version']}, but version {VERSION} is read here: "
            "install a newer treespec, or make it again"
        )


def _require_same_target(
    path: str | os.PathLike[str], header: Mapping[str, Any], target: str
) -> None:
    """Refuse what another model said: its best tokens would be drafted for this one."""
    learned_from = header.get("target")
    if not isinstance(learned_from, str) or not learned_from:
        raise Unreadable(
            f"{path}: does not say which target it was learned from, and the target is {target}: make it "
            "again, with save(..., target=pair.target.fingerprint)"
        )
    if learned_from != target:
        raise Unreadable(
            f"{path}: learned from another target ({learned_from}), but the target is {target}: make it "
            "again with this one"
        )


def _zipped(loaded: Any) -> Any:
    """What numpy loaded, if it is a file of several arrays.

    Raises:
        ValueError: if it is a single one.
    """
    if not isinstance(loaded, np.lib.npyio.NpzFile):
        raise ValueError("a single array")
    return loaded
