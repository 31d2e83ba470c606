"""The compiled pass over the nodes of several texts: linear layers run once for all of them.

One graph serves any number of texts, of nodes and of rows in their caches. It holds no cache: each text
keeps its own, and the kernel of the attention (`treespec.kernels.joined_attention`) gets their addresses
with each pass. So a text that grows or ends changes nothing for the others, and nothing is padded.
"""

from collections.abc import Sequence
from typing import Any, no_type_check

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from treespec.errors import UnsupportedModel
from treespec.kernels.masked_attention import can_attend
from treespec.models.cache import LayerShape, TreeCache, cache_argument
from treespec.models.hidden_states import HiddenStates
from treespec.models.joined_cache import Unstored
from treespec.models.logit_errors import errors, of_its_tokens
from treespec.models.passes.direct_call import DirectCall
from treespec.models.passes.given_states import (
    first_states,
    room_for_states,
    states_or_stand_ins,
)
from treespec.models.passes.tree_arrays import MOST_NODES, tree_arrays
from treespec.models.probe import PARENTS, PREFIX, TOKENS, TOLERANCE
from treespec.models.routes import OwnAttention, Route
from treespec.models.runner import TreeRunner
from treespec.models.support import embedding_count
from treespec.models.waiting import Nodes


class JoinedPass:
    """The compiled graph of passes over several texts.

    Args:
        model: a model in eval mode, on the CPU, set to the route's attention.
        route: how the model learns what each row may attend to.
        layout: layout of the caches.
        states: the hidden states that the passes return.
        options: options of the compiler.
        frozen: see `DirectCall`.

    Raises:
        UnsupportedModel: if the model cannot be compiled as a whole, or its attention is not ours.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        route: Route,
        layout: Sequence[LayerShape | None],
        states: HiddenStates,
        options: dict[str, Any],
        *,
        frozen: bool,
    ) -> None:
        shapes = [shape for shape in layout if shape is not None]
        if not isinstance(route, OwnAttention) or not all(
            can_attend(shape.key_dim, shape.dtype) for shape in shapes
        ):
            raise UnsupportedModel("their attention does not run by the kernel for several texts")
        caches, arguments = [], []
        for sizes in ((2, 1, 3), (3, 4, 1, 2)):  # the two examples differ in all that varies
            made = []
            for i, nodes in enumerate(sizes):
                cache = TreeCache(layout)
                cache.length = 5 + i
                parents = tuple(range(-1, nodes + i + 1))
                cache.begin(i + 2, nodes)
                tokens = torch.ones(nodes, dtype=torch.long)
                made.append((cache, places_of(cache), Nodes(tokens, parents, i + 2)))
            caches.append(made)
            arguments.append([*_arguments(made), *room_for_states(model)])
        self._run = DirectCall(
            _pass(model, layout, states),
            *arguments,
            fixed=0,
            at_most={(0, 0): MOST_NODES},
            options=options,
            frozen=frozen,
        ).bound(())
        self._model, self._read = model, room_for_states(model)
        self._require_same(
            TreeRunner(model, route, layout), TreeRunner(model, route, layout), states
        )

    def __call__(
        self, texts: Sequence[tuple[TreeCache, Int64[Tensor, "L 4"], Nodes]]
    ) -> tuple[Tensor, ...]:
        """Logits after all nodes, text by text, and the features if there are any.

        Args:
            texts: at least two: the cache, begun for the nodes; its `places_of`; and the nodes.
        """
        arguments = _arguments(texts)
        for room in self._read:
            given = [nodes.states for _, _, nodes in texts if nodes.states is not None]
            read = torch.cat(given) if given else None
            states = states_or_stand_ins(self._model, read, arguments[0])
            room[: len(states)] = states
        return self._run(*arguments, *self._read)

    def _require_same(self, one: TreeRunner, other: TreeRunner, states: HiddenStates) -> None:
        """Check that the pass gives what an ordinary one gives, over trees and parts of trees."""
        model = one.model
        tokens = torch.arange(1, 2 * TOKENS) * 7 % embedding_count(model)
        for runner, length in ((one, PREFIX), (other, TOKENS)):
            runner._states = states
            runner.prefill(tokens[:length])
        tolerance = TOLERANCE.get(model.dtype, TOLERANCE[torch.bfloat16])
        for begin, end in ((0, 3), (3, len(PARENTS))):
            nodes = Nodes(tokens[begin:end], PARENTS[:end], begin)
            parts = [(one, nodes), (other, nodes)]
            expected = one.run_together(parts)
            found = self([(r.cache, places_of(r.cache), nodes) for r, _ in parts])
            for i, right in enumerate((expected[0].logits, expected[1].logits)):
                rows = slice(i * (end - begin), (i + 1) * (end - begin))
                mine, theirs = (of_its_tokens(model, x) for x in (found[0][rows], right))
                if not float(errors(mine, theirs).max()) <= tolerance:
                    raise UnsupportedModel("their compiled pass differs from an ordinary one")


def places_of(cache: TreeCache) -> Int64[Tensor, "L 4"]:
    """Where each storing layer has its rows: addresses of keys and values, and elements between heads.

    Valid until `cache.memory` changes.
    """
    every: list[Any] = [*cache.layers]
    layers = [layer for layer in every if layer.is_initialized]
    return torch.tensor(
        [
            [x.data_ptr() for x in (layer.keys, layer.values)]
            + [x.stride(1) for x in (layer.keys, layer.values)]
            for layer in layers
        ]
    )


def _arguments(texts: Sequence[tuple[TreeCache, Tensor, Nodes]]) -> list[Tensor]:
    """Arguments of the graph: tokens, positions, texts, trees, places."""
    lines, positions, trees = [], [], []
    row = node = 0
    for cache, _, (tokens, parents, first, _) in texts:
        tree, count = tree_arrays(parents), len(tokens)
        lines.append((row, count, first, cache.length, node))
        positions.append(tree[2, first : first + count] + cache.length)
        trees.append(tree)
        row, node = row + count, node + tree.shape[1]
    return [
        torch.cat([nodes.tokens for _, _, nodes in texts]).long(),
        torch.cat(positions).long(),
        torch.tensor(lines),
        torch.cat(trees, dim=1),
        torch.stack([places for _, places, _ in texts], dim=1),
    ]


def _pass(model: PreTrainedModel, layout: Sequence[LayerShape | None], states: HiddenStates) -> Any:
    """The function that is compiled."""
    stored = {i: k for k, i in enumerate(i for i, s in enumerate(layout) if s is not None)}
    taken_as = cache_argument(model)

    def joined_pass(
        tokens: Tensor,
        positions: Tensor,
        texts: Tensor,
        tree: Tensor,
        places: Tensor,
        *given: Tensor,
    ) -> tuple[Tensor, ...]:
        torch._check(tokens.shape[0] <= MOST_NODES)
        output = model(
            input_ids=tokens[None],
            position_ids=positions[None],
            **{taken_as: Cache(layers=[Unstored() for _ in layout])},
            use_cache=True,
            treespec_pass=_Attention(texts, tree, places, stored),
            **({"states": first_states(given[0], tokens.shape[0])} if given else {}),
        )
        features = states.taken()
        return (output.logits[0],) if features is None else (output.logits[0], features)

    return joined_pass


@no_type_check
class _Attention:
    """Attention of each node to its own text's rows (`treespec.models.attention.AttentionPass`)."""

    def __init__(self, texts: Tensor, tree: Tensor, places: Tensor, stored: dict[int, int]) -> None:
        self._texts, self._tree, self._places, self._stored = texts, tree, places, stored

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        scale: float | None,
        softcap: float | None,
        window: int | None,
        sinks: Tensor | None,
    ) -> Tensor:
        if mask is not None:
            raise UnsupportedModel("a layer was given a mask that tree attention would ignore")
        return torch.ops.treespec.joined_attention(
            query.contiguous(),
            key.contiguous(),
            value.contiguous(),
            self._places,
            self._texts,
            self._tree,
            None if sinks is None else sinks.float(),
            self._stored[module.layer_idx],
            window or 0,
            query.shape[-1] ** -0.5 if scale is None else scale,
            softcap or 0.0,
        ).transpose(1, 2)
