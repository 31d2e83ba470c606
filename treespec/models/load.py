"""Load a target, a draft and their tokenizer in one call."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from treespec.checks import plain_tokens
from treespec.errors import CannotEnlarge, LoadError, UnsupportedModel, about
from treespec.models.encoder_source import source_ids
from treespec.models.pair_places import (
    NO_DRAFT,
    draft_source,
    locate_pair,
    other_tokenizer_of,
    require_decoder,
)
from treespec.models.passes.choosing_passes import choose_passes, require_passes
from treespec.models.probe import require_attention
from treespec.models.quantised import require_quantisation, without_bars
from treespec.models.shared_tokens import shared_tokens
from treespec.models.some_tokens import Intersection
from treespec.models.source import (
    Place,
    Source,
    device_of,
    dtype_of,
    find,
    read_config,
    read_model,
    require_quantisable,
)
from treespec.models.transformers_model import TransformersModel
from treespec.models.variants.enlarge import EnlargeTo
from treespec.models.variants.enlarge import enlarge as enlarge_model
from treespec.models.variants.spread import (
    DeviceMap,
    device_map_arguments,
    require_whole,
    tensor_parallel_arguments,
    watch_processes,
)

if TYPE_CHECKING:
    DraftModel = TransformersModel  # all that such a model has, an `Intersection` passes on
else:
    DraftModel = TransformersModel | Intersection


class NoDraftModel(TransformersModel):
    """Placeholder for a missing draft model: it has limits, and any other use raises `LoadError`.

    Args:
        vocab_size: vocabulary size of the target.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size, self.max_length = vocab_size, sys.maxsize

    def __getattr__(self, name: str) -> Any:
        """Refuse every attribute that a real model would have.

        Raises:
            LoadError: for every name without leading double underscores.
        """
        if name.startswith("__"):  # looked up by Python itself
            raise AttributeError(name)
        raise LoadError(
            f"this needs a draft model, but the draft is {NO_DRAFT!r}: "
            "name a draft model, or choose another draft source"
        )


