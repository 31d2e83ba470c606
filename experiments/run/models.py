"""Load the models that a config names, find the parts of the target that draft, and describe them."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from treespec.errors import (
    CannotEnlarge,
    LoadError,
    TokenizerMismatch,
    TreespecError,
    Unavailable,
    UnsupportedModel,
)
from treespec.experiments.config.build import BuiltMethod
from treespec.experiments.config.layers import PartOfTarget
from treespec.experiments.config.model_draft import NO_DRAFT, ModelDraft, all_of, label_of_draft
from treespec.experiments.config.schema import ModelsConfig, TreeMethod
from treespec.experiments.config.trained import TrainedHead, contracts
from treespec.experiments.records.manifest import sha256_of
from treespec.models.quantised import is_small, quantisation_of, stored_bytes
from treespec.models.variants.sublayers import Sublayer, layers_from

if TYPE_CHECKING:
    from treespec.models.load import Pair
    from treespec.models.outline import PairOutline
    from treespec.models.transformers_model import TransformersModel


OF_MODELS = (LoadError, CannotEnlarge, Unavailable, TokenizerMismatch, UnsupportedModel)
"""Errors in loading models; each is of one model, or of an argument that its message begins with."""


def as_eager(config: ModelsConfig) -> ModelsConfig:
    """The config with eager passes for `auto` and bfloat16 for `fastest`, so that nothing is measured.

    This is how tests, notebooks and `treespec generate` load models.
    """
    plain: dict[str, Any] = {
        key: None for key in ("passes", "draft_passes") if getattr(config, key) == "auto"
    }
    if config.dtype == "fastest":
        plain["dtype"] = "bfloat16"
    return config.model_copy(update=plain)


def load_models(config: ModelsConfig) -> "Pair":
    """Load the pair that a config names, without choosing anything (`as_eager`).

    Raises:
        LoadError: if a model is missing or cannot be read; names the config's key and the model.
        CannotEnlarge: if the target cannot be enlarged; names the key and the size.
        TreespecError: see `treespec.load_pair`.
    """
    from treespec.models.load import load_pair

    config = as_eager(config)
    with _naming_pair():
        return load_pair(
            config.target,
            config.draft,
            other_tokenizer=config.other_tokenizer,
            dtype=config.dtype,
            device=config.device,
            enlarge=config.enlarge,
            attention=config.attention,
            device_map=config.device_map,
            tensor_parallel=config.tensor_parallel,
            draft_dtype=config.draft_dtype,
            quantised=config.quantised,
            draft_quantised=config.draft_quantised,
            passes=config.passes,
            draft_passes=config.draft_passes,
        )


def outline_models(config: ModelsConfig, methods: Iterable[BuiltMethod]) -> "PairOutline":
    """Read all that `load_models` and `load_own_drafts` read but the weights.

    Raises:
        LoadError, TreespecError: see `load_models`.
    """
    from treespec.models.outline import outline_pair

    other = config.other_tokenizer
    with _naming_pair():
        outline = outline_pair(config.target, config.draft, other_tokenizer=other)
    return outline_own_drafts(outline, methods, other_tokenizer=other)


def load_own_drafts(config: ModelsConfig, pair: "Pair", methods: Iterable[BuiltMethod]) -> "Pair":
    """Add the draft models that methods bring to the pair; `passes.load_with_passes` chooses their passes.

    Raises:
        LoadError: if a model is missing or cannot be read; names the config's key and the model.
        TreespecError: see `treespec.models.load.with_drafts`.
    """
    from treespec.models.load import with_drafts

    for name in _own_drafts(methods):
        with _naming_draft():
            dtype = config.draft_dtype or as_eager(config).dtype
            pair = with_drafts(
                pair, [name], dtype=dtype, attention=config.attention,
                other_tokenizer=config.other_tokenizer, quantised=config.draft_quantised,
            )  # fmt: skip
    return pair


def outline_own_drafts(
    outline: "PairOutline", methods: Iterable[BuiltMethod], *, other_tokenizer: bool = False
) -> "PairOutline":
    """Add the draft models that methods bring, without loading weights, to an outline of the pair.

    Raises:
        LoadError, TreespecError: see `load_own_drafts`.
    """
    from treespec.models.outline import outline_with_drafts

    for name in _own_drafts(methods):
        if name not in outline.others:
            with _naming_draft():
                outline = outline_with_drafts(outline, [name], other_tokenizer=other_tokenizer)
    return outline


def require_quantised(config: ModelsConfig, methods: Iterable[BuiltMethod]) -> None:
    """Refuse quantisations that are not available or not for these models, before weights are read.

    Raises:
        LoadError, Unavailable: name the config's key.
    """
    if config.quantised is None and config.draft_quantised is None:
        return
    from treespec.models.pair_places import draft_source, locate_pair
    from treespec.models.quantised import require_quantisation
    from treespec.models.source import dtype_of, find, require_quantisable

    dtype = as_eager(config).dtype
    own_dtype, key = dtype_of(config.draft_dtype or dtype), "draft_quantised"
    with _naming_pair():
        require_quantisation(config.quantised, config.device)
        require_quantisation(config.draft_quantised, config.device, key)
        target, draft, _ = locate_pair(config.target, config.draft)
        require_quantisable(target, config.quantised, "quantised", dtype_of(dtype))
        if draft is not None:
            require_quantisable(draft, config.draft_quantised, key, own_dtype)
    for name in _own_drafts(methods):
        with _naming_draft():
            own = find(draft_source(name))
            require_quantisable(own, config.draft_quantised, key, own_dtype)


def _own_drafts(methods: Iterable[BuiltMethod]) -> list[str]:
    """The names of the draft models that methods bring themselves, each once."""
    return list(dict.fromkeys(name for method in methods for name in method.own_models))


@contextmanager
def _naming_draft() -> Iterator[None]:
    """Put the config's key before the message of an error about a draft model of a method."""
    try:
        yield
    except OF_MODELS as error:
        key = "models." if error.role is None else "draft.model: "
        raise type(error)(f"{key}{error}") from error


