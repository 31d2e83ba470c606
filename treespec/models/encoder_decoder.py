"""Encoder-decoder models: the source is encoded once, and trees are run by the decoder behind it.

A source is encoded when a model is conditioned on it (`TransformersModel.condition`); the keys and values
of cross-attention are computed in the first pass, and shared by all caches of the same source. Trees enter
the decoder's own attention as a mask (`OwnMask`), so cross-attention is left alone.

These decoders take no `position_ids`: they compute positions from the order of rows, in which the branches
of a tree come one after the other. `positions_by_depth` gives them the depths of nodes instead:

- Tables of positions (BART, mBART, Pegasus, Marian, M2M100): `embed_positions` gets the positions.
- T5's bias, a function of the distance of two tokens: computed once for every distance, and picked for each
  pair of rows by the distance of their depths.

Whether a model computes them in another way, the probe finds out.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from attention_masks import TreePass, topology
from treespec.errors import InvalidPrompt, UnsupportedModel
from treespec.features import Features
from treespec.models.cache import LayerShape
from treespec.models.routes import Route
from treespec.models.runner import TreeRunner
from treespec.step import Scores


@dataclass(frozen=True, eq=False)
class Encoded:
    """A source that an encoder has read.

    Args:
        states: the encoder's output.
        keys: keys and values of cross-attention; the first pass of a decoder fills them.
    """

    states: Any
    keys: DynamicCache


@torch.inference_mode()
def encoded(model: PreTrainedModel, source: Int[Tensor, " S"]) -> Encoded:
    """Run the encoder over a source."""
    encoder: Any = model.get_encoder()
    return Encoded(encoder(input_ids=source[None]), DynamicCache())


class DecoderRunner(TreeRunner):
    """Runs tree nodes through the decoder of a model that is conditioned on a source."""

    any_cache = False

    def __init__(
        self, model: PreTrainedModel, route: Route, layout: Sequence[LayerShape | None] = ()
    ) -> None:
        super().__init__(model, route, layout)
        self._decoder: Any = model.get_decoder()
        self._positions = _modules_with_positions(self._decoder)

    def lend(self, reads: Features) -> None:
        """Refuse to return features.

        Raises:
            UnsupportedModel: if any are asked for.
        """
        if reads.states:
            raise UnsupportedModel(
                f"{self.model.config.model_type} models are encoder-decoders, whose hidden states are not "
                "read: choose a draft source that reads none"
            )

    @property
    def joins(self) -> None:
        """Passes run alone: texts have sources of different lengths."""
        return None

    @torch.inference_mode()
    def run(
        self,
        tokens: Int[Tensor, "T"],
        parents: tuple[int, ...],
        first: int = 0,
        states: Float[Tensor, "T W"] | None = None,
    ) -> Scores:
        """Logits after nodes first .. first + T - 1."""
        source = self._conditioned()
        self._require_nodes(len(tokens), len(parents), first)
        self._require_route()
        tree, length = topology(parents), self.cache.length
        self.cache.begin(first, len(tokens))
        tree_pass = TreePass(tree, length, range(first, len(parents)))
        nodes = tree.to(tokens.device).depth.long() + length
        keys = torch.cat([torch.arange(length, device=tokens.device), nodes])
        with positions_by_depth(self._positions, nodes[first:], keys):
            output = self.model(
                encoder_outputs=source.states,
                decoder_input_ids=tokens[None],
                decoder_attention_mask=self.route.trees([tree_pass])["attention_mask"],
                **{self._cache_argument: EncoderDecoderCache(self.cache, source.keys)},
                use_cache=True,
            )
        self._parents = tree.parents
        return Scores(output.logits[0])

    def _run_prompt(self, tokens: Int[Tensor, "T"], arguments: dict[str, Any]) -> None:
        source = self._conditioned()
        self._decoder(
            input_ids=tokens[None],
            encoder_hidden_states=source.states[0],
            **{self._cache_argument: EncoderDecoderCache(self.cache, source.keys)},
            use_cache=True,
            **arguments,
        )

    def _conditioned(self) -> Encoded:
        if self.source is None:
            raise InvalidPrompt(
                f"{self.model.config.model_type} models are encoder-decoders and need a source: use "
                "model.condition(source), or generate(pair, source=...)"
            )
        return self.source


@contextmanager
def positions_by_depth(
    modules: Sequence[nn.Module], rows: Int[Tensor, " T"], keys: Int[Tensor, " K"]
) -> Iterator[None]:
    """Context in which modules of a decoder compute with given positions instead of the order of rows.

    Args:
        modules: the modules that compute positions.
        rows: the positions of the rows of the pass.
        keys: the positions of all rows that it attends to.
    """
    with ExitStack() as stack:
        for module in modules:
            name = _method_with_positions(module)
            given = _given(name, getattr(module, name), rows, keys)
            stack.enter_context(_replaced(module, name, given))
        yield


def _modules_with_positions(decoder: nn.Module) -> list[nn.Module]:
    return [
        module
        for path, module in decoder.named_modules()
        if path.rpartition(".")[2] == "embed_positions"
        or getattr(module, "has_relative_attention_bias", False)
    ]


def _method_with_positions(module: nn.Module) -> str:
    if hasattr(module, "compute_bias"):
        return "compute_bias"
    takes = "position_ids" in inspect.signature(type(module).forward).parameters
    return "forward" if takes else "create_position_ids_from_input_ids"


def _given(
    name: str, method: Callable[..., Tensor], rows: Int[Tensor, " T"], keys: Int[Tensor, " K"]
) -> Callable[..., Tensor]:
    """A method that computes with given positions."""

    def forward(*args: Any, **kwargs: Any) -> Tensor:
        return method(*args, **{**kwargs, "position_ids": rows})

    def compute_bias(*_: Any, **options: Any) -> Tensor:
        last = len(keys) - 1
        by_distance = method(1, len(keys), **{**options, "past_seen_tokens": last})
        distances = (rows[:, None] - keys).clamp_min(0)
        return by_distance[:, :, 0, last - distances]

    def create_position_ids_from_input_ids(ids: Tensor, padding: int, *_: Any) -> Tensor:
        return torch.where(ids == padding, padding, rows + padding + 1)

    methods = (forward, compute_bias, create_position_ids_from_input_ids)
    return next(given for given in methods if given.__name__ == name)


@contextmanager
def _replaced(module: nn.Module, name: str, method: Callable[..., Tensor]) -> Iterator[None]:
    """Context in which one module has another method than its class."""
    own = vars(module)
    before = own.get(name)
    own[name] = method
    try:
        yield
    finally:
        if before is None:
            del own[name]
        else:
            own[name] = before


def usual_runner(model: PreTrainedModel) -> type[TreeRunner]:
    """What runs the ordinary passes of a model."""
    return DecoderRunner if model.config.is_encoder_decoder else TreeRunner
