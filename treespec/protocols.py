"""The parts that the decoding loop joins. Each is small, and none knows how another works."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from treespec.step import Rows, Scores, Step, Verdict
from treespec.tree import Law, TokenTree, TreeShape

__all__ = [
    "Coins",
    "CommitsAhead",
    "DecidesAhead",
    "Decision",
    "Drafter",
    "Growth",
    "MarginalGrowth",
    "Models",
    "Observer",
    "PruningGrowth",
    "RanksNext",
    "ReadsTarget",
    "Rows",
    "Target",
    "TreeModel",
    "Verifier",
]


@runtime_checkable
class Coins(Protocol):
    """The source of randomness, in drafting and in acceptance.

    Each scalar call takes the next uniform of one stream, so that another implementation can reproduce a
    decision from the same uniforms.

    In `decode`, drafting and acceptance share the stream and draw from it in turn: a tree is drafted after
    the previous step is committed. A drafter that drafts before the previous tree is decided, as in PEARL
    (arXiv:2408.11850), draws from forks, one for each position of the text, so that the text of a seed does
    not depend on what overlaps.
    """

    def accept(self, probability: float | Float[Tensor, ""]) -> bool:
        """Return True with this probability; values outside [0, 1] are clamped."""

    def draw(self, probabilities: Float[Tensor, "V"]) -> int:
        """Draw a token id by inverse CDF in the order of ids; the row need not be normalised."""

    def draw_many(
        self, probabilities: Float[Tensor, "R V"], k: int, law: Law
    ) -> Int[Tensor, "R k"]:
        """Draw k children for each row by a law; the result is in draw order."""

    def fork(self, name: str) -> "Coins":
        """Coins with an independent stream, determined by these coins' seed and the name.

        Equal names give equal numbers, so coins that are forked by positions of a text serve one text only.
        Coins that enumerate all outcomes have one stream and return themselves, once for each name.
        """


@runtime_checkable
class Growth(Protocol):
    """How a tree grows while it is drafted. The drafter draws; the growth only decides where.

    A growth that is correct only for children chosen by certain laws states them as `laws`, a set of `Law`;
    drafters refuse the others. A growth that selects among drafted nodes is a `PruningGrowth`; one that
    builds its tree from the distributions along a chain is a `MarginalGrowth`.
    """

    @property
    def max_depth(self) -> int:
        """Largest depth of a tree of this growth."""

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        """Pairs of a node and its number of new children, each node at most once; empty when done.

        A node that already has children gets further ones, chosen as if all had been requested at once.
        Laws that choose the children of a node together (`TOP_THEN_SAMPLE`, `HUB`) do not allow this.

        Args:
            shape: the tree so far, numbered in the order of creation.
            probs: returns the draft probability of each node's token given its parent (1 for the root),
                under the distribution before any of its siblings was drawn. Computed when called: a static
                shape never calls it.
        """


@runtime_checkable
class PruningGrowth(Growth, Protocol):
    """A growth that drafts more nodes than are verified, and selects among them at the end.

    For deterministic children only: which drawn children are kept must not depend on their tokens.
    """

    def keep(self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]) -> Sequence[int]:
        """The nodes to verify; called once, when the tree is done.

        Any subset that contains the root and the parent of each of its nodes, in any order. The nodes are
        renumbered in the order of creation.

        Args:
            shape: all drafted nodes, numbered in the order of creation.
            probs: see `Growth.next`.
        """


@runtime_checkable
class MarginalGrowth(Growth, Protocol):
    """A growth that builds its tree from one distribution per position, along the chain of best tokens.

    The chain has `max_depth` draft tokens; a drafter does not call `next`. For deterministic children only:
    they come from the row of their position, not from the row of their parent.
    """

    def tree_over(self, marginals: Float[Tensor, "D V"], root: int) -> TokenTree:
        """Build the tree; called once, when the chain is done.

        Args:
            marginals: the draft's distribution at each position of the chain, starting after the root;
                `max_depth` rows.
            root: the last committed token.
        """


@runtime_checkable
class TreeModel(Protocol):
    """A causal language model with a cache that can run the nodes of a tree.

    The cache holds `length` committed rows. `run` appends the rows of tree nodes; `keep` commits some of
    these rows and discards the others. A model may set the attribute `draws_by_kernel` to state that
    kernels can read its logits: one kernel draws children from them (`treespec.draft.choosing`), another
    decides on acceptance (`treespec.verify.verifier_for`). A model that can return hidden states too has a
    method `lend` (`treespec.features.LendsFeatures`).
    """

    @property
    def vocab_size(self) -> int:
        """Length of a row of logits."""

    @property
    def max_length(self) -> int:
        """Number of positions in the model's context."""

    @property
    def length(self) -> int:
        """Number of committed rows."""

    def fresh(self) -> "TreeModel":
        """A model with the same weights and its own empty cache."""

    def prefill(self, tokens: Int[Tensor, "T"]) -> Float[Tensor, "T F H"] | None:
        """Clear the cache, run these tokens and commit their rows; with T = 0 only clear it.

        Returns the features of these tokens if the model lends some; never logits.
        """

    def run(self, tokens: Int[Tensor, "T"], parents: tuple[int, ...], first: int = 0) -> Scores:
        """Logits after nodes first .. first + T - 1 of the tree `parents`, and the features lent of them.

        Args:
            tokens: the tokens of these nodes.
            parents: the tree of all nodes run since the last `keep` and those to run now, first + T
                nodes in all. Node 0 follows the committed rows.
            first: index of the first node to run.
        """

    def keep(self, nodes: Sequence[int]) -> None:
        """Commit the rows of these nodes, a path down from node 0, and discard all other tree rows."""


