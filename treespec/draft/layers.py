"""Draft with a part of the target: its first layers, or all but a set of sublayers.

Both are model drafters over a model that shares the target's weights (`TransformersModel.without`), so
trees can have any shape and law. Up to the first omitted part, the rows of all layers equal the target's
own. Early exit uses no other layers, and reads the rows of committed tokens in the target's cache: it has
no cache and runs no prompt.

After an omitted part the rows differ, so layer skipping has its own cache. Reading the target's rows there
for committed tokens, as Draft & Verify does, would preserve the output distribution too: children would
still be drawn from the distributions stated in the tree. But a draft would then depend on where the last
tree ended, because later tokens would have the draft's own rows. Here a draft is a function of the text
alone, as traces and the search for skip sets assume.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from treespec.checks import integer, require_tokens
from treespec.draft.model import ModelDrafter
from treespec.errors import InvalidTree
from treespec.features import Features
from treespec.models.variants.sublayers import Sublayer, layers_from, require_sublayers
from treespec.protocols import Coins, Growth, Target, TreeModel
from treespec.sampling.distributions import Sampling
from treespec.sampling.processing.processed_model import ProcessedModel, processed
from treespec.step import Step
from treespec.tree import Law, TokenTree, TreeShape


@runtime_checkable
class LayeredModel(TreeModel, Protocol):
    """A model whose layers can be left out."""

    @property
    def layer_count(self) -> int:
        """Number of layers."""

    def without(self, skip: Iterable[str | Sublayer]) -> TreeModel:
        """A model with the same weights that leaves out these sublayers."""


class EarlyExit(ModelDrafter):
    """Drafts with the target's first layers, its final norm and its head.

    The simplest form of self-speculation (Elhoushi et al. 2024, LayerSkip, arXiv:2404.16710). LayerSkip
    trains models for it; ours takes any model, and the target recomputes the rows of drafts. With all
    layers the draft is the target, and everything is accepted.

    When decoding with the target itself (`bind_target`), the drafter reads the rows of committed tokens in
    the target's cache, writes the rows of its drafts after them, and needs no other memory. With another
    target over the same layers, or with its own captured passes, it has a cache and runs the prompt; the
    drafts are the same.

    Args:
        target: the model whose layers draft.
        layers: number of layers, counted from the first; at least 1.
        growth: where the tree grows; see `ModelDrafter`.
        law: how children are chosen; see `ModelDrafter`.
        sampling: the target's sampling settings.

    Raises:
        InvalidArgument: if `target` does not have this many layers.
        UnsupportedModel: if models of this architecture cannot leave layers out.
        InvalidTree: see `ModelDrafter`.
    """

    def __init__(
        self,
        target: LayeredModel,
        layers: int,
        growth: Growth | TreeShape,
        law: Law,
        sampling: Sampling,
    ) -> None:
        count = target.layer_count
        self.layers = integer("layers", layers, least=1, most=count)
        super().__init__(target.without(layers_from(self.layers, count)), growth, law, sampling)
        self._with_own_cache = self.model
        self._committed: int | None = None

    @property
    def reads(self) -> Features:
        """No hidden states; the cached rows of its layers."""
        return Features(cache=self.layers)

    @property
    def reads_target(self) -> bool:
        """Whether rows of committed tokens are read from the target's cache."""
        return self.model is not self._with_own_cache

    def bind_target(self, target: Target) -> None:
        """Read the target's rows if they are those of the drafting layers; otherwise compute them."""
        first_layers: Any = self.given
        in_cache_of = getattr(first_layers, "in_cache_of", lambda model: None)
        view = in_cache_of(getattr(target, "model", None))
        self.model = self._with_own_cache if view is None else processed(view, self.sampling)

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Cache all tokens but the last, which is the first root; nothing is run if the target is read."""
        if not self.reads_target:
            super().prefill(tokens)
            return
        require_tokens(tokens)
        self._device, self._pending, self._root = tokens.device, [], int(tokens[-1])
        self._rows, self._committed = {}, len(tokens) - 1
        if isinstance(self.model, ProcessedModel):
            self.model.start(tokens[:-1])

    def propose(self, coins: Coins) -> TokenTree:
        """Draft a tree from the root; see `ModelDrafter.propose`.

        Raises:
            InvalidTree: see `ModelDrafter.propose`; or if the target that is read is at another position of
                the text.
            NonFiniteLogits: see `ModelDrafter.propose`.
        """
        self._require_same_text()
        return super().propose(coins)

    def draw_into(
        self,
        parents: Sequence[int],
        tokens: list[int],
        wanted: Mapping[int, Sequence[int]],
        avoided: Mapping[int, Collection[int]],
        coins: Coins,
    ) -> dict[int, Float[Tensor, "V"]]:
        """Draw some nodes of a tree that several sources share; see `ModelDrafter.draw_into`."""
        self._require_same_text()
        return super().draw_into(parents, tokens, wanted, avoided, coins)

    def commit(self, step: Step) -> None:
        """Keep the rows of committed tokens, unless the target that is read keeps them."""
        if not self.reads_target:
            super().commit(step)
            return
        assert self._committed is not None
        if isinstance(self.model, ProcessedModel):
            path = [step.tree.token_ids[node] for node in step.verdict.path]
            self.model.follow([*path, *step.further])
        self._committed += len(step.verdict.path) + len(step.further)
        self._root, self._rows = step.verdict.bonus, {}

    def _require_same_text(self) -> None:
        if self.reads_target and self.model.length != self._committed:
            raise InvalidTree(
                f"early exit reads the rows of {self.model.length} committed tokens in the target's cache, "
                f"but {self._committed} were committed to the drafter: prefill the target and commit its "
                "steps before those of the drafter"
            )


class LayerSkip(ModelDrafter):
    """Drafts with the target without a set of its sublayers.

    Zhang et al. 2023, Draft & Verify, arXiv:2309.08168: a search decides which attention and feed-forward
    sublayers are left out (`treespec.draft.skip_set`). Ours differs in that the draft computes its own
    rows, for committed tokens too (see the module). With the empty set everything is accepted.

    Args:
        target: the model whose sublayers draft; its own cache is not touched.
        skip: sublayers to leave out, or their names, such as `attention.3` and `mlp.0`.
        growth: where the tree grows; see `ModelDrafter`.
        law: how children are chosen; see `ModelDrafter`.
        sampling: the target's sampling settings.

    Raises:
        InvalidArgument: if `target` does not have such a sublayer, or would have none left.
        UnsupportedModel: if models of this architecture cannot leave these sublayers out.
        InvalidTree: see `ModelDrafter`.
    """

    def __init__(
        self,
        target: LayeredModel,
        skip: Iterable[str | Sublayer],
        growth: Growth | TreeShape,
        law: Law,
        sampling: Sampling,
    ) -> None:
        self.skip = require_sublayers("skip", skip, target.layer_count)
        super().__init__(target.without(self.skip), growth, law, sampling)