@contextmanager
def _naming_pair() -> Iterator[None]:
    """Put the config's key before the message of an error about its models."""
    try:
        yield
    except OF_MODELS as error:
        key = "" if error.role is None else f"{error.role}: "  # else the message begins with one
        raise type(error)(f"models.{key}{error}") from error


def part_name(skip: Iterable[Sublayer], layers: int) -> str:
    """A name for the target without some sublayers.

    Example:
        >>> part_name(layers_from(2, 6), 6), part_name([Sublayer(3, "mlp"), Sublayer(1, "mlp")], 6)
        ('the first 2 of 6 layers', 'the target without mlp.1, mlp.3')
    """
    left_out = frozenset(skip)
    first = layers - len(left_out) // 2
    if left_out == {*layers_from(first, layers)}:
        return f"the first {first} of {layers} layers"
    return f"the target without {', '.join(map(str, sorted(left_out)))}"


def parts_of(
    methods: Iterable[BuiltMethod], target: "TransformersModel"
) -> dict[str, "TransformersModel"]:
    """The parts of a target that draft, and trained heads that run passes as models do, each once, by name.

    Those that cannot be made are left out here; they are refused when the drafter is made, by an error that
    names the config's key.
    """
    parts: dict[str, TransformersModel] = {}
    drafts = [m.config.draft for m in methods if isinstance(m.config, TreeMethod)]
    for source in (source for draft in drafts for source in all_of(draft)):
        if isinstance(source, PartOfTarget):
            with suppress(TreespecError):
                skip = source.skipped(target.layer_count)
                parts[part_name(skip, target.layer_count)] = target.without(skip)
        if isinstance(source, TrainedHead) and source.runs_passes:
            with suppress(TreespecError):
                parts[label_of_draft(source)] = source.head(target)
    return parts