@dataclass(frozen=True, eq=False)
class Pair:
    """A target and a draft model, which share a tokenizer unless the draft translates its own ids.

    Args:
        target: the model whose distribution is preserved.
        draft: a cheaper model, its vocabulary cut or padded to the target's.
        tokenizer: the target's tokenizer.
        name: the name under which the user loaded the pair, for records.
        others: draft models besides `draft`, by folder or hub id.
        source: token ids of the source that its encoders have read (`on`); None without one.
    """

    target: TransformersModel
    draft: DraftModel
    tokenizer: Tokenizer = field(repr=False)
    name: str
    others: Mapping[str, DraftModel] = field(default_factory=dict)
    source: tuple[int, ...] | None = None

    def on(self, source: str | Sequence[int]) -> "Pair":
        """The pair behind a source: every encoder-decoder among its models encodes it, once.

        Args:
            source: text, encoded with the special tokens that the tokenizer adds; or token ids.

        Raises:
            UnsupportedModel: if the target has no encoder.
            InvalidPrompt: if the source is empty, holds ids beyond the vocabulary, or is longer than an
                encoder takes.
        """
        if isinstance(source, str):
            source = source_ids(self.tokenizer, source)
        ids = plain_tokens("the source", source)
        read = torch.tensor(ids, dtype=torch.long, device=self.target.device)
        self.require_source(ids)

        def behind(model: TransformersModel) -> TransformersModel:
            decoder_only = isinstance(model, NoDraftModel) or not model.needs_source
            return model if decoder_only else model.condition(read)

        return replace(
            self,
            target=self.target.condition(read),
            draft=behind(self.draft),
            others={name: behind(model) for name, model in self.others.items()},
            source=tuple(ids),
        )

    def require_source(self, source: Sequence[int]) -> None:
        """Refuse a source that an encoder of these models cannot read.

        Raises:
            InvalidPrompt: see `on`.
        """
        for model in self.models:
            if model.needs_source:
                model.require_source(torch.tensor([*source], dtype=torch.long))

    @property
    def models(self) -> list[DraftModel]:
        drafts = [] if isinstance(self.draft, NoDraftModel) else [self.draft]
        return [self.target, *drafts, *self.others.values()]

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """Token ids that end a text, found as `generate` finds them.

        The first of these that states any: the target's generation settings, its config, the tokenizer.
        """
        model = self.target.model
        for ids in (
            getattr(model.generation_config, "eos_token_id", None),
            getattr(model.config.get_text_config(decoder=True), "eos_token_id", None),
            self.tokenizer.eos_token_id,
        ):
            if ids is not None:
                return frozenset([ids] if isinstance(ids, int) else ids)
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
    other_tokenizer: bool = False,
    draft_dtype: torch.dtype | str | None = None,
    quantised: str | None = None,
    draft_quantised: str | None = None,
) -> Pair:
    """Load a target and a draft model.

    Args:
        name_or_target: "embedded" for the small pair that comes with treespec; the folder, GGUF file or
            hub id of the target; a model of `models.known_models` by name, such as "smollm2" (without a
            draft unless one is named); or a folder with the subfolders target and draft.
        draft: folder, GGUF file or hub id of the draft; not needed if the first argument is a pair; "none"
            for draft sources that need no model.
        dtype: dtype of both models: a torch dtype, its name, or "auto" for the dtype that each was
            stored in.
        device: device of both models.
        enlarge: makes the target as expensive as a larger model without changing its tokens
            (`models.variants.enlarge`): a number of parameters, text like "100M", or config fields.
        attention: how both models run trees, as in `TransformersModel`: "auto", "transformers", or an
            implementation ("triton", "sdpa", "two_pass", "flex", "reference"), for which there is no
            fallback.
        device_map: spreads the target over devices, instead of `device`: "auto" for all GPUs, or a
            mapping of modules to devices as in transformers (needs accelerate). The draft runs on the
            device of the target's embeddings.
        tensor_parallel: splits every layer of the target over the processes of torchrun, each of which
            must decode the same texts from the same seeds. Every process holds the whole draft.
        passes: how the target runs its passes over trees: "eager", "compiled",
            "captured", or "auto", which stays eager if neither faster kind is possible and says why
            (`pair.target.passes`). Compiling takes 10 to 30 seconds per model. None: captured on CUDA if
            possible, else eager.
        draft_passes: the same for the draft, except that None means eager on CUDA too.
        other_tokenizer: take a draft whose tokenizer differs from the target's too. It drafts the tokens
            that both know (`models.some_tokens.Intersection`), or strings (`treespec.draft.StringDrafter`).
        draft_dtype: dtype of the draft; None for that of `dtype`.
        quantised: quantises the target's weights while they are loaded: "int8-weight-only" or
            "int8-dynamic" (torchao), "bitsandbytes-int8" or "bitsandbytes-nf4" (CUDA). None leaves them
            as they are stored, quantised or not. The quantised model is the target that is preserved.
        draft_quantised: the same for the draft.

    Returns:
        The pair. Loading prints nothing to stderr unless something is downloaded.

    Raises:
        LoadError: if a model, its weights, its tokenizer, the dtype or the device is not available.
        TokenizerMismatch: if the two models' token ids mean different text and `other_tokenizer` is not
            given, or they share no token.
        UnsupportedModel: if a model cannot verify trees exactly, or `enlarge` is given for an
            architecture other than llama.
        CannotEnlarge: if `enlarge` is not a size, or is smaller than the target.
        Unavailable: if `attention` is unknown or does not run on the device, if the requested passes are
            not possible, or if a quantisation is not available.
        InvalidArgument: if `passes`, `draft_passes` or a quantisation is unknown.
    """
    require_passes(passes)
    require_passes(draft_passes)
    weights_dtype, torch_device = dtype_of(dtype), device_of(device)
    own_dtype = weights_dtype if draft_dtype is None else dtype_of(draft_dtype)
    require_quantisation(quantised, torch_device)
    require_quantisation(draft_quantised, torch_device, "draft_quantised")
    spread = _spread_arguments(torch_device, device_map, tensor_parallel, enlarge)
    if not spread:
        require_attention(attention, torch_device)
    target_place, draft_place, tokenizer = locate_pair(name_or_target, draft)
    with about("target"):
        with_source = read_config(target_place).is_encoder_decoder
    other = None
    if draft_place is not None:
        with about("draft"):
            require_decoder(draft_place, with_source)
            other = other_tokenizer_of(tokenizer, draft_place, other_tokenizer)
        require_quantisable(draft_place, draft_quantised, "draft_quantised", own_dtype)
    require_quantisable(target_place, quantised, "quantised", weights_dtype)
    if quantised is not None and enlarge is not None:
        raise CannotEnlarge(
            f"quantised={quantised!r} with enlarge={enlarge!r}: quantised weights cannot be enlarged, so "
            "leave one of the two out"
        )
    with about("target"):
        target_weights = read_model(target_place, weights_dtype, torch_device, spread, quantised)
    if spread:
        require_whole(target_weights, target_place.shown, device_map)
        # The device of the embeddings: tokens enter there, and logits return to it.
        torch_device = target_weights.device
    if tensor_parallel:
        watch_processes(target_weights)
    if enlarge is not None:
        target_weights = enlarge_model(target_weights, enlarge)
    with about("target"):
        target = _probed(target_place, target_weights, attention)
    choose_passes(target, passes)
    draft_model: DraftModel = NoDraftModel(target.vocab_size)
    if draft_place is not None:
        width = None if other else target.vocab_size
        with about("draft"):
            draft_weights = read_model(
                draft_place, own_dtype, torch_device, quantised=draft_quantised
            )
            own = _probed(draft_place, draft_weights, attention, width)
        choose_passes(own, draft_passes, draft=True)
        draft_model = _in_ids_of(target.vocab_size, tokenizer, own, other)
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
    other_tokenizer: bool = False,
    quantised: str | None = None,
) -> Pair:
    """Add further draft models to a pair, on the device of its target.

    Args:
        pair: a loaded pair.
        names: folders or hub ids of the draft models.
        dtype: dtype of each draft model, as in `load_pair`.
        attention: how each runs trees, as in `load_pair`.
        passes: how each runs its passes, as `draft_passes` in `load_pair`.
        other_tokenizer: as in `load_pair`.
        quantised: how the weights of each are quantised, as in `load_pair`.

    Raises:
        LoadError, TokenizerMismatch, UnsupportedModel, Unavailable: see `load_pair`.
    """
    require_quantisation(quantised, pair.target.device, "draft_quantised")
    weights_dtype, drafts = dtype_of(dtype), {}
    for name in names:
        with about("draft"):
            place = find(draft_source(name))
            require_decoder(place, pair.target.needs_source)
            other = other_tokenizer_of(pair.tokenizer, place, other_tokenizer)
        require_quantisable(place, quantised, "draft_quantised", weights_dtype)
        with about("draft"):
            weights = read_model(place, weights_dtype, pair.target.device, quantised=quantised)
            model = _probed(place, weights, attention, None if other else pair.target.vocab_size)
        choose_passes(model, passes, draft=True)
        drafts[name] = _in_ids_of(pair.target.vocab_size, pair.tokenizer, model, other)
    return replace(pair, others={**pair.others, **drafts})


