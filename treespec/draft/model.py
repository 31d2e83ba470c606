"""Drafting with an autoregressive model, level by level, along any growth."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.distributions import Sampling, require_finite
from treespec.door import able, require_tokens
from treespec.draft.drawn import DrawnChildren, ranking_of
from treespec.draft.growth import StaticGrowth, laws_along
from treespec.draft.heads import head_of
from treespec.draft.levels import draft_levels, levels_of
from treespec.errors import InvalidTree
from treespec.protocols import (
    Coins,
    Growth,
    MarginalGrowth,
    Observer,
    PruningGrowth,
    TreeModel,
)
from treespec.step import Step
from treespec.tree import Law, TokenTree, TreeShape

__all__ = ["ModelDrafter", "Passes"]


class ModelDrafter:
    """Drafts a tree with a smaller model, one pass for each level that gets children.

    The model's cache holds the rows of committed tokens that the model has run. Committed tokens that it
    has not run (an accepted leaf was never run) are *pending*: they open the next pass as a chain above
    the root. Nodes that never get children are never run, and none is run twice: a growth that comes back
    to a node gets further children from the row that is known.

    Args:
        model: the weights; its own cache is not touched, each drafter has a fresh one.
        growth: where the tree grows; a `TreeShape` grows as it is. One that chooses among drafted nodes
            (`PruningGrowth`) needs the law DETERMINISTIC: chosen by their tokens, drawn children are no
            longer drawn by their law, and no rule is lossless on them. One that makes a tree of the rows
            along a chain (`MarginalGrowth`) gets those along the chain of the best tokens.
        law: how children are chosen. IID and WITHOUT_REPLACEMENT draw from the model's distribution under
            `sampling`; DETERMINISTIC takes the k best logits and uses no coin.
        sampling: the settings of the target, applied by the same code.
        observer: told of the stage `level`, once for each level of a tree whose shape is known beforehand.

    Raises:
        InvalidArgument: if the model, the growth, the sampling or the observer is something else.
        InvalidTree: if the law is none, or the growth states that it is not made for it.
    """

    draws_where_told = True
    """Whether a merge may ask it for single nodes (`draw_into`)."""

    def __init__(
        self,
        model: TreeModel,
        growth: Growth | TreeShape,
        law: Law,
        sampling: Sampling,
        observer: Observer | None = None,
    ) -> None:
        able("model", model, "fresh prefill run keep", "a model that runs trees (TreeModel)")
        able("sampling", sampling, "rows", "a Sampling")
        if not isinstance(growth, TreeShape):
            able("growth", growth, "next max_depth", "a TreeShape or a Growth")
        if observer is not None:
            able("observer", observer, "stage", "an observer, or None")
        self.model, self.law, self.sampling = model.fresh(), Law.of(law), sampling
        self.given = model
        self.growth = StaticGrowth(growth) if isinstance(growth, TreeShape) else growth
        laws = laws_along(growth)
        if self.law not in laws:
            made_for = ", ".join(sorted(map(str, laws)))
            raise InvalidTree(
                f"growth '{_name(self.growth)}' is not made for children chosen {self.law}: "
                f"it is made for {made_for} only"
            )
        self._prunes = self.growth if isinstance(self.growth, PruningGrowth) else None
        self._over = self.growth if isinstance(self.growth, MarginalGrowth) else None
        self._stage = nullcontext if observer is None else observer.stage
        self._pending: list[int] = []
        self._rows: dict[int, int] = {}

    @property
    def max_depth(self) -> int:
        """Most edges that a proposed tree can have."""
        return self.growth.max_depth

    @property
    def max_length(self) -> int:
        """Positions that the model was made for."""
        return self.model.max_length

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Cache all tokens but the last, which is the first root.

        Raises:
            InvalidPrompt, EmptyPrompt: if there is no row of token ids.
        """
        require_tokens(tokens)
        self.model.prefill(tokens[:-1])
        self._device = tokens.device
        self._pending, self._root = [], int(tokens[-1])

    def propose(self, coins: Coins) -> TokenTree:
        """A tree over the root, grown until the growth has nothing to add.

        Raises:
            NonFiniteLogits: if the draft model returns NaN or infinite logits.
            InvalidTree: if the growth names a node that is not there, or one twice; if it wants more
                children of a node than the law gives, or comes back to a node whose children the law
                chooses together; if it keeps nodes that are no tree, or some of the drawn nodes only.
        """
        if isinstance(self.growth, StaticGrowth) and self.growth.shape.depth:
            levels = levels_of(self.growth.shape, self._device)
            head = head_of(self.model, levels, self.law, self.sampling, coins)
            committed = [*self._pending, self._root]
            tree, self._rows = draft_levels(
                levels, self.model, head, committed, self._device, self._stage
            )
            return self._vouched(tree)
        if self._over:
            return self._vouched(self._over_chain(self._over, coins))
        parents, tokens = [-1], [self._root]
        drawn, passes = DrawnChildren(self.law, self.sampling), Passes(self.model, self._pending)
        probs = partial(drawn.node_probs, parents, tokens, self._device)
        while True:
            shape = _shape(tuple(parents))
            places = self.growth.next(shape, probs)
            if not places:
                break
            _require_places(places, shape.size)
            new = [node for node, _ in places if node not in passes.rows]
            if new:
                logits = passes.run(new, [tokens[node] for node in new], parents, self._device)
                require_finite(logits, "draft", new)
                drawn.add(new, logits)
            for (node, _), children in zip(places, drawn.draw(places, coins), strict=True):
                parents += [node] * len(children)
                tokens += children
        self._rows = passes.rows
        if self._prunes:
            kept = self._kept(self._prunes.keep(shape, probs), shape)
            if len(kept) < shape.size:
                place = {node: i for i, node in enumerate(kept)}
                shape = _shape(tuple(place.get(shape.parents[node], -1) for node in kept))
                tokens = [tokens[node] for node in kept]
                self._rows = {place[n]: row for n, row in passes.rows.items() if n in place}
        rows = drawn.stacked(shape)
        return self._vouched(TokenTree.of(shape, tokens, rows, self.law, self._device))

    def _over_chain(self, growth: MarginalGrowth, coins: Coins) -> TokenTree:
        """What a growth makes of the rows along the chain of best tokens."""
        chain = range(growth.max_depth)
        tokens = [self._root, *[-1] * len(chain)]
        logits = self.draw_into(
            range(-1, len(chain)), tokens, {i: [i + 1] for i in chain}, {}, coins
        )
        marginals = ranking_of(self.sampling)(torch.stack([logits[i] for i in chain]))
        made = growth.tree_over(marginals, self._root)
        tree = TokenTree.of(made.shape, made.token_ids, None, self.law, self._device)
        # The model has run the chain: so far as it is a path of the tree, its rows are those of nodes.
        rows, node = {0: self._rows[0]}, 0
        for i in chain[1:]:
            below = [c for c in tree.shape.children[node] if made.token_ids[c] == tokens[i]]
            if not below:
                break
            (node,) = below
            rows[node] = self._rows[i]
        self._rows = rows
        return tree

    def _vouched(self, tree: TokenTree) -> TokenTree:
        """The tree, whose rows `Sampling` has just made of finite logits."""
        return tree.vouched() if type(self.sampling) is Sampling else tree

    def _kept(self, nodes: Sequence[int], shape: TreeShape) -> list[int]:
        """What the growth keeps, in the order of creation, if that may be."""
        kept = set(map(int, nodes))
        name = _name(self.growth)
        if not kept <= set(range(shape.size)):
            raise InvalidTree(f"growth '{name}' keeps nodes that are not there: {sorted(kept)}")
        if 0 not in kept:
            raise InvalidTree(f"growth '{name}' does not keep the root")
        orphan = next((n for n in kept if n and shape.parents[n] not in kept), None)
        if orphan is not None:
            raise InvalidTree(
                f"growth '{name}' keeps node {orphan} but not its parent {shape.parents[orphan]}"
            )
        if len(kept) < shape.size and self.law is not Law.DETERMINISTIC:
            raise InvalidTree(
                f"growth '{name}' keeps {len(kept)} of {shape.size} nodes, but choosing among children "
                f"drawn {self.law} biases the output: draft deterministic children, or keep all"
            )
        return sorted(kept)

    def propose_below(self, tokens: Sequence[int], coins: Coins) -> TokenTree:
        """A tree over the last of these tokens, which follow the root; it is forgotten.

        Args:
            tokens: in the order of the text, run again each time; none for the tree of `propose`.
            coins: as for `propose`.

        Raises:
            NonFiniteLogits, InvalidTree: see `propose`.
        """
        with self._below(tokens):
            return self.propose(coins)

    @contextmanager
    def _below(self, tokens: Sequence[int]) -> Iterator[None]:
        """As if these tokens were committed. Of the rows that are run, those of pending tokens stay."""
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
        """Draw some nodes of a tree that several sources fill; the step of that tree is then committed.

        Args:
            parents: of all nodes, the root first, each before its children.
            tokens: of all nodes, written here for those that are drawn.
            wanted: by node, those of its children that are drawn, in draw order. The node has a token, or
                is drawn itself.
            avoided: by node, tokens that are not drawn: other children of it.
            coins: for the laws that draw.

        Returns:
            By node, what its children were drawn from: the model's distribution without the tokens avoided.

        Raises:
            NonFiniteLogits: if the draft model returns NaN or infinite logits.
        """
        drawn, passes = DrawnChildren(self.law, self.sampling), Passes(self.model, self._pending)
        run = {0, *wanted}
        for node in range(len(parents) - 1, 0, -1):
            if node in run:
                run.add(parents[node])
        known = set(range(len(parents))).difference(*wanted.values())
        waiting = sorted(run)
        while waiting:
            new = [node for node in waiting if node in known]
            logits = passes.run(new, [tokens[node] for node in new], parents, self._device)
            require_finite(logits, "draft", new)
            drawn.add(new, _without(logits, [avoided.get(node, ()) for node in new]))
            places = [(node, len(wanted[node])) for node in new if node in wanted]
            for (node, _), drawn_tokens in zip(places, drawn.draw(places, coins), strict=True):
                for child, token in zip(wanted[node], drawn_tokens, strict=True):
                    tokens[child] = token
                    known.add(child)
            waiting = [node for node in waiting if node not in passes.rows]
        self._rows = passes.rows
        return {node: drawn.row(node) for node in wanted}

    def commit(self, step: Step) -> None:
        """Keep the rows that the model ran for committed tokens; the other tokens become pending."""
        path = (step.tree.token_ids[node] for node in step.verdict.path)
        tokens = [*self._pending, *path, *step.further]
        ran = [self._rows[node] for node in step.verdict.path if node in self._rows]
        opened = list(range(len(self._pending))) if ran else []
        self.model.keep(opened + ran)
        self._pending, self._root = tokens[len(opened) + len(ran) :], step.verdict.bonus
        self._rows = {}


