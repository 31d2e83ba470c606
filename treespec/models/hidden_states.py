"""Take the hidden states that a drafter reads out of a pass of a transformers model.

Hooks on the decoder layers and on the modules around them see the states as they pass by, whatever the
architecture; `output_hidden_states` of transformers would keep those of all layers. The hooks stand only
while a pass runs, so that other users of the same modules never pay. A compiled pass is traced with them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import InvalidArgument, UnsupportedModel
from treespec.features import Features
from treespec.models.decoder_layers import list_of_layers


class HiddenStates:
    """The features of passes of one model; of no pass if none are read.

    Args:
        model: the model; it may be a shortened one, whose layers are counted anew.
        reads: what is read.

    Raises:
        InvalidArgument: if the model does not have such a boundary.
        UnsupportedModel: if its layers cannot be found.
    """

    def __init__(self, model: PreTrainedModel, reads: Features) -> None:
        self.states, self._model = reads.states, model
        """The features in their order (`Features.states`)."""
        self._layers: Any = ()
        self._around: list[nn.Module] = []
        self._seen: dict[int | str, Tensor] = {}
        if reads.states:
            try:
                path, self._layers = list_of_layers(model)
            except UnsupportedModel as problem:
                raise UnsupportedModel(
                    f"hidden states of {model.config.model_type} models cannot be read: {problem}"
                ) from None
            names = path.split(".")
            self._around = [model.get_submodule(".".join(names[:i])) for i in range(1, len(names))]
        last = len(self._layers)
        if (beyond := max(reads.boundaries, default=0)) > last:
            raise InvalidArgument(
                f"the drafter reads boundary {beyond}, but the target has {last} layers: boundaries are "
                f"0..{last}, each the input of a layer, and {last} the output of the last one"
            )

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Context in which passes are watched; `taken` returns the features of each."""
        handles = []
        try:
            for state in self.states:
                seen = partial(self._see, state)
                if state == "post":
                    # The outermost module that a pass enters returns this state, last of all. With a head,
                    # the pass of OPT does not enter the base model, but a module within it.
                    handles += [module.register_forward_hook(seen) for module in self._around]
                elif state == len(self._layers):
                    handles.append(self._layers[-1].register_forward_hook(seen))
                else:
                    before = partial(self._see_input, state)
                    layer = self._layers[state]
                    handles.append(layer.register_forward_pre_hook(before, with_kwargs=True))
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._seen.clear()

    @no_type_check  # the compiler cannot trace the type checks of the tests
    def taken(self) -> Float[Tensor, "T F H"] | None:
        """The features of the pass that was run last; None if none are read."""
        if not self.states:
            return None
        return self.taken_of_batch()[0]

    @no_type_check
    def taken_of_batch(self) -> Float[Tensor, "B T F H"]:
        """The features of the pass that was run last, which had several rows of tokens."""
        seen = [self._seen.pop(state) for state in self.states]
        # Layers may be on several devices.
        return torch.stack([hidden.to(seen[-1].device) for hidden in seen], dim=2)

    def of_no_tokens(self) -> Float[Tensor, "0 F H"] | None:
        """The features of an empty prompt; None if none are read."""
        if not self.states:
            return None
        width = self._model.config.get_text_config(decoder=True).hidden_size
        shape = (0, len(self.states), width)
        return torch.empty(shape, dtype=self._model.dtype, device=self._model.device)

    @no_type_check
    def _see_input(
        self, state: int, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        self._seen[state] = hidden.clone()  # the layer may change its input in place

    @no_type_check
    def _see(self, state: int | str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        hidden = output if isinstance(output, Tensor) else output[0]
        self._seen[state] = hidden.clone()
