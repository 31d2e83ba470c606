"""Loading the pair that a config names."""

from typing import TYPE_CHECKING

from treespec.experiments.config.schema import ModelsConfig

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["load_models"]


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
