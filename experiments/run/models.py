"""Loading the pair that a config names."""

import os
import re
from typing import TYPE_CHECKING

from treespec.errors import CannotGrow, LoadError
from treespec.experiments.config.schema import ModelsConfig

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["calm_transformers", "load_models"]


def load_models(config: ModelsConfig) -> "Pair":
    """The pair that a config names.

    Raises:
        LoadError: naming the key of the config and what is not there, or cannot be read.
        CannotGrow: naming the key and the size.
        TreespecError: see `treespec.load_pair`.
    """
    from treespec.models.load import load_pair

    try:
        return load_pair(
            config.target,
            config.draft,
            dtype=config.dtype,
            device=config.device,
            grow=config.grow,
            attention=config.attention,
            device_map=config.device_map,
            tensor_parallel=config.tensor_parallel,
        )
    except (LoadError, CannotGrow) as error:
        raise type(error)(f"{_key(config, str(error))}{error}") from error


def _key(config: ModelsConfig, said: str) -> str:
    """What comes before the words of an error, so that the key of the config is named."""
    if re.match(r"(?:device|dtype|grow|attention|device_map|tensor_parallel)\b", said):
        return "models."
    of_draft = config.draft is not None and repr(config.draft) in said
    return f"models.{'draft' if of_draft else 'target'}: "


def calm_transformers() -> None:
    """No progress bars and advice of transformers between ours."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