@runtime_checkable
class Models(Protocol):
    """A target model and its draft model; `treespec.Pair` is one implementation."""

    @property
    def target(self) -> TreeModel:
        """The model whose distribution is preserved."""

    @property
    def draft(self) -> TreeModel:
        """A cheaper model with the same vocabulary."""


@runtime_checkable
class Drafter(Protocol):
    """A draft source.

    One that reads hidden states of the target states them as `reads`, and its `prefill` gets those of the
    prompt as a second argument (`treespec.features.ReadsFeatures`).
    """

    @property
    def max_depth(self) -> int:
        """Largest depth of a proposed tree."""

    @property
    def max_length(self) -> int:
        """Number of positions up to which it can draft."""

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Start over on a prompt; its last token is the first root.

        Raises:
            InvalidPrompt, EmptyPrompt: if the prompt is not a row of token ids, or is empty.
        """

    def propose(self, coins: Coins) -> TokenTree:
        """Draft a tree whose root is the last committed token."""

    def commit(self, step: Step) -> None:
        """Move on to the end of the text after this step."""


@runtime_checkable
class RanksNext(Protocol):
    """A drafter that says itself which token it holds to be the best one after each node of its tree.

    Needed where that cannot be read from the tree (`treespec.draft.best_next`): a drafter with one row for
    each depth has rows at the nodes without children too.
    """

    def best_next(self) -> Sequence[int | None]:
        """For each node of the latest tree, the first token of its row; None where there is no row.

        Valid from `propose` to the next `propose`, thus after `commit` too.
        """


@runtime_checkable
class ReadsTarget(Protocol):
    """A drafter that can read rows from the target's cache instead of computing them."""

    def bind_target(self, target: "Target") -> None:
        """From the next `prefill` on, draft for this target, which is prefilled and committed to first.

        Rows that this target does not hold are computed as without it, so any target can be bound.
        """


@runtime_checkable
class Target(Protocol):
    """The model whose distribution is preserved.

    One that can return hidden states has a method `lend` (`treespec.features.LendsFeatures`).
    """

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def max_length(self) -> int:
        """Number of positions in the model's context."""

    def prefill(self, tokens: Int[Tensor, "T"]) -> Float[Tensor, "P F H"] | None:
        """Start over on a prompt: cache all tokens but the last, which becomes the first root.

        Returns the features of the P = T - 1 cached tokens if the target lends some.
        """

    def score(self, tree: TokenTree) -> Scores:
        """Compute the logits after every node in one pass, and the features that the target lends."""

    def commit(self, step: Step) -> None:
        """Keep the cached rows of the accepted path and discard those of the other nodes."""


@runtime_checkable
class Verifier(Protocol):
    """An acceptance rule: a pure function that mutates no input."""

    def __call__(self, tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
        """Decide which path is accepted, and the bonus token after it."""


@runtime_checkable
class Decision(Protocol):
    """A decision that is under way on a device."""

    out: Int[Tensor, "4"]
    """On the device: 0 if the verdict stands (else the host must decide), and the last node of the path."""

    @property
    def stands(self) -> bool:
        """Whether the verdict is that of the device; valid after `verdict`."""

    def verdict(self) -> Verdict:
        """Wait for the device, and return what it decided; by the rule itself if it could not."""


@runtime_checkable
class DecidesAhead(Protocol):
    """A verifier that can decide on the device without waiting for it."""

    def decide_ahead(self, tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Decision | None:
        """Launch the decision; None if these arguments must be decided by an ordinary call."""


@runtime_checkable
class CommitsAhead(Protocol):
    """A target or drafter that can move cached rows by a decision that only the device knows."""

    def commit_ahead(self, tree: TokenTree, decision: Decision, /) -> None:
        """Move the rows of the path next to the committed ones; `commit` follows, with the verdict.

        On the device nothing may move if the decision does not stand.
        """


@runtime_checkable
class Observer(Protocol):
    """Observes the stages of decoding (prefill, draft, verify, accept, commit) as they happen.

    An observer given to a drafter is notified of each `level` of its trees.
    """

    def stage(self, name: str) -> AbstractContextManager[object]:
        """Return a context that lasts as long as the stage."""