def _in_ids_of(
    vocab_size: int, tokenizer: Tokenizer, draft: TransformersModel, other: Tokenizer | None
) -> DraftModel:
    """A draft model in the ids of the target, which has this tokenizer."""
    if other is None:
        return draft
    shared = shared_tokens(tokenizer, other, vocab_size, draft.vocab_size)
    translated: Any = Intersection(draft, shared)
    return translated


def _probed(
    place: Place, weights: PreTrainedModel, attention: str, vocab_size: int | None = None
) -> TransformersModel:
    """Wrap and probe a model; name its place in the error if it cannot run trees."""
    try:
        with without_bars():  # some quantised weights are unpacked at the first pass
            model = TransformersModel(weights, vocab_size=vocab_size, attention=attention)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{place.shown!r}: {error}") from error
    model.gguf = None if place.gguf is None else place.shown
    return model


def _spread_arguments(
    device: torch.device,
    device_map: DeviceMap | None,
    tensor_parallel: bool,
    enlarge: int | str | EnlargeTo | None,
) -> dict[str, Any]:
    """Arguments for `from_pretrained` that spread the target over devices; empty for one device."""
    if device_map is None and not tensor_parallel:
        return {}
    if enlarge is not None:
        raise LoadError(
            "enlarge: a target spread over devices (device_map, tensor_parallel) cannot be enlarged: "
            "leave one of the two out"
        )
    if tensor_parallel:
        if device_map is not None:
            raise LoadError("device_map and tensor_parallel exclude each other: leave one out")
        return tensor_parallel_arguments(device)
    assert device_map is not None
    return device_map_arguments(device_map)
