"""A whole tree of a fixed shape drafted on the device: all levels as one function over fixed memory.

By levels (`treespec.draft.levels`), the host launches each pass and what lies between passes. Here one
function does it all: pending tokens and root, softmax, children by the law from uniforms in memory, their
tokens into the next pass, and so on to the last level. It is an ordinary function, which runs on a CPU as
it is; on CUDA a captured runner captures it as one graph for each shape, law, setting and number of pending
tokens. The host copies one small buffer there (prefix length, committed tokens, uniforms) and
launches one graph; the tree's ids stay on the device until the step's one synchronisation (`UnreadTree`).

An autoregressive head (`HeadModel`) reads states beside tokens: the target's for committed tokens, which
the last step left on the device, and below them its own. It has a graph for each number of emitted tokens,
all of which it runs again. Heads that draft without passes by level (Medusa, blocks) have no such graph.

Arithmetic and order of uniforms are those of the levels, so equal uniforms give equal trees.

The root is in that small buffer, not copied on the device from the verdict. The host needs the verdict
before it can launch the next draft: for the number of uniforms that acceptance took, for the number of
committed tokens to run (which graph), and for whether the text ends. Then one copy brings all of that.

Prediction for an H100, to be confirmed there: a graph takes the sum of its kernels, about 2 us for each
small one. The embedded draft (2 layers) launches some 45 kernels a layer operation by operation, so 4
levels cost 0.9 ms; with passes compiled to some 8 kernels a layer 0.2 ms. By levels it took 1.36 ms.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor

from treespec.draft.choosing import TensorHead
from treespec.draft.levels import Levels, levels_of
from treespec.models.waiting import WAIT
from treespec.protocols import Coins
from treespec.sampling.coins import GivenUniforms, TorchCoins, uniforms_needed
from treespec.sampling.distributions import Sampling, require_finite
from treespec.tree import Law, TreeShape
from treespec.tree.kept_rows import kept_rows
from treespec.tree.unread_tree import UnreadTree


@dataclass(frozen=True)
class DraftKind:
    """What a static draft is made for; equal kinds share memory and graph.

    Args:
        shape: of the tree; at least one level has children.
        law: how children are chosen.
        sampling: the sampling settings, without processors.
        committed: number of committed tokens that the model has not run, the root among them.
        width: number of logits of a row (`TransformersModel.vocab_size`).
        embedded: number of tokens that the model can read, if rows have more logits.
        device: of the model.
        states: width of the states that it reads beside tokens (`HeadModel`); 0 if it reads none.
    """

    shape: TreeShape
    law: Law
    sampling: Sampling
    committed: int
    width: int
    embedded: int | None
    device: torch.device
    states: int = 0

    @cached_property
    def levels(self) -> Levels:
        """The levels of the shape."""
        return levels_of(self.shape, self.device)

    @cached_property
    def parents_by_level(self) -> list[tuple[int, ...]]:
        """For each level, the parents of all rows that have run after it."""
        return self.levels.passes(self.committed - 1)[0]

    @cached_property
    def row_of(self) -> dict[int, int]:
        """The model's row of each node that is run."""
        return self.levels.passes(self.committed - 1)[1]

    @cached_property
    def kept(self) -> Int[Tensor, "N D"] | None:
        """What the cache keeps, for each node at which a path can end (`treespec.tree.kept_rows`).

        None also for heads, which keep the rows of committed tokens wherever the path ends.
        """
        if self.states:
            return None
        return kept_rows(self.shape, self.row_of, self.committed - 1, self.device)

    @cached_property
    def uniforms(self) -> int:
        """Number of uniforms that it takes."""
        shape = self.shape
        return uniforms_needed([len(shape.children[node]) for node in shape.internal], self.law)

    @cached_property
    def rows(self) -> int:
        """Rows behind the committed ones that it writes, padding included."""
        from treespec.models.passes.static_levels import rows_of_levels

        return rows_of_levels(self.parents_by_level)

    def make(self, cache: Any, new_pass: Any) -> "StaticDraft":
        """Its memory, for a cache; see `treespec.models.passes.static_pass.WorkKind`."""
        return StaticDraft(self, cache, new_pass)


kind_of = lru_cache(maxsize=256)(DraftKind)
"""A kind by its fields; what it computes is computed once."""


class Drafted(NamedTuple):
    """What a static draft returns, in memory that the next draft overwrites.

    Args:
        numbers: the ids of all nodes, and whether all logits were finite.
        probs: the rows that children were drawn from; None if they were not drawn.
        logits: those of each level.
    """

    numbers: Int[Tensor, " R"]
    probs: Float[Tensor, "M V"] | None
    logits: list[Tensor]


