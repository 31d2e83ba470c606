"""States that a trained head reads beside its tokens, as an input of its passes.

A head (`treespec.draft.trained.head_model`) reads with each token a hidden state of the token before it:
the target's for committed tokens, its own for drafted ones. Such a model states their width as
`state_width`, and gives states for tokens alone (`states_of`), with which passes are tested.

A compiled pass reads them from room for its largest number of nodes, so that its graph has no further size.
"""

from typing import Any, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from treespec.models.passes.tree_arrays import MOST_NODES


def state_width(model: PreTrainedModel) -> int:
    """Width of the states that a model reads beside its tokens; 0 if it reads none."""
    return getattr(model, "state_width", 0)


def room_for_states(model: PreTrainedModel) -> list[Float[Tensor, "N W"]]:
    """Room for the states of the largest compiled pass, for a model that reads states; else nothing."""
    width = state_width(model)
    return [torch.zeros(MOST_NODES, width, dtype=model.dtype)] if width else []


def states_or_stand_ins(model: Any, states: Tensor | None, tokens: Tensor) -> Tensor:
    """The states given, or those for tokens alone."""
    return model.states_of(tokens) if states is None else states


@no_type_check  # a compiler traces it
def first_states(room: Tensor, count: int) -> Tensor:
    """The states of a pass over `count` nodes, `[1, count, W]`."""
    return room.index_select(0, torch.arange(count, device=room.device))[None]
