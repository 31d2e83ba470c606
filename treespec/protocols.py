"""The parts that the loop joins. Each is small, and none knows how another works."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from treespec.step import Scores, Step, Verdict
from treespec.tree import Law, TokenTree, TreeShape

__all__ = [
    "Coins",
    "Drafter",
    "Growth",
    "MarginalGrowth",
    "Models",
    "Observer",
    "PruningGrowth",
    "ReadsTarget",
    "Rows",
    "Target",
    "TreeModel",
    "Verifier",
]


@runtime_checkable
class Rows(Protocol):
    """Probabilities of nodes, `rows[i] -> [V]`, computed when first asked for. A tensor is one."""

    def __getitem__(self, node: int, /) -> Float[Tensor, "V"]:
        """The target's distribution after node `node`, sampling settings applied."""
        ...


@runtime_checkable
class Coins(Protocol):
    """Where randomness comes from, in drafting and in acceptance.

    The scalar calls take the next uniform of one stream, so that another implementation can reproduce a
    decision from the same uniforms.

    Drafting and acceptance take from the same stream, in the order in which the loop runs them. Streams of
    their own (a `fork`) would matter only where a tree is drafted before the last one is decided on, as
    PEARL does: there the order, and so the text of a seed, would depend on what overlaps. In this loop
    drafting begins when the step before it is committed.
    """

    def accept(self, probability: float | Float[Tensor, ""]) -> bool:
        """True with this probability (values outside [0, 1] count as the nearer end)."""
        ...

    def draw(self, probabilities: Float[Tensor, "V"]) -> int:
        """A token id, by inverse CDF in the order of ids; the row need not be normalised."""
        ...

    def draw_many(
        self, probabilities: Float[Tensor, "R V"], k: int, law: Law
    ) -> Int[Tensor, "R k"]:
        """k children for each row, in draw order, by a law."""
        ...


@runtime_checkable
class Growth(Protocol):
    """How a tree grows while it is drafted. The drafter draws; the growth only decides where.

    A growth may state `laws`, a set of `Law`, if it is right only for children chosen by these: drafters
    refuse the others. One that chooses among drafted nodes is a `PruningGrowth`; one that makes its tree
    of the distributions along a chain is a `MarginalGrowth`.
    """

    @property
    def max_depth(self) -> int:
        """Most edges that a tree of this growth can have."""
        ...

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        """Which nodes get how many children next, each node named once; empty when the tree is done.

        A node that has children gets further ones, chosen as if it had got all of them at once. Laws that
        choose the children of a node together (`TOP_THEN_SAMPLE`, `HUB`) do not allow it.

        Args:
            shape: the tree so far, numbered in the order of creation.
            probs: gives the draft probability of each node's token given its parent (1 for the root), from
                the distribution before any of its siblings was drawn. Computed when called: a static
                shape never calls it.
        """
        ...


@runtime_checkable
class PruningGrowth(Growth, Protocol):
    """A growth that drafts more nodes than are verified, and chooses in the end.

    Only among deterministic children: which of the drawn ones are kept must not depend on their tokens.
    """

    def keep(self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]) -> Sequence[int]:
        """The nodes that are verified, asked once when the tree is done.

        Any subset that holds the root and the parent of each of its nodes; the order says nothing. The
        nodes are renumbered in the order of creation.

        Args:
            shape: all drafted nodes, numbered in the order of creation.
            probs: see `Growth.next`.
        """
        ...


@runtime_checkable
class MarginalGrowth(Growth, Protocol):
    """A growth that makes its tree of one distribution for each position, along the chain of best tokens.

    The chain has `max_depth` draft tokens; a drafter does not ask `next`. Only of deterministic children:
    they come from the row of their position, not from that of their parent.
    """

    def tree_over(self, marginals: Float[Tensor, "D V"], root: int) -> TokenTree:
        """The tree, asked once when the chain is done.

        Args:
            marginals: the draft's distribution at each position of the chain, the first after the root;
                `max_depth` rows.
            root: the last committed token.
        """
        ...


@runtime_checkable
class TreeModel(Protocol):
    """A causal language model with a cache that can run the nodes of a tree.

    `length` committed rows stand in the cache. `run` puts the rows of tree nodes after them; `keep` makes
    some of these rows committed and forgets the others. A model may say by an attribute `draws_by_kernel`
    that kernels know its logits: one draws children from them (`treespec.draft.heads`), one decides by them
    (`treespec.verify.verifier_for`).
    """

    @property
    def vocab_size(self) -> int:
        """Length of a row of logits."""
        ...

    @property
    def max_length(self) -> int:
        """Positions that the model was made for."""
        ...

    @property
    def length(self) -> int:
        """Number of committed rows."""
        ...

    def fresh(self) -> "TreeModel":
        """The same weights with an empty cache of its own."""
        ...

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Forget all rows, run these tokens and commit their rows; T = 0 only forgets."""
        ...

    def run(
        self, tokens: Int[Tensor, "T"], parents: tuple[int, ...], first: int = 0
    ) -> Float[Tensor, "T V"]:
        """Logits after nodes first .. first + T - 1 of the tree `parents`.

        Args:
            tokens: the tokens of these nodes.
            parents: the tree of all nodes that have been run since the last `keep` and of those to run
                now, first + T of them. Node 0 follows the committed rows.
            first: index of the first node to run.
        """
        ...

    def keep(self, nodes: Sequence[int]) -> None:
        """Commit the rows of these nodes, a path from node 0 down, and forget all other tree rows."""
        ...


@runtime_checkable
class Models(Protocol):
    """A target and its draft; a `treespec.Pair` is one."""

    @property
    def target(self) -> TreeModel:
        """The model whose distribution is kept."""
        ...

    @property
    def draft(self) -> TreeModel:
        """A cheaper model of the same tokens."""
        ...


@runtime_checkable
class Drafter(Protocol):
    """A draft source."""

    @property
    def max_depth(self) -> int:
        """Most edges that a proposed tree can have."""
        ...

    @property
    def max_length(self) -> int:
        """Positions up to which it can draft."""
        ...

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Start over on a prompt; its last token is the first root."""
        ...

    def propose(self, coins: Coins) -> TokenTree:
        """A tree over the last committed token."""
        ...

    def commit(self, step: Step) -> None:
        """Take over what the step decided."""
        ...


@runtime_checkable
class ReadsTarget(Protocol):
    """A drafter that can read what a target keeps of the text instead of computing it."""

    def bind_target(self, target: "Target") -> None:
        """From the next `prefill` on, draft for this target, which is prefilled and told of steps first.

        What cannot be read there is computed, as ever; so for every target that is bound.
        """
        ...


@runtime_checkable
class Target(Protocol):
    """The model whose distribution is kept."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...

    @property
    def max_length(self) -> int:
        """Positions that the model was made for."""
        ...

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Start over on a prompt: all tokens but the last are cached, the last is the first root."""
        ...

    def score(self, tree: TokenTree) -> Scores:
        """Logits after every node, in one pass."""
        ...

    def commit(self, step: Step) -> None:
        """Keep the cached rows of the accepted path and forget the other nodes."""
        ...


@runtime_checkable
class Verifier(Protocol):
    """An acceptance rule: pure, no input mutated."""

    def __call__(self, tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
        """Which path is accepted, and the bonus token after it."""
        ...


@runtime_checkable
class Observer(Protocol):
    """Told of the stages of decoding (prefill, draft, verify, accept, commit) as they happen.

    One that is given to a drafter is told of each `level` of its trees.
    """

    def stage(self, name: str) -> AbstractContextManager[object]:
        """A context that lasts as long as the stage."""
        ...