class StaticDraft:
    """A draft of one kind in fixed memory; call `load`, then `run`.

    Args:
        kind: what it drafts.
        cache: the cache of the model, which has room for `kind.rows` more rows.
        new_pass: makes a static pass of a size over it.
    """

    def __init__(self, kind: DraftKind, cache: Any, new_pass: Any) -> None:
        from treespec.models.passes.static_levels import StaticLevels

        self.kind, self._cache, self._levels = kind, cache, kind.levels
        self._passes = StaticLevels(new_pass, kind.parents_by_level)
        self.model = self._passes.model
        numbers = 1 + kind.committed + kind.uniforms
        self.given = torch.zeros(numbers, dtype=torch.long, device=kind.device)
        self.states: Tensor | None = None
        if kind.states:
            self.states = torch.zeros(
                kind.committed, kind.states, dtype=self.model.dtype, device=kind.device
            )

    @torch.inference_mode()
    def load(
        self,
        committed: Sequence[int],
        uniforms: Sequence[float],
        states: Float[Tensor, "C W"] | None = None,
    ) -> None:
        """Copy what changes from step to step into the memory, without waiting for the device.

        Args:
            committed: committed tokens that the model has not run, the root last.
            uniforms: the next numbers of the stream of coins.
            states: those that a head reads beside the committed tokens, on the device.
        """
        if self.states is not None and states is not None:
            self.states.copy_(states)
        # Every copy has its own pinned memory, which the allocator does not reuse before it was read.
        pinned = torch.empty(self.given.shape, dtype=torch.long, pin_memory=self.given.is_cuda)
        numbers, first = pinned.numpy(), 1 + self.kind.committed
        numbers[:first] = (self._cache.length, *committed)
        numbers[first:].view(np.float64)[:] = uniforms
        self.given.copy_(pinned, non_blocking=True)

    @torch.inference_mode()
    def run(self) -> Drafted:
        """Draft the tree; writes the rows of all nodes that get children behind the committed ones."""
        kind, first = self.kind, 1 + self.kind.committed
        tokens = self.given[1:first]
        head = TensorHead(
            kind.law, kind.sampling, GivenUniforms(self.given[first:].view(torch.double))
        )
        drafted, level_logits, states = [tokens[-1:]], [], self.states
        for i, level in enumerate(self._levels.levels):
            scores = self._passes.run(i, self._readable(tokens), self.given[:1], states)
            if states is not None:
                assert scores.features is not None
                states = scores.features[:, 0]
            logits = self._of_width(scores.logits[-len(level.nodes) :])
            level_logits.append(logits)
            children = head.children(level, logits)
            drafted.append(children)
            tokens = children if level.run_next is None else children[level.run_next]
        finite = head.extremes().isfinite().all().long()[None]
        return Drafted(torch.cat([*drafted, finite]), head.probs(), level_logits)

    def _readable(self, tokens: Tensor) -> Tensor:
        """The tokens, with 0 for ids that the model has no embedding of."""
        embedded = self.kind.embedded
        return tokens if embedded is None else torch.where(tokens < embedded, tokens, 0)

    def _of_width(self, logits: Tensor) -> Tensor:
        """The logits of a row's tokens, of which the model may have fewer or more."""
        missing = self.kind.width - logits.shape[-1]
        if missing > 0:
            return F.pad(logits, (0, missing), value=torch.finfo(logits.dtype).min)
        return logits[:, : self.kind.width]


def static_kind(
    model: Any, shape: TreeShape, law: Law, sampling: Sampling, coins: Coins, committed: int
) -> DraftKind | None:
    """The kind of static draft that does what drafting by levels would do; None if none does.

    None for models whose passes are not static, or not their own (another tokenizer, trimmed), settings
    with processors (which read the text on the host),
    coins and samplings of a user's own, in a batch (whose texts share passes), and beyond the positions of
    the model, where drafting by levels raises the error. None for a head that lacks the target's states of
    committed tokens (`propose_below`), for which it reads those that it computes one after another.
    """
    # Models around another one pass on what it has, but change tokens or logits on the way.
    repeats = model.repeats if hasattr(type(model), "repeats") else None
    if repeats is None or WAIT.get() is not None:
        return None
    if type(coins) is not TorchCoins or type(sampling) is not Sampling:
        return None
    if sampling.processors is not None:
        return None
    if model.length + committed + shape.depth > model.max_length:
        return None
    width = getattr(model, "state_width", 0)
    if width and model.states_of(committed) is None:
        return None
    return kind_of(
        shape,
        law,
        sampling,
        committed,
        model.vocab_size,
        model.readable_tokens,
        model.device,
        width,
    )


def draft_at_once(
    model: Any, kind: DraftKind, committed: Sequence[int], coins: Any
) -> tuple[UnreadTree, dict[int, int]]:
    """Draft a tree, without waiting for the device.

    `committed`: committed tokens that the model has not run, the root last. Returns the tree, and the
    model's row of each node that was run.
    """
    runner = model.repeats
    work = runner.work(kind)
    states = model.states_of(kind.committed) if kind.states else None
    work.load(committed, coins.uniforms(kind.uniforms), states)
    drafted = runner.do(kind, work, kind.parents_by_level[-1])
    numbers = drafted.numbers.clone()
    probs = None if drafted.probs is None else drafted.probs.clone()

    def refuse() -> None:
        for level, logits in zip(kind.levels.levels, drafted.logits, strict=True):
            require_finite(logits, "draft", level.nodes)

    tree = UnreadTree(kind.shape, numbers[:-1], probs, kind.law, numbers, kind.width, refuse)
    return tree, kind.row_of
