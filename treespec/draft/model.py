"""Drafting with an autoregressive model, level by level, along any growth."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.checks import require_tokens
from treespec.draft.choosing import head_of
from treespec.draft.drawn import DrawnChildren, ranking_of
from treespec.draft.growth import (
    StaticGrowth,
    laws_along,
    name_of,
    nodes_kept,
    rounds,
    shape_of,
)
from treespec.draft.levels import draft_levels, levels_of
from treespec.draft.nothing import NoDrafter
from treespec.draft.static_draft import DraftKind, draft_at_once, static_kind
from treespec.errors import InvalidTree
from treespec.protocols import (
    Coins,
    Decision,
    Drafter,
    Growth,
    MarginalGrowth,
    Observer,
    PruningGrowth,
    TreeModel,
)
from treespec.sampling.distributions import Sampling, require_finite
from treespec.sampling.processing.processed_model import processed
from treespec.step import Step
from treespec.tree import Law, TokenTree, TreeShape


class ModelDrafter:
    """Drafts a tree with a smaller model, one pass for each level that gets children.

    The model's cache holds the rows of committed tokens that the model has run. Committed tokens that it
    has not run (an accepted leaf was never run) are *pending*: they open the next pass as a chain above
    the root. Nodes without children are never run, and no node is run twice: a growth that returns to a
    node gets further children from its known row.

    Args:
        model: the draft model; the drafter uses a fresh cache and never touches the model's own.
        growth: where the tree grows; a `TreeShape` is drafted as it is. A growth that selects among drafted
            nodes (`PruningGrowth`) needs the law DETERMINISTIC: drawn children that are selected by their
            tokens no longer follow their law, and no rule is lossless on them. A growth that builds its
            tree from the rows along a chain (`MarginalGrowth`) gets the rows along the chain of best
            tokens.
        law: how children are chosen. IID and WITHOUT_REPLACEMENT draw from the model's distribution under
            `sampling`; DETERMINISTIC takes the k best logits and uses no coin.
        sampling: the target's sampling settings, applied by the same code.
        observer: notified of the stage `level`, once per level of a tree whose shape is fixed beforehand.

    Raises:
        InvalidTree: if there is no such law, or the growth states its laws and this one is not among them.
    """

    draws_where_told = True
    """Whether a merge may request single nodes from it (`draw_into`)."""

    def __init__(
        self,
        model: TreeModel,
        growth: Growth | TreeShape,
        law: Law,
        sampling: Sampling,
        observer: Observer | None = None,
    ) -> None:
        self.model: Any = processed(model.fresh(), sampling)
        self.law, self.sampling = Law.of(law), sampling
        self.given = model
        self.growth = StaticGrowth(growth) if isinstance(growth, TreeShape) else growth
        laws = laws_along(growth)
        if self.law not in laws:
            made_for = ", ".join(sorted(map(str, laws)))
            raise InvalidTree(
                f"growth '{name_of(self.growth)}' is not made for children of law {self.law}: "
                f"it is made for {made_for} only"
            )
        self._pruning = self.growth if isinstance(self.growth, PruningGrowth) else None
        self._marginal = self.growth if isinstance(self.growth, MarginalGrowth) else None
        self._stage = nullcontext if observer is None else observer.stage
        self._pending: list[int] = []
        self._rows: dict[int, int] = {}
        self._at_once: tuple[TokenTree, DraftKind] | None = None

    @property
    def max_depth(self) -> int:
        """Largest depth of a proposed tree."""
        return self.growth.max_depth

    @property
    def max_length(self) -> int:
        """Number of positions in the model's context."""
        return self.model.max_length

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Cache all tokens but the last, which is the first root."""
        require_tokens(tokens)
        self.model.prefill(tokens[:-1])
        self._device = tokens.device
        self._pending, self._root, self._rows = [], int(tokens[-1]), {}

    def propose(self, coins: Coins) -> TokenTree:
        """Draft a tree from the root until the growth has nothing to add.

        Raises:
            NonFiniteLogits: if the draft model returns NaN or infinite logits.
            InvalidTree: if the growth names a node that does not exist, or a node twice at once, or does
                not end (`treespec.draft.growth.rounds`); if it asks for more children than the law can
                give, or returns to a node whose children the law chooses together; if the nodes it keeps
                are not a tree, or omit some of the drawn nodes.
        """
        if isinstance(self.growth, StaticGrowth) and self.growth.shape.depth:
            committed = [*self._pending, self._root]
            kind = self._static_kind(self.growth.shape, coins, len(committed))
            if kind is not None:
                tree, self._rows = draft_at_once(self.model, kind, committed, coins)
                self._at_once = tree, kind
                return self._vouched(tree)
            levels = levels_of(self.growth.shape, self._device)
            head = head_of(self.model, levels, self.law, self.sampling, coins)
            tree, self._rows = draft_levels(
                levels, self.model, head, committed, self._device, self._stage
            )
            return self._vouched(tree)
        if self._marginal:
            return self._vouched(self._over_chain(self._marginal, coins))
        parents, tokens = [-1], [self._root]
        drawn, passes = DrawnChildren(self.law, self.sampling), Passes(self.model, self._pending)
        probs = partial(drawn.node_probs, parents, tokens, self._device)
        for places in rounds(self.growth, parents, probs):
            new = [node for node, _ in places if node not in passes.rows]
            if new:
                logits = passes.run(new, [tokens[node] for node in new], parents, self._device)
                require_finite(logits, "draft", new)
                drawn.add(new, logits)
            for (node, _), children in zip(places, drawn.draw(places, coins), strict=True):
                parents += [node] * len(children)
                tokens += children
        self._rows, shape = passes.rows, shape_of(tuple(parents))
        if self._pruning:
            kept = self._checked_nodes(nodes_kept(self._pruning, shape, probs), shape)
            if len(kept) < shape.size:
                index = {node: i for i, node in enumerate(kept)}
                shape = shape_of(tuple(index.get(shape.parents[node], -1) for node in kept))
                tokens = [tokens[node] for node in kept]
                self._rows = {
                    index[node]: row for node, row in passes.rows.items() if node in index
                }
        rows = drawn.stacked(shape)
        return self._vouched(TokenTree.of(shape, tokens, rows, self.law, self._device))

    def _static_kind(self, shape: TreeShape, coins: Coins, committed: int) -> DraftKind | None:
        """The static draft of this tree, unless an observer is to see each level.

        Nor if more tokens were committed than a step of this tree emits, as below another source: each
        number needs a graph of its own.
        """
        if self._stage is not nullcontext or committed > shape.depth + 1:
            return None
        return static_kind(self.model, shape, self.law, self.sampling, coins, committed)

    def _over_chain(self, growth: MarginalGrowth, coins: Coins) -> TokenTree:
        """The tree that a growth builds from the rows along the chain of best tokens."""
        chain = range(growth.max_depth)
        tokens = [self._root, *[-1] * len(chain)]
        logits = self.draw_into(
            range(-1, len(chain)), tokens, {i: [i + 1] for i in chain}, {}, coins
        )
        marginals = ranking_of(self.sampling)(torch.stack([logits[i] for i in chain]))
        made = growth.tree_over(marginals, self._root)
        tree = TokenTree.of(made.shape, made.token_ids, None, self.law, self._device)
        # The model has run the chain: as far as the tree contains it, nodes have the rows of the chain.
        rows, node = {0: self._rows[0]}, 0
        for i in chain[1:]:
            matching = [
                child for child in tree.shape.children[node] if made.token_ids[child] == tokens[i]
            ]
            if not matching:
                break
            (node,) = matching
            rows[node] = self._rows[i]
        self._rows = rows
        return tree

    def _vouched(self, tree: TokenTree) -> TokenTree:
        """The tree, marked as valid if `Sampling` itself has just computed its rows from finite logits."""
        return tree.vouched() if type(self.sampling) is Sampling else tree

    def _checked_nodes(self, kept: set[int], shape: TreeShape) -> list[int]:
        """The nodes that a growth keeps, in the order of creation, checked to be a valid choice."""
        name = name_of(self.growth)
        if not kept <= set(range(shape.size)):
            raise InvalidTree(f"growth '{name}' keeps nodes that do not exist: {sorted(kept)}")
        if 0 not in kept:
            raise InvalidTree(f"growth '{name}' does not keep the root")
        orphan = next((node for node in kept if node and shape.parents[node] not in kept), None)
        if orphan is not None:
            raise InvalidTree(
                f"growth '{name}' keeps node {orphan} but not its parent {shape.parents[orphan]}"
            )
        if len(kept) < shape.size and self.law is not Law.DETERMINISTIC:
            raise InvalidTree(
                f"growth '{name}' keeps {len(kept)} of {shape.size} nodes, but choosing among children "
                f"of law {self.law} biases the output: draft deterministic children, or keep all nodes"
            )
        return sorted(kept)

    def propose_below(self, tokens: Sequence[int], coins: Coins) -> TokenTree:
        """Draft a tree whose root is the last of these uncommitted tokens, which follow the current root.

        The drafter's own state is unchanged afterwards.

        Args:
            tokens: in the order of the text, run again at each call; if empty, the tree is that of
                `propose`.
            coins: as for `propose`.

        Raises:
            NonFiniteLogits, InvalidTree: see `propose`.
        """
        with self._below(tokens):
            return self.propose(coins)

    @contextmanager
    def _below(self, tokens: Sequence[int]) -> Iterator[None]:
        """Act as if these tokens were committed. Only rows of pending tokens are kept afterwards."""
        pending, root = self._pending, self._root
        *self._pending, self._root = [*pending, root, *tokens]
        try:
            yield
            if self._rows and pending:
                self.model.keep(range(len(pending)))
                pending = []
        finally:
            self._pending, self._root, self._rows = pending, root, {}

    def draw_into(
        self,
        parents: Sequence[int],
        tokens: list[int],
        wanted: Mapping[int, Sequence[int]],
        avoided: Mapping[int, Collection[int]],
        coins: Coins,
    ) -> dict[int, Float[Tensor, "V"]]:
        """Draw some nodes of a tree that several sources share; the step of that tree is committed later.

        Args:
            parents: the parent of each node, the root first, each node before its children.
            tokens: the token of each node; the tokens of drawn nodes are written into this list.
            wanted: by node, its children to draw, in draw order. The node itself has a token or is drawn
                as well.
            avoided: by node, tokens not to draw: those of its other children.
            coins: for the laws that draw.

        Returns:
            By node, the row that its children were drawn from: the model's distribution without the
            avoided tokens (logits for DETERMINISTIC children). Tokens beyond the support of a row get
            almost no mass, but some, if there are more children to draw without replacement than it holds.

        Raises:
            NonFiniteLogits: if the draft model returns NaN or infinite logits.
        """
        drawn, passes = DrawnChildren(self.law, self.sampling), Passes(self.model, self._pending)
        to_run = {0, *wanted}
        for node in range(len(parents) - 1, 0, -1):
            if node in to_run:
                to_run.add(parents[node])
        known = set(range(len(parents))).difference(*wanted.values())
        waiting = sorted(to_run)
        while waiting:
            new = [node for node in waiting if node in known]
            logits = passes.run(new, [tokens[node] for node in new], parents, self._device)
            require_finite(logits, "draft", new)
            drawn.add(new, logits, wanted, avoided)
            places = [(node, len(wanted[node])) for node in new if node in wanted]
            for (node, _), drawn_tokens in zip(places, drawn.draw(places, coins), strict=True):
                for child, token in zip(wanted[node], drawn_tokens, strict=True):
                    tokens[child] = token
                    known.add(child)
            waiting = [node for node in waiting if node not in passes.rows]
        self._rows = passes.rows
        return {node: drawn.row(node) for node in wanted}

    def commit_ahead(self, tree: TokenTree, decision: Decision) -> None:
        """Move the rows of the path that the device decides on, if the tree was drafted there."""
        if self._at_once is None or self._at_once[0] is not tree:
            return
        kept = self._at_once[1].kept
        if kept is not None and kept.device == decision.out.device:
            self.model.keep_ahead(kept, decision)

    def commit(self, step: Step) -> None:
        """Keep the rows that the model ran for committed tokens; the other tokens become pending."""
        path = (step.tree.token_ids[node] for node in step.verdict.path)
        tokens = [*self._pending, *path, *step.further]
        ran = [self._rows[node] for node in step.verdict.path if node in self._rows]
        pending_rows = list(range(len(self._pending))) if ran else []
        self.model.keep(pending_rows + ran)
        self._pending = tokens[len(pending_rows) + len(ran) :]
        self._root, self._rows, self._at_once = step.verdict.bonus, {}, None


def make_drafter(
    model: TreeModel, growth: Growth | TreeShape, law: Law, sampling: Sampling
) -> Drafter:
    """A `ModelDrafter` for this tree, or a `NoDrafter` if the tree is the root alone (plain decoding).

    Args:
        model: the draft model; the drafter has its own cache.
        growth: where the tree grows; a `TreeShape` is drafted as it is.
        law: how children are chosen.
        sampling: the target's sampling settings.

    Raises:
        InvalidTree: if the growth states its laws and this law is not among them.
    """
    if isinstance(growth, TreeShape) and growth.size == 1:
        return NoDrafter()
    return ModelDrafter(model, growth, law, sampling)


class Passes:
    """The passes over one tree, and the model's row of each node.

    Rows 0 .. p - 1 are the pending tokens, row p is the root; expanded nodes follow in the order in which
    they are run.
    """

    def __init__(self, model: TreeModel, pending: Sequence[int]) -> None:
        self._model, self._pending = model, pending
        self._parents: tuple[int, ...] = ()
        self.rows: dict[int, int] = {}

    def run(
        self, nodes: Sequence[int], tokens: list[int], parents: Sequence[int], device: torch.device
    ) -> Float[Tensor, "T V"]:
        """Logits after these nodes, whose parents were run before."""
        first = len(self._parents)
        if not first:
            tokens = [*self._pending, *tokens]
            self._parents = tuple(range(-1, len(self._pending) - 1))
        row_parents = list(self._parents)
        for node in nodes:
            self.rows[node] = len(row_parents)
            row_parents.append(self.rows[parents[node]] if node else len(self._pending) - 1)
        self._parents = tuple(row_parents)
        new = torch.tensor(tokens, device=device)
        logits = self._model.run(new, self._parents, first).logits
        return logits[-len(nodes) :] if len(tokens) > len(nodes) else logits
