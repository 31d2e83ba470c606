"""Where the models of a pair are, and whether they fit together by the files beside their weights."""

import os
from importlib.resources import files
from pathlib import Path

from transformers import PreTrainedTokenizerBase as Tokenizer

from treespec.errors import LoadError, TokenizerMismatch, UnsupportedModel, about
from treespec.models.known_models import KNOWN
from treespec.models.same_tokenizer import require_same_tokenizer
from treespec.models.shared_tokens import shared_tokens
from treespec.models.source import Place, Source, find, is_hub_id, read_config, read_tokenizer

EMBEDDED = "embedded"

NO_DRAFT = "none"
"""Given in place of a draft to load no draft model."""


def target_place(name_or_target: Source) -> Place:
    """Where the target of `load_pair` is.

    Raises:
        LoadError: if it is nowhere.
    """
    return find(_target_source(name_or_target))


def locate_pair(
    name_or_target: Source, draft: Source | None
) -> tuple[Place, Place | None, Tokenizer]:
    """Locate both models and read the target's tokenizer; the draft "none" has no place."""
    if draft is None and os.fspath(name_or_target) in KNOWN:
        draft = NO_DRAFT
    with_draft = draft is None or os.fspath(draft) != NO_DRAFT
    with about("target"):
        if with_draft:
            target, draft = _pair_sources(name_or_target, draft)
        else:
            target = _target_source(name_or_target)
        target_place = find(target)
    with about("draft"):
        draft_place = find(draft) if with_draft and draft is not None else None
    with about("target"):
        return target_place, draft_place, read_tokenizer(target_place)


def other_tokenizer_of(tokenizer: Tokenizer, place: Place, allowed: bool) -> Tokenizer | None:
    """The tokenizer of a draft, if it differs from the target's and may.

    Raises:
        TokenizerMismatch: if it may not, or shares no token with the target's.
        UnsupportedModel: if the draft would read the source of an encoder-decoder in ids of its own.
    """
    draft = read_tokenizer(place)
    try:
        require_same_tokenizer(tokenizer, draft)
    except TokenizerMismatch:
        if not allowed:
            raise
    else:
        return None
    if (config := read_config(place)).is_encoder_decoder:
        raise UnsupportedModel(
            f"{place.shown!r}: the draft is a {config.model_type} model of another tokenizer, which would "
            "read the source in the target's ids: choose a draft of the target's family"
        )
    shared_tokens(tokenizer, draft, len(tokenizer), len(draft))
    return draft


def require_decoder(draft: Place, with_source: bool) -> None:
    """Refuse a draft that reads a source behind a target that has none."""
    config = read_config(draft)
    if config.is_encoder_decoder and not with_source:
        raise UnsupportedModel(
            f"{draft.shown!r}: the draft is an encoder-decoder ({config.model_type}), but the target reads "
            "no source that it could encode: choose a decoder as the draft"
        )


def embedded_folder() -> Path:
    folder = Path(str(files("treespec").joinpath(EMBEDDED)))
    if not (folder / "target").is_dir():
        raise LoadError(f"the embedded pair is missing from this installation: no {str(folder)!r}")
    return folder


def _pair_sources(name_or_target: Source, draft: Source | None) -> tuple[Source, Source]:
    """The sources of both models: as given, or the subfolders of a pair's folder."""
    name, folder = os.fspath(name_or_target), _folder(name_or_target)
    if draft is not None:
        return _target_source(name_or_target), draft_source(draft)
    if _holds_pair(folder):
        return folder / "target", folder / "draft"
    if folder.is_dir() or not is_hub_id(name_or_target):
        read_config(find(name_or_target))  # reports a missing or damaged folder first
    not_local = "" if folder.exists() else " (and not a local folder)"
    raise LoadError(
        f"{name!r} is a target without a draft{not_local}: name a second, smaller model with the same "
        f"tokenizer as the draft, or {NO_DRAFT!r} and a source that runs no model (`--draft none --source "
        "lookup`; in a config `models: {draft: none}` and `draft: {source: lookup}`); only "
        f"{EMBEDDED!r} and folders with target/ and draft/ include one"
    )


def _folder(name: Source) -> Path:
    return embedded_folder() if os.fspath(name) == EMBEDDED else Path(name).expanduser()


def _holds_pair(folder: Path) -> bool:
    return (folder / "target").is_dir() and not (folder / "config.json").exists()


def _target_source(name: Source) -> Source:
    """The source of the target alone: the subfolder of a pair's folder, or the name itself."""
    folder = _folder(name)
    return folder / "target" if _holds_pair(folder) else name


def draft_source(name: Source) -> Source:
    return embedded_folder() / "draft" if os.fspath(name) == EMBEDDED else name
