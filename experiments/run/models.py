"""Loading the pair that a config names."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from treespec.errors import CannotEnlarge, LoadError, Unavailable, UnsupportedModel
from treespec.experiments.config.build import BuiltMethod
from treespec.experiments.config.drafts import NO_DRAFT
from treespec.experiments.config.schema import ModelsConfig
from treespec.experiments.run.parts import parts_of

if TYPE_CHECKING:
    from treespec.models.load import Pair, PairOutline
    from treespec.models.transformers_model import TransformersModel

__all__ = [
    "calm_transformers",
    "load_models",
    "load_own_drafts",
    "model_data",
    "outline_own_drafts",
    "passes_data",
    "weights_data",
]


def load_models(config: ModelsConfig) -> "Pair":
    """The pair that a config names.

    Raises:
        LoadError: naming the key of the config and what is not there, or cannot be read.
        CannotEnlarge: naming the key and the size.
        TreespecError: see `treespec.load_pair`.
    """
    from treespec.models.load import load_pair

    try:
        return load_pair(
            config.target,
            config.draft,
            dtype=config.dtype,
            device=config.device,
            enlarge=config.enlarge,
            attention=config.attention,
            device_map=config.device_map,
            tensor_parallel=config.tensor_parallel,
            passes=config.passes,
            draft_passes=config.draft_passes,
        )
    except (LoadError, CannotEnlarge, Unavailable) as error:
        raise type(error)(f"{_key(config, str(error))}{error}") from error


def load_own_drafts(config: ModelsConfig, pair: "Pair", methods: Iterable[BuiltMethod]) -> "Pair":
    """The pair with the draft models that methods bring themselves, and passes of parts of the target.

    Raises:
        LoadError: naming the key of the config and what is not there, or cannot be read.
        Unavailable, UnsupportedModel: naming the key and the part, if its passes cannot be had.
        TreespecError: see `treespec.models.load.with_drafts`.
    """
    from treespec.models.load import with_drafts
    from treespec.models.passes import choose_passes

    for name in _own_drafts(methods):
        with _naming_draft():
            pair = with_drafts(
                pair,
                [name],
                dtype=config.dtype,
                attention=config.attention,
                passes=config.draft_passes,
            )
    if config.draft_passes is not None:
        for name, part in parts_of(methods, pair.target).items():
            try:
                choose_passes(part, config.draft_passes, draft=True)
            except (Unavailable, UnsupportedModel) as error:
                raise type(error)(f"models.{error} (of {name}, which drafts)") from error
    return pair


def outline_own_drafts(outline: "PairOutline", methods: Iterable[BuiltMethod]) -> "PairOutline":
    """What is known of the pair before its weights are loaded, with draft models that are not in it yet.

    Raises:
        LoadError, TreespecError: see `load_own_drafts`.
    """
    from treespec.models.load import outline_with_drafts

    for name in _own_drafts(methods):
        if name in outline.others:
            continue
        with _naming_draft():
            outline = outline_with_drafts(outline, [name])
    return outline


def _own_drafts(methods: Iterable[BuiltMethod]) -> list[str]:
    """The draft models that methods bring themselves, each once."""
    return list(dict.fromkeys(name for method in methods for name in method.own_models))


@contextmanager
def _naming_draft() -> Iterator[None]:
    """Say of what cannot be read which key of the config names it."""
    try:
        yield
    except LoadError as error:
        raise LoadError(f"draft.model: {error}") from error


def _key(config: ModelsConfig, said: str) -> str:
    """What comes before the words of an error, so that the key of the config is named."""
    if re.match(
        r"(?:device|dtype|enlarge|attention|device_map|tensor_parallel|passes|draft_passes)\b", said
    ):
        return "models."
    of_draft = config.draft is not None and repr(config.draft) in said
    return f"models.{'draft' if of_draft else 'target'}: "


def model_data(
    config: ModelsConfig, pair: "Pair", parts: Mapping[str, "TransformersModel"] | None = None
) -> dict[str, Any]:
    """What a manifest says of target and draft, and of draft models that methods bring.

    Args:
        config: that names target and draft.
        pair: loaded by it.
        parts: of the target that draft, by name: of these, the passes.
    """
    data = {"target": _model_data(config.target, pair.target)}
    if config.draft == NO_DRAFT:
        nothing = {"name": NO_DRAFT, "parameters": 0, "architecture": NO_DRAFT, "context": None}
        data["draft"] = data["target"] | nothing | {"passes": None}
    else:
        data["draft"] = _model_data(config.draft or config.target, pair.draft)
    others = {name: _model_data(name, model) for name, model in pair.others.items()}
    drafting = {name: {"passes": passes_data(part)} for name, part in (parts or {}).items()}
    return data | {k: v for k, v in (("others", others), ("parts", drafting)) if v}


def _model_data(name: str, model: "TransformersModel") -> dict[str, Any]:
    return {
        "name": name,
        **weights_data(model),
        "passes": passes_data(model),
        "architecture": type(model.model).__name__,
        "context": model.max_length,
    }


def passes_data(model: "TransformersModel") -> dict[str, Any]:
    """How a model's passes are run: what was asked for, what is had and why, and what it took."""
    return asdict(model.passes)


def weights_data(model: "TransformersModel") -> dict[str, Any]:
    """How many parameters a model has, shared ones once, and in which dtype."""
    parameters = {id(p): p for p in model.model.parameters()}.values()
    dtype = str(next(iter(parameters)).dtype).removeprefix("torch.")
    return {"parameters": sum(p.numel() for p in parameters), "dtype": dtype}


def calm_transformers() -> None:
    """No progress bars and advice of transformers between ours."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
