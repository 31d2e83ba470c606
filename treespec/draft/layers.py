"""Drafting with a part of the target: its first layers, or all but a set of sublayers.

Both are model drafters over a model that shares the target's weights (`TransformersModel.without`), so a
tree grows along any shape and by any law. Rows of the layers up to the first part that is left out are
equal to the target's own. Early exit has no others, and reads those of committed tokens where the target
keeps them: it has no cache and runs no prompt.

Behind a part that is left out rows differ, so skipped sublayers have a cache of their own. Reading the
target's rows there for committed tokens, as Draft & Verify does, would keep the law of the output too: the
distributions that a tree tells of would still be those that its children were drawn from. But a draft would
depend on where the last tree ended, since of the tokens behind that it would see rows of its own. Here it
is a function of the text alone, as traces and the search of a skip set take it to be.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from treespec.distributions import Sampling
from treespec.door import able, integer, require_tokens
from treespec.draft.model import ModelDrafter
from treespec.errors import InvalidTree
from treespec.models.sublayers import Sublayer, layers_from, require_sublayers
from treespec.protocols import Coins, Growth, Target, TreeModel
from treespec.step import Step
from treespec.tree import Law, TokenTree, TreeShape

__all__ = ["EarlyExit", "LayerSkip", "LayeredModel"]

WANTED = "a model whose layers can be left out (TransformersModel)"


@runtime_checkable
class LayeredModel(TreeModel, Protocol):
    """A model of layers that can be left out."""

    @property
    def layer_count(self) -> int:
        """Its layers."""
        ...

    def without(self, skip: Iterable[str | Sublayer]) -> TreeModel:
        """A model of the same weights that leaves these sublayers out."""
        ...


class EarlyExit(ModelDrafter):
    """Drafts with the target's first layers, its final norm and its head.

    The simplest form of self-speculation (Elhoushi et al. 2024, LayerSkip, arXiv:2404.16710, which trains
    models for it; ours takes any, and the target computes the rows of drafts anew). With all layers the
    draft is the target, and everything is accepted.

    Decoding with the target itself (`bind_target`), it reads the rows of committed tokens in the target's
    cache, writes those of its drafts behind them, and needs no other memory. With another target over the
    same layers, or captured passes of its own, it has a cache and runs the prompt; drafts are the same.

    Args:
        target: whose layers draft.
        layers: how many of them, from the first; at least 1.
        growth: where the tree grows, see `ModelDrafter`.
        law: how children are chosen, see there.
        sampling: the settings of the target.

    Raises:
        InvalidArgument: if the target has no such number of layers, or is something else.
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
        able("target", target, "without layer_count", WANTED)
        count = target.layer_count
        self.layers = integer("layers", layers, least=1, most=count)
        super().__init__(target.without(layers_from(self.layers, count)), growth, law, sampling)
        self._alone = self.model
        self._committed: int | None = None

    @property
    def reads_target(self) -> bool:
        """Whether rows of committed tokens are the target's own."""
        return self.model is not self._alone

    def bind_target(self, target: Target) -> None:
        """Read the rows of this target, if they are those of the layers that draft; else compute them."""
        part: Any = self.given
        view = getattr(part, "in_cache_of", lambda whole: None)(getattr(target, "model", None))
        self.model = self._alone if view is None else view

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Cache all tokens but the last, which is the first root; the target has them, if it is read.

        Raises:
            InvalidPrompt, EmptyPrompt: if there is no row of token ids.
        """
        if not self.reads_target:
            super().prefill(tokens)
            return
        require_tokens(tokens)
        self._device, self._pending, self._root = tokens.device, [], int(tokens[-1])
        self._rows, self._committed = {}, len(tokens) - 1

    def propose(self, coins: Coins) -> TokenTree:
        """A tree over the root; see `ModelDrafter.propose`.

        Raises:
            InvalidTree: see there; or if the target that is read stands elsewhere in the text.
            NonFiniteLogits: see there.
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
        """Draw some nodes of a tree that several sources fill; see `ModelDrafter.draw_into`."""
        self._require_same_text()
        return super().draw_into(parents, tokens, wanted, avoided, coins)

    def commit(self, step: Step) -> None:
        """Keep the rows of committed tokens, or leave that to the target that is read."""
        if not self.reads_target:
            super().commit(step)
            return
        assert self._committed is not None
        self._committed += len(step.verdict.path) + len(step.further)
        self._root, self._rows = step.verdict.bonus, {}
        self.model.keep(())

    def _require_same_text(self) -> None:
        if self.reads_target and self.model.length != self._committed:
            raise InvalidTree(
                f"early exit reads the rows of {self.model.length} committed tokens in the target's cache, "
                f"but was told of {self._committed}: prefill the target, and commit its steps, before "
                "those of the drafter"
            )


class LayerSkip(ModelDrafter):
    """Drafts with the target without a set of its sublayers.

    Zhang et al. 2023, Draft & Verify, arXiv:2309.08168: which attentions and feed-forward parts are left
    out is searched (`treespec.draft.skip_set`). Ours differs in that the draft's rows are its own, for
    committed tokens too (see above). The empty set accepts everything.

    Args:
        target: whose sublayers draft; its own cache is not touched.
        skip: sublayers that are left out, or their names, such as `attention.3` and `mlp.0`.
        growth: where the tree grows, see `ModelDrafter`.
        law: how children are chosen, see there.
        sampling: the settings of the target.

    Raises:
        InvalidArgument: if the target has no such sublayer, would have none left, or is something else.
        UnsupportedModel: if models of this architecture cannot leave these out.
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
        able("target", target, "without layer_count", WANTED)
        self.skip = require_sublayers("skip", skip, target.layer_count)
        super().__init__(target.without(self.skip), growth, law, sampling)
