"""Where the decoder layers of a transformers model are."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from treespec.errors import UnsupportedModel

ATTENTION = ("self_attn", "attn", "attention", "self_attention")
"""Names that transformers gives the attention of a layer."""


def layer_count(model: PreTrainedModel) -> int:
    """Number of decoder layers; of a shortened model, that of the model it was made from."""
    return stated_layers(model.config)


def stated_layers(config: Any) -> int:
    """Number of decoder layers that a configuration states; 0 if none."""
    text = config.get_text_config(decoder=True)
    # T5 names those of its decoder apart.
    return getattr(text, "num_decoder_layers", None) or getattr(text, "num_hidden_layers", 0)


def list_of_layers(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """The list that holds the decoder's layers, in a shortened model too, after its name.

    Raises:
        UnsupportedModel: if there is no such list, or more than one.
    """
    lists = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module) == _stated_count(model, name)
        and all(any(hasattr(layer, part) for part in ATTENTION) for layer in module)
    ]
    if len(lists) != 1 or "." not in lists[0][0]:
        raise UnsupportedModel(
            f"their {layer_count(model)} layers are not a single list of modules that each have an "
            "attention"
        )
    return lists[0]


def _stated_count(model: PreTrainedModel, path: str) -> int:
    """The number of layers in the configuration of the innermost module around a list that has one.

    -1 if it is not the configuration of a decoder of this model, but of an encoder of images.
    """
    owner: Any = model
    config: Any = model.config
    for name in path.split(".")[:-1]:
        owner = getattr(owner, name)
        config = getattr(owner, "config", config)
    text, own = (c.get_text_config(decoder=True) for c in (model.config, config))
    return own.num_hidden_layers if type(own) is type(text) else -1
