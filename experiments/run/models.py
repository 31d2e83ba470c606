"""Loading the pair that a config names."""

import os
from typing import TYPE_CHECKING

from treespec.experiments.config.schema import ModelsConfig

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["calm_transformers", "load_models"]


def load_models(config: ModelsConfig) -> "Pair":
    """The pair that a config names."""
    from treespec.models.load import load_pair

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


def calm_transformers() -> None:
    """No progress bars and advice of transformers between ours."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