class Passes:
    """The passes over one tree, in the numbering of the rows that the model runs.

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
        above = list(self._parents)
        for node in nodes:
            self.rows[node] = len(above)
            above.append(self.rows[parents[node]] if node else len(self._pending) - 1)
        self._parents = tuple(above)
        logits = self._model.run(torch.tensor(tokens, device=device), self._parents, first)
        return logits[-len(nodes) :] if len(tokens) > len(nodes) else logits


@lru_cache(maxsize=1024)
def _shape(parents: tuple[int, ...]) -> TreeShape:
    """The shape with these parents, checked and worked out once: most trees are drafted over and over."""
    return TreeShape(parents)


def _without(
    logits: Float[Tensor, "T V"], avoided: Sequence[Collection[int]]
) -> Float[Tensor, "T V"]:
    """The logits, of some tokens of each row -inf: these are never drawn."""
    if any(avoided):
        logits = logits.clone()
        for row, tokens in zip(logits, avoided, strict=True):
            row[list(tokens)] = -torch.inf
    return logits


def _require_places(places: Sequence[tuple[int, int]], size: int) -> None:
    """Refuse what no drafter can do."""
    nodes = [node for node, _ in places]
    if len(set(nodes)) < len(nodes):
        raise InvalidTree(f"the growth gives children to a node twice at once: {nodes}")
    for node, k in places:
        if not 0 <= node < size or k < 1:
            raise InvalidTree(
                f"the growth gives {k} children to node {node} of a tree of {size} nodes: "
                "it must name nodes that are there, each with a child at least"
            )


def _name(growth: Growth) -> str:
    return type(growth).__name__
