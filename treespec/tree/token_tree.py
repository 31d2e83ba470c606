"""A tree of drafted tokens, with the laws by which its children were drawn."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.checks import instance, token_ids
from treespec.errors import InvalidTree
from treespec.tree.checked_rows import CheckedRows
from treespec.tree.law import Group, Law, LawOfNode, laws_by_node
from treespec.tree.pictures import Look, captioned, draw_looks, draw_svg
from treespec.tree.probabilities import no_distributions
from treespec.tree.shape import TreeShape


@dataclass(frozen=True, eq=False)
class TokenTree:
    """A tree of drafted tokens, with what an acceptance rule must know about how they were drawn.

    Args:
        shape: the topology.
        tokens: token id of every node, at least 0; `tokens[0]` is the last committed token. If
            `draft_probs` is given, drafted ids must be column indices of it.
        draft_probs: the *initial* distribution, after sampling settings, that the children of each node
            were drawn from: one row for each of the M nodes with children, in node order. None when every
            node is deterministic. A row is checked when a rule first reads it (`CheckedRows`).
            In a mixed tree, each *group* of drawn children has its own row instead, in node order and
            within a node in the order of its groups; deterministic groups have none.
        law: how the children of each node were drawn: a law for each node, or one law for all nodes. The
            name of a law (`"iid"`) stands for the law. Children in index order are in draw order. A tree
            is mixed if a node has, instead of one law, a sequence of groups: pairs of a law and the number
            of children it drew, as in `[("iid", 2), ("deterministic", 1)]`. Rules decide the groups in
            this order.

    Raises:
        InvalidTree: if an argument has the wrong type (such as float or bool tokens), lengths do not match,
            a law is unknown, a sampled law comes without its distributions, or a token id is out of range.
            Token ids on a device other than the CPU are checked when `token_ids` first reads them, so that
            building a tree does not wait for the device.
    """

    shape: TreeShape
    tokens: Int[Tensor, "N"]
    draft_probs: Float[Tensor, "M V"] | None
    law: Law | str | Sequence[Law | str | Sequence[tuple[Law | str, int]]]

    def __post_init__(self) -> None:
        instance("shape", self.shape, TreeShape, "a TreeShape", InvalidTree)
        token_ids("tokens", self.tokens, InvalidTree)
        object.__setattr__(self, "law", laws_by_node(self.law, self.shape))
        if self.tokens.shape != (self.shape.size,):
            raise InvalidTree(
                f"a tree of {self.shape.size} nodes needs tokens of shape [{self.shape.size}], "
                f"not {list(self.tokens.shape)}"
            )
        self._require_draft_probs()
        self._read_on_cpu()

    @classmethod
    def of(
        cls,
        shape: TreeShape,
        ids: Sequence[int],
        draft_probs: Float[Tensor, "M V"] | None,
        law: Any,
        device: torch.device,
    ) -> "TokenTree":
        """A tree on a device, built from plain token ids, which are then never read back from the device.

        Args:
            shape: the topology.
            ids: token id of every node.
            draft_probs: see the class; on the device.
            law: see the class.
            device: the models' device.

        Raises:
            InvalidTree: see the class.
        """
        tokens = torch.from_numpy(np.array(ids, dtype=np.int64))  # half the time of torch.tensor
        tree = cls(shape, tokens.to(device), draft_probs, law)
        if tree.tokens.device.type != "cpu":
            tree.know_token_ids(map(int, ids))
        return tree

    def _read_on_cpu(self) -> None:
        """Read the ids, and so check them, if that needs no waiting."""
        if self.tokens.device.type == "cpu":
            _ = self.token_ids

    def _require_draft_probs(self) -> None:
        """Check the presence, type and number of rows, but not the probabilities in them."""
        if self.draft_probs is None:
            if self._laws.count(Law.DETERMINISTIC) == self.shape.size:
                return
            sampled = self.laws - {Law.DETERMINISTIC}
            if sampled:
                names = ", ".join(sorted(map(str, sampled)))
                raise InvalidTree(f"children of law {names} need draft_probs: their distributions")
            return
        wanted = "a tensor of one row of probabilities for each node with children, or None"
        instance("draft_probs", self.draft_probs, Tensor, wanted, InvalidTree)
        rows = self._rows
        if not self.draft_probs.is_floating_point():
            raise InvalidTree(
                f"draft_probs is {self.draft_probs.dtype}, but probabilities must be floating-point"
            )
        if self.draft_probs.ndim != 2 or self.draft_probs.shape[0] != rows:
            whose = "groups of drawn children" if self.is_mixed else "nodes that have children"
            raise InvalidTree(
                f"draft_probs has shape {list(self.draft_probs.shape)}, but needs one row for each of "
                f"the {rows} {whose}"
            )

    @cached_property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens as plain integers, read from the device once.

        Raises:
            InvalidTree: if an id is negative, or a drafted id exceeds the columns of `draft_probs`.
        """
        tokens = tuple(self.tokens.tolist())
        if min(tokens) < 0:
            node = next(node for node, token in enumerate(tokens) if token < 0)
            raise InvalidTree(f"node {node} has the token {tokens[node]}, but ids start at 0")
        if self.draft_probs is not None and max(tokens[1:], default=0) >= self.draft_probs.shape[1]:
            width = self.draft_probs.shape[1]
            node = next(node for node, token in enumerate(tokens) if node and token >= width)
            raise InvalidTree(
                f"node {node} has the token {tokens[node]}, but the rows of draft_probs end at token "
                f"{width - 1}"
            )
        return tokens

    def know_token_ids(self, ids: Iterable[int]) -> None:
        """Set the tokens as plain integers, by a caller that has already read them from the device."""
        object.__setattr__(self, "token_ids", tuple(ids))

    @cached_property
    def laws(self) -> frozenset[Law]:
        """The laws that occur at nodes with children."""
        if not self.is_mixed:
            held = [self._laws[node] for node in self.shape.internal]
            return frozenset(law for law in Law if law in held)
        return frozenset(
            group.law for node in self.shape.internal for group in self.groups_of(node)
        )

    @cached_property
    def is_mixed(self) -> bool:
        """Whether some node has its children in groups."""
        return tuple in set(map(type, self._laws))

    def law_of(self, node: int) -> Law:
        """How the children of `node` were drawn.

        Raises:
            InvalidTree: if there is no such node, or its children are in groups.
        """
        law = self._laws[self.shape.node(node)]
        if not isinstance(law, Law):
            raise InvalidTree(f"the children of node {node} are in groups: use groups_of({node})")
        return law

    def groups_of(self, node: int) -> tuple[Group, ...]:
        """The children of `node`, grouped by how they were drawn; one group unless the tree is mixed.

        Raises:
            InvalidTree: if there is no such node.
        """
        law, children = self._laws[self.shape.node(node)], self.shape.children[node]
        if not children:
            return ()
        if isinstance(law, Law):
            row = None if law is Law.DETERMINISTIC else self._first_row[node]
            return (Group(law, children, row),)
        groups, first, row = [], 0, self._first_row[node]
        for group_law, count in law:
            drawn = group_law is not Law.DETERMINISTIC
            members = children[first : first + count]
            groups.append(Group(group_law, members, row if drawn else None))
            first, row = first + count, row + drawn
        return tuple(groups)

    def draft_probs_of(self, node: int) -> Float[Tensor, "V"]:
        """The initial distribution that the children of `node` were drawn from.

        Raises:
            InvalidTree: if the node has no children, or the tree has no distributions or is mixed.
        """
        if self.draft_probs is None or not self.shape.children[self.shape.node(node)]:
            raise InvalidTree(f"node {node} has no draft distribution")
        if self.is_mixed:
            raise InvalidTree(f"node {node} is in a mixed tree: use checked_row with a group's row")
        return self.draft_probs[self._first_row[node]]

    def checked_draft_probs_of(self, node: int) -> Float[Tensor, "V"]:
        """As `draft_probs_of`, checked once per node to be a distribution.

        Raises:
            InvalidTree: see `draft_probs_of`.
            NotADistribution: if it is not; the error names node and value.
        """
        self.draft_probs_of(node)
        return self.checked_row(node, self._first_row[node])

    def checked_row(self, node: int, row: int) -> Float[Tensor, "V"]:
        """A row of `draft_probs`, checked once per row to be a distribution.

        Args:
            node: the node whose children were drawn from the row, for the error message.
            row: index of the row, as in `Group.row`.

        Raises:
            NotADistribution: if it is not; the error names node and value.
        """
        return self._checked.read(row, node)

    def vouched(self) -> "TokenTree":
        """This tree, with all rows marked as valid without a check: for callers that just computed them."""
        self._checked.vouched = True
        return self

    def look_at_rows(self) -> bool:
        """Whether all rows but those of deterministic nodes are distributions; waits for the device."""
        if self.draft_probs is None or not self.draft_probs.numel():
            return True
        invalid = no_distributions(self.draft_probs).tolist()
        drawn = (group.row for node in self.shape.internal for group in self.groups_of(node))
        valid = not any(invalid[row] for row in drawn if row is not None)
        if valid:
            self.vouched()
        return valid

    @property
    def is_vouched(self) -> bool:
        """Whether every row of `draft_probs` has been checked, or marked as valid."""
        if self.draft_probs is None:
            return True
        return self._checked.vouched or self._checked.rows_read == self._rows

    @cached_property
    def _checked(self) -> CheckedRows:
        return CheckedRows(self.draft_probs, "draft")

    @property
    def _laws(self) -> tuple[LawOfNode, ...]:
        return self.law  # pyrefly: ignore[bad-return]  (set in __post_init__)

    @property
    def _rows(self) -> int:
        """Number of rows that `draft_probs` must have."""
        internal = self.shape.internal
        if not internal:
            return 0
        return self._first_row[internal[-1]] + self._rows_of(internal[-1])

    @cached_property
    def _first_row(self) -> dict[int, int]:
        """The first row of each node with children."""
        if not self.is_mixed:
            return {node: row for row, node in enumerate(self.shape.internal)}
        rows = [0, *accumulate(map(self._rows_of, self.shape.internal))]
        return dict(zip(self.shape.internal, rows, strict=False))

    def _rows_of(self, node: int) -> int:
        if not self.is_mixed:
            return 1
        law = self._laws[node]
        laws = [law] if isinstance(law, Law) else [group_law for group_law, _ in law]
        return sum(group_law is not Law.DETERMINISTIC for group_law in laws)

    def __str__(self) -> str:
        return self.shape.draw([f"{node}:{token}" for node, token in enumerate(self.token_ids)])

    def _repr_svg_(self) -> str:
        return draw_svg(self.shape.children, self.token_ids)

    def _repr_html_(self) -> str:
        laws = ", ".join(sorted(map(str, self.laws))) or "none"
        svg = draw_looks(self.shape.children, [Look(str(token)) for token in self.token_ids])
        return captioned(
            svg,
            f"{self.shape.size - 1} draft tokens, depth {self.shape.depth}; law of the children: {laws}. "
            "Numbers are token ids.",
        )