def trimmed_of(methods: Iterable[BuiltMethod], pair: "Pair") -> dict[str, "TransformersModel"]:
    """The drafts whose vocabulary methods trim, by the name of each source."""
    drafts = [m.config.draft for m in methods if isinstance(m.config, TreeMethod)]
    trimmed: dict[str, Any] = {
        label_of_draft(source): source.model_of(pair)
        for draft in drafts
        for source in all_of(draft)
        if isinstance(source, ModelDraft) and source.frequent is not None
    }
    return trimmed


def heads_of(methods: Iterable[BuiltMethod], target: "TransformersModel") -> dict[str, str]:
    """The conventions by which the trained heads of methods are run, by the name of each source."""
    drafts = (m.config.draft for m in methods if isinstance(m.config, TreeMethod))
    return contracts(drafts, target)


def model_data(
    config: ModelsConfig,
    pair: "Pair",
    parts: Mapping[str, "TransformersModel"] | None = None,
    heads: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """`models` of the manifest: target, draft, and what methods bring to draft (SCHEMA.md)."""
    data = {"target": _model_data(config.target, pair.target)}
    if config.draft == NO_DRAFT:
        no_draft = {"name": NO_DRAFT, "parameters": 0, "architecture": NO_DRAFT, "context": None}
        data["draft"] = (
            data["target"] | no_draft | {"passes": None, "gguf": None, "quantised": None}
        )
    else:
        data["draft"] = _model_data(config.draft or config.target, pair.draft)
    others = {name: _model_data(name, model) for name, model in pair.others.items()}
    part_passes = {name: {"passes": passes_data(part)} for name, part in (parts or {}).items()}
    contracts_of_heads = {name: {"contract": contract} for name, contract in (heads or {}).items()}
    more = (("others", others), ("parts", part_passes), ("heads", contracts_of_heads))
    return data | {key: value for key, value in more if value}


def _model_data(name: str, model: "TransformersModel") -> dict[str, Any]:
    shared = getattr(model, "shared", None)
    return {
        "name": name,
        **({} if shared is None else {"shared_tokens": len(shared.target_ids)}),
        **weights_data(model),
        "passes": passes_data(model),
        "attention": model.attention,
        "architecture": type(model.model).__name__,
        "context": (model if shared is None else model.inner).max_length,  # pyrefly: ignore[missing-attribute]
        "quantised": quantisation_of(model.model),
        "gguf": model.gguf and {"file": model.gguf, "sha256": sha256_of(model.gguf)},
    }


def dequantised(pair: "Pair") -> list[str]:
    """A sentence about each model whose weights are stored in fewer bits than it reads in a pass."""
    unpacked = [
        (model.gguf or f"{model.model.name_or_path} ({quantisation_of(model.model)})", model)
        for model in pair.models
        if model.gguf is not None or _is_unpacked(model)
    ]
    return [
        f"{name}: its weights are dequantised to {weights_data(model)['dtype']}, so a pass costs what it "
        "would without quantisation"
        for name, model in unpacked
    ]


def _is_unpacked(model: "TransformersModel") -> bool:
    return quantisation_of(model.model) is not None and not is_small(model.model)


def passes_data(model: "TransformersModel") -> dict[str, Any]:
    """How a model's passes are run: as asked for, as chosen and why, and the time that it took."""
    return asdict(model.passes)


def weights_data(model: "TransformersModel") -> dict[str, Any]:
    """Number of parameters of a model, shared ones counted once, their bytes as stored, and dtype."""
    parameters = {id(p): p for p in model.model.parameters()}.values()
    return {
        "parameters": sum(p.numel() for p in parameters),
        "weight_bytes": sum(map(stored_bytes, parameters)),
        "dtype": str(next(iter(parameters)).dtype).removeprefix("torch."),
    }


def calm_transformers() -> None:
    """Silence progress bars and advice of transformers, which would disturb our own output."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
