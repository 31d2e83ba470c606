"""A target, a draft and their tokenizer, from one call."""

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from treespec.errors import LoadError, UnsupportedModel
from treespec.models.enlarge import EnlargeTo
from treespec.models.enlarge import enlarge as enlarge_model
from treespec.models.passes import choose_passes, require_passes
from treespec.models.probe import require_attention
from treespec.models.reading import permitted
from treespec.models.same_tokenizer import require_same_tokenizer
from treespec.models.source import (
    Place,
    Source,
    device_of,
    dtype_of,
    find,
    is_hub_id,
    read_config,
    read_model,
    read_tokenizer,
    require_weights,
)
from treespec.models.spread import (
    DeviceMap,
    device_map_arguments,
    require_whole,
    tensor_parallel_arguments,
    watch_processes,
)
from treespec.models.support import context_length
from treespec.models.transformers_model import TransformersModel

__all__ = [
    "NO_DRAFT",
    "ModelOutline",
    "NoDraftModel",
    "Pair",
    "PairOutline",
    "load_pair",
    "outline_pair",
    "outline_with_drafts",
    "with_drafts",
]

EMBEDDED = "embedded"

NO_DRAFT = "none"
"""Instead of a draft: there is none, and none is read."""


class NoDraftModel(TransformersModel):
    """Stands where a pair has no draft model; asked for anything but its limits, it says so.

    Args:
        vocab_size: of the target.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size, self.max_length = vocab_size, sys.maxsize

    def __getattr__(self, name: str) -> Any:
        """Whatever a model has.

        Raises:
            LoadError: always.
        """
        if name.startswith("__"):  # asked by Python itself
            raise AttributeError(name)
        raise LoadError(
            f"this needs a draft model, but the draft is {NO_DRAFT!r}: name one, or take another source"
        )


@dataclass(frozen=True, eq=False)
class Pair:
    """Two models that speak of the same tokens.

    Args:
        target: the model whose distribution is kept.
        draft: a cheaper model, its vocabulary cut or padded to the target's.
        tokenizer: the target's.
        name: what the user called the pair, for records.
        others: draft models besides `draft`, by folder or hub id.
    """

    target: TransformersModel
    draft: TransformersModel
    tokenizer: Tokenizer = field(repr=False)
    name: str
    others: Mapping[str, TransformersModel] = field(default_factory=dict)

    @property
    def models(self) -> list[TransformersModel]:
        """All models that are loaded."""
        drafts = [] if isinstance(self.draft, NoDraftModel) else [self.draft]
        return [self.target, *drafts, *self.others.values()]

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """Ids that end a text, as `generate` takes them: those of the target's generation settings.

        Where these state none, those of its config; else the tokenizer's.
        """
        model = self.target.model
        for stated in (
            getattr(model.generation_config, "eos_token_id", None),
            getattr(model.config.get_text_config(decoder=True), "eos_token_id", None),
            self.tokenizer.eos_token_id,
        ):
            if stated is not None:
                return frozenset([stated] if isinstance(stated, int) else stated)
        return frozenset()


def load_pair(
    name_or_target: Source,
    draft: Source | None = None,
    *,
    dtype: torch.dtype | str = "float32",
    device: torch.device | str = "cpu",
    enlarge: int | str | EnlargeTo | None = None,
    attention: str = "auto",
    device_map: DeviceMap | None = None,
    tensor_parallel: bool = False,
    passes: str | None = None,
    draft_passes: str | None = None,
) -> Pair:
    """Load a target and a draft model.

    Args:
        name_or_target: "embedded", the small pair that comes with treespec; or the folder or hub id of the
            target; or a folder with the subfolders target and draft.
        draft: folder or hub id of the draft; not needed where the first argument brings one; "none" if
            there is to be none, for sources that draft without a model.
        dtype: of both models: a torch dtype, its name, or "auto" for what each was stored in.
        device: where both models run.
        enlarge: makes the target as expensive as a larger model without changing its tokens
            (`treespec.models.enlarge`): a number of parameters, text like "100M", or config fields.
        attention: how both models run trees, as `TransformersModel` takes it: "auto", "transformers", or
            an implementation ("triton", "sdpa", "two_pass", "flex", "reference"), which then runs or is
            refused.
        device_map: spreads the target over devices, instead of `device`: "auto" over all GPUs, or a
            mapping of modules to devices, as transformers takes it (needs accelerate). The draft is on
            one device, that of the target's embeddings.
        tensor_parallel: splits every layer of the target over the processes of torchrun, each of which
            must decode the same texts from the same seeds. The draft is whole in each.
        passes: how the target's passes over trees are run (`treespec.models.passes`): "eager", "compiled",
            "captured", or "auto", which stays eager where the better ones cannot be had and says why
            (`pair.target.passes`). Compiling takes 10 to 30 seconds a model. None: captured on CUDA where
            that can be, else eager.
        draft_passes: likewise of the draft; None for eager passes on CUDA too.

    Returns:
        The pair, loaded without a word on stderr unless something is downloaded.

    Raises:
        LoadError: if a model, its weights, its tokenizer, the dtype or the device cannot be had.
        TokenizerMismatch: if the two models' token ids mean different text.
        UnsupportedModel: if a model cannot verify trees exactly, or `enlarge` is asked of another
            architecture than llama.
        CannotEnlarge: if `enlarge` is no size, or smaller than the target.
        Unavailable: if `attention` is not known, or does not run on the device; if passes that were asked
            for cannot be had.
        InvalidArgument: if `passes` or `draft_passes` is not known.
    """
    require_passes(passes)
    require_passes(draft_passes)
    weights_dtype, place = dtype_of(dtype), device_of(device)
    spread = _spread(place, device_map, tensor_parallel, enlarge)
    if not spread:
        require_attention(attention, place)
    target_place, draft_place, tokenizer = _found(name_or_target, draft)
    target_model = read_model(target_place, weights_dtype, place, spread)
    if spread:
        require_whole(target_model, target_place.name)
        place = (
            target_model.device
        )  # of the embeddings: tokens enter there, and logits come back to it
    if tensor_parallel:
        watch_processes(target_model)
    if enlarge is not None:
        target_model = enlarge_model(target_model, enlarge)
    target = _tried(target_place, target_model, attention)
    choose_passes(target, passes)
    draft_model: TransformersModel = NoDraftModel(target.vocab_size)
    if draft_place is not None:
        read = read_model(draft_place, weights_dtype, place)
        draft_model = _tried(draft_place, read, attention, target.vocab_size)
        choose_passes(draft_model, draft_passes, draft=True)
    return Pair(
        target=target,
        draft=draft_model,
        tokenizer=tokenizer,
        name=os.fspath(name_or_target) + ("" if draft is None else f" + {os.fspath(draft)}"),
    )


def with_drafts(
    pair: Pair,
    names: Iterable[str],
    *,
    dtype: torch.dtype | str = "float32",
    attention: str = "auto",
    passes: str | None = None,
) -> Pair:
    """The pair with further draft models, on the device of its target.

    Args:
        pair: that is loaded.
        names: folders or hub ids.
        dtype: of each, see `load_pair`.
        attention: likewise.
        passes: likewise, the draft's.

    Raises:
        LoadError, TokenizerMismatch, UnsupportedModel: see `load_pair`.
    """
    weights_dtype, others = dtype_of(dtype), {}
    for name in names:
        place = _further(name, pair.tokenizer)
        model = read_model(place, weights_dtype, pair.target.device)
        others[name] = _tried(place, model, attention, pair.target.vocab_size)
        choose_passes(others[name], passes, draft=True)
    return replace(pair, others={**pair.others, **others})


@dataclass(frozen=True)
class ModelOutline:
    """What the configuration of a model says.

    Args:
        max_length: positions that it was made for.
        vocab_size: width of its logits.
        layer_count: its layers; 0 where there is no model.
    """

    max_length: int
    vocab_size: int
    layer_count: int


@dataclass(frozen=True)
class PairOutline:
    """What is known of a pair before its weights are loaded.

    Args:
        target: its limits.
        draft: its limits, its vocabulary cut or padded to the target's.
        tokenizer: the target's.
        others: further draft models, by folder or hub id.
    """

    target: ModelOutline
    draft: ModelOutline
    tokenizer: Tokenizer = field(repr=False)
    others: Mapping[str, ModelOutline] = field(default_factory=dict)


def outline_pair(name_or_target: Source, draft: Source | None = None) -> PairOutline:
    """Look at a pair in seconds and without its memory: all that `load_pair` reads but the weights.

    Args:
        name_or_target: as `load_pair` takes it.
        draft: likewise.

    Raises:
        LoadError, TokenizerMismatch, UnsupportedModel: see `load_pair`; local weights are refused if a file
            of them is missing or cut short.
    """
    target_place, draft_place, tokenizer = _found(name_or_target, draft)
    target = _outline(target_place)
    if draft_place is None:
        return PairOutline(target, ModelOutline(sys.maxsize, target.vocab_size, 0), tokenizer)
    draft_limits = replace(_outline(draft_place), vocab_size=target.vocab_size)
    return PairOutline(target, draft_limits, tokenizer)


def outline_with_drafts(outline: PairOutline, names: Iterable[str]) -> PairOutline:
    """The outline with those of further draft models: all that `with_drafts` reads but the weights.

    Args:
        outline: of the pair.
        names: folders or hub ids.

    Raises:
        LoadError, TokenizerMismatch, UnsupportedModel: see `outline_pair`.
    """
    others = {}
    for name in names:
        limits = _outline(_further(name, outline.tokenizer))
        others[name] = replace(limits, vocab_size=outline.target.vocab_size)
    return replace(outline, others={**outline.others, **others})


def _further(name: str, tokenizer: Tokenizer) -> Place:
    """Where a further draft model is, whose tokens are those of the pair."""
    with permitted():
        place = find(_draft_source(name))
    require_same_tokenizer(tokenizer, read_tokenizer(place))
    return place


def _outline(place: Place) -> ModelOutline:
    config = read_config(place)
    require_weights(place)
    text = config.get_text_config(decoder=True)
    layers = getattr(text, "num_hidden_layers", 0)
    return ModelOutline(context_length(config), text.vocab_size, layers)


def _found(name_or_target: Source, draft: Source | None) -> tuple[Place, Place | None, Tokenizer]:
    """Where the two models are, and the tokenizer that they share; no place for the draft "none"."""
    with permitted():
        if draft is not None and os.fspath(draft) == NO_DRAFT:
            target_place, draft_place = find(_target_source(name_or_target)), None
        else:
            target_place, draft_place = map(find, _sources(name_or_target, draft))
    tokenizer = read_tokenizer(target_place)
    if draft_place is not None:
        require_same_tokenizer(tokenizer, read_tokenizer(draft_place))
    return target_place, draft_place, tokenizer


def _tried(
    place: Place, model: PreTrainedModel, attention: str, vocab_size: int | None = None
) -> TransformersModel:
    """The model as one that runs trees; if it cannot, its place is named."""
    try:
        return TransformersModel(model, vocab_size=vocab_size, attention=attention)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{place.name!r}: {error}") from error


def _spread(
    device: torch.device,
    device_map: DeviceMap | None,
    tensor_parallel: bool,
    enlarge: int | str | EnlargeTo | None,
) -> dict[str, Any]:
    """How the target is laid over several devices; empty for one."""
    if device_map is None and not tensor_parallel:
        return {}
    if enlarge is not None:
        raise LoadError(
            "a target spread over devices (device_map, tensor_parallel) cannot be enlarged: leave out one"
        )
    if tensor_parallel:
        if device_map is not None:
            raise LoadError("device_map and tensor_parallel exclude each other: leave out one")
        return tensor_parallel_arguments(device)
    assert device_map is not None
    return device_map_arguments(device_map)


def _embedded() -> Path:
    """The folder of the embedded pair."""
    folder = Path(str(files("treespec").joinpath(EMBEDDED)))
    if not (folder / "target").is_dir():
        raise LoadError(f"the embedded pair is missing from this installation: no {str(folder)!r}")
    return folder


def _sources(name_or_target: Source, draft: Source | None) -> tuple[Source, Source]:
    """Where the two models are: as given, or the subfolders of a pair's folder."""
    name, folder = os.fspath(name_or_target), _folder(name_or_target)
    if draft is not None:
        return _target_source(name_or_target), _draft_source(draft)
    if _holds_pair(folder):
        return folder / "target", folder / "draft"
    if folder.is_dir() or not is_hub_id(name_or_target):
        read_config(find(name_or_target))  # a folder that is missing or damaged is refused for that
    nowhere = "" if folder.is_dir() else " (and it is no folder here)"
    raise LoadError(
        f"{name!r} is a target without a draft{nowhere}: name a second, smaller model of the same "
        f"tokenizer as the draft; only {EMBEDDED!r} and folders with target/ and draft/ bring their own"
    )


def _folder(name: Source) -> Path:
    return _embedded() if os.fspath(name) == EMBEDDED else Path(name).expanduser()


def _holds_pair(folder: Path) -> bool:
    return (folder / "target").is_dir() and not (folder / "config.json").exists()


def _target_source(name: Source) -> Source:
    """The target by itself: that of a pair's folder, or what is named."""
    folder = _folder(name)
    return folder / "target" if _holds_pair(folder) else name


def _draft_source(name: Source) -> Source:
    return _embedded() / "draft" if os.fspath(name) == EMBEDDED else name
