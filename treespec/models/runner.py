"""Prefill, run and keep: a transformers model, a route and a cache working together."""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from attention_masks import TreePass, topology
from treespec.errors import InvalidTree, UnsupportedModel
from treespec.features import Features
from treespec.models.cache import LayerShape, TreeCache, cache_argument
from treespec.models.hidden_states import HiddenStates
from treespec.models.joined_cache import joined
from treespec.models.routes import Route
from treespec.models.waiting import Nodes
from treespec.protocols import Decision
from treespec.step import Scores


class TreeRunner:
    """Runs tree nodes through a model, with a cache of its own.

    `model`: a model in eval mode, set to the route's attention implementation.
    """

    any_cache = True
    """Whether passes can run in any cache; otherwise they are tied to the addresses of their own."""

    source: Any = None
    """The encoded source of an encoder-decoder model, if it has one (`treespec.models.encoder_decoder`)."""

    def __init__(
        self, model: PreTrainedModel, route: Route, layout: Sequence[LayerShape | None] = ()
    ) -> None:
        self.model, self.route = model, route
        self.cache = TreeCache(layout)
        self._cache_argument = cache_argument(model)
        self._parents: tuple[int, ...] = ()
        self._states = HiddenStates(model, Features())

    def lend(self, reads: Features) -> None:
        """From the next prefill on, return these features with every pass.

        Raises:
            InvalidArgument: if the model does not have such a boundary.
            UnsupportedModel: if the features of this model cannot be had.
        """
        if reads.states != self._states.states:
            self._states = HiddenStates(self.model, reads)

    @property
    def length(self) -> int:
        return self.cache.length

    def prepare(self) -> None:
        """Do before a text what its passes would otherwise wait for: nothing, if they are ordinary."""

    def release(self) -> None:
        """Forget the text and give the memory of its rows back, until the next prefill."""
        self.cache.release()
        self._parents = ()

    @torch.inference_mode()
    def prefill(
        self, tokens: Int[Tensor, "T"], states: Float[Tensor, "T W"] | None = None
    ) -> Float[Tensor, "T F H"] | None:
        """Forget all rows, run these tokens in one pass without logits, and commit their rows.

        `states`: what a trained head reads beside the tokens. Returns the features lent of these tokens;
        None if none are lent.
        """
        self.cache.reset()
        self._parents = ()
        count = len(tokens)
        if not count:
            self.cache.reserve(0, used=0)
            return self._states.of_no_tokens()
        self._require_route()
        self.cache.begin(0, count)
        with self._states.watched():
            given = {} if states is None else {"states": states[None]}
            self._run_prompt(tokens, {**given, **self.route.prompt(count)})
            features = self._states.taken()
        self.cache.keep(range(count))
        return features

    def _run_prompt(self, tokens: Int[Tensor, "T"], arguments: dict[str, Any]) -> None:
        """The pass over the first tokens of a text."""
        self.model.base_model(
            input_ids=tokens[None],
            position_ids=torch.arange(len(tokens), device=tokens.device)[None],
            **{self._cache_argument: self.cache},
            use_cache=True,
            **arguments,
        )

    @property
    def joins(self) -> Hashable:
        """Passes of runners with equal values can be run as one; None if each must run alone."""
        return id(self.model), self._states.states

    def run(
        self,
        tokens: Int[Tensor, "T"],
        parents: tuple[int, ...],
        first: int = 0,
        states: Float[Tensor, "T W"] | None = None,
    ) -> Scores:
        """Logits after nodes first .. first + T - 1, and the features lent of them."""
        return TreeRunner.run_together(self, [(self, Nodes(tokens, parents, first, states))])[0]

    @torch.inference_mode()
    def run_together(self, parts: Sequence[tuple["TreeRunner", Nodes]]) -> list[Scores]:
        """One pass over the nodes of several caches, in one row without padding.

        Args:
            parts: runners of equal `joins`, this one among them, each with its nodes.
        """
        passes, positions = [], []
        for runner, (tokens, parents, first, _) in parts:
            count = len(tokens)
            runner._require_nodes(count, len(parents), first)
            tree, length = topology(parents), runner.cache.length
            runner.cache.begin(first, count)
            depth = tree.to(tokens.device).depth[first:]
            passes.append(TreePass(tree, length, range(first, first + count)))
            positions.append((depth + length).long())
        self._require_route()
        ids = [nodes.tokens for _, nodes in parts]
        read = [nodes.states for _, nodes in parts if nodes.states is not None]
        with self._states.watched():
            output = self.model(
                input_ids=torch.cat(ids)[None],
                position_ids=torch.cat(positions)[None],
                **{self._cache_argument: joined([runner.cache for runner, _ in parts])},
                use_cache=True,
                **({"states": torch.cat(read)[None]} if read else {}),
                **self.route.trees(passes),
            )
            features = self._states.taken()
        counts = [len(tokens) for tokens in ids]
        states = [None] * len(parts) if features is None else features.split(counts)
        for runner, nodes in parts:
            runner._parents = topology(nodes.parents).parents
        return [*map(Scores, output.logits[0].split(counts), states)]

    @torch.inference_mode()
    def keep(self, nodes: Sequence[int]) -> None:
        """Commit the rows of a path from node 0 down, and forget all other tree rows."""
        parent = -1
        for node in nodes:
            if not 0 <= node < len(self._parents) or self._parents[node] != parent:
                raise InvalidTree(
                    f"keep expects a path from node 0 down, got {tuple(nodes)} "
                    f"in a tree of which {len(self._parents)} nodes have run"
                )
            parent = node
        self.cache.keep(nodes)
        self._parents = ()

    @torch.inference_mode()
    def keep_ahead(self, kept: Int[Tensor, "N D"], decision: Decision) -> None:
        """Move rows by a decision on the device; see `TreeCache.keep_ahead`."""
        self.cache.keep_ahead(kept, decision)

    def _require_nodes(self, count: int, size: int, first: int) -> None:
        if size != first + count or not 0 <= first <= len(self._parents):
            raise InvalidTree(
                f"a tree of {size} nodes, of which {len(self._parents)} have run, "
                f"cannot be continued by {count} tokens from node {first} on"
            )

    @property
    def _routed(self) -> bool:
        """Whether the model is set to the attention of the route."""
        return self.model.config._attn_implementation == self.route.implementation

    def _require_route(self) -> None:
        """Refuse to run on another attention, which would ignore the tree silently."""
        if not self._routed:
            current = self.model.config._attn_implementation
            raise UnsupportedModel(
                f"the model is set to {current!r} attention instead of {self.route.implementation!r}: it "
                "is in use as a plain model (`as_transformers`), or was wrapped or set again"
            )
