"""Token recycling: the next tree is made of the target's latest best successors of each token."""

from collections.abc import Mapping, Sequence
from math import prod
from os import PathLike

import numpy as np

from treespec.checks import integer, plain_tokens
from treespec.draft.state import load_state, save_state
from treespec.draft.text.best_first import Limits
from treespec.draft.text.text_source import AheadSource
from treespec.errors import InvalidArgument
from treespec.sampling.children import top_k
from treespec.step import Step
from treespec.tree import TreeShape

KIND = "token recycling table"

Successors = dict[int, list[int]]
"""By token, the tokens that the target finds most probable after it, best first."""

_WIDTHS = (
    (8,),
    (8, 4, 3, 2, 1, 1, 1, 1),
    (8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1),
    (5, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1),
    (3, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1),
    (2, 0, 0, 1),
)
"""Numbers of children of the template's nodes, level by level; nodes beyond the end of a row have none."""


def _template() -> TreeShape:
    parents, level = [-1], [0]
    for widths in _WIDTHS:
        start = len(parents)
        parents += [node for node, width in zip(level, widths, strict=False) for _ in range(width)]
        level = list(range(start, len(parents)))
    return TreeShape(tuple(parents))


TEMPLATE = _template()
"""The tree of the paper (its code, commit 1b4c05c): 80 draft nodes, 8, 21, 25, 15, 8 and 3 by depth."""


def template(limits: Limits) -> TreeShape:
    """The part of the template that fits within limits.

    From depth 3 on, the template roughly consists of the nodes with the smallest products of rank + 1 along
    their path, times 1.6 to the power of the depth. Its part is chosen by the same product; ties go to the
    shallower node, then to the elder one.
    """
    ranks = [TEMPLATE.rank_path(node) for node in range(TEMPLATE.size)]
    paths = [
        path
        for path in ranks[1:]
        if len(path) <= limits.depth and all(rank < limits.branching for rank in path)
    ]
    paths.sort(
        key=lambda path: (prod(rank + 1 for rank in path) * 1.6 ** len(path), len(path), path)
    )
    return TreeShape.from_paths(paths[: limits.drafted])


class TokenRecycling(AheadSource):
    """Drafts a static tree of ranks, filled with the successors that each token had when last seen.

    Token recycling (arXiv:2408.08696). A table holds, for each token, the `successors` most probable tokens
    after it. A node of the shape that is the k-th child of its parent gets the k-th successor of the
    parent's token. Every node that the target verifies, accepted or not, overwrites the row of its token
    with its best logits; if a token stands at several nodes, the accepted path wins, then the later node.
    Ours differs in two points: a token without a row has no children (in the original its children are
    eight equal siblings), and the prompt writes no rows, because its logits are not handed over. So the
    first tree of a text is its root alone.

    The children are DETERMINISTIC, a function of earlier steps, at any temperature: above 0 only rules for
    this law preserve the target's distribution.

    Args:
        shape: the tree to fill; the drafted tree may be smaller.
        successors: entries of a row, at least 1.
        table: rows of earlier texts; every prompt begins with a copy. None for an empty table.
        vocab_size: the target's vocabulary size, to refuse larger ids in `table`; None to skip the check.

    Raises:
        InvalidArgument: if a node has more children than a row has entries, or a row of the table is not a
            row of distinct token ids.
    """

    def __init__(
        self,
        shape: TreeShape = TEMPLATE,
        *,
        successors: int = 8,
        table: Mapping[int, Sequence[int]] | None = None,
        vocab_size: int | None = None,
    ) -> None:
        self.shape, self.max_depth = shape, shape.depth
        self.successors = integer("successors", successors, least=1)
        widest = max(map(len, shape.children))
        if widest > self.successors:
            raise InvalidArgument(
                f"a node of the shape has {widest} children, but successors = {self.successors}: raise it "
                f"to {widest}, or use a narrower shape"
            )
        self._initial: Successors = {}
        for key, row in (table or {}).items():
            (token,) = plain_tokens("table's tokens", [key], vocab_size)
            entries = plain_tokens(f"table[{token}]", row, vocab_size)
            if len(set(entries)) < len(entries):
                raise InvalidArgument(f"table[{token}] = {entries} holds a token twice")
            self._initial[token] = entries[: self.successors]
        self._restart()

    @property
    def table(self) -> Successors:
        """A copy of the current rows."""
        return {token: list(row) for token, row in self._table.items()}

    def commit(self, step: Step) -> None:
        """Read the accepted tokens, and write the rows of all verified tokens."""
        super().commit(step)
        logits, path = step.scores.logits, step.verdict.path
        rows = top_k(logits, min(self.successors, logits.shape[-1])).tolist()
        tokens = step.tree.token_ids
        # The path comes last, because later rows overwrite earlier ones.
        for node in (*range(step.tree.shape.size), *path):
            self._table[tokens[node]] = rows[node]

    def save(
        self,
        path: str | PathLike[str],
        *,
        vocab_size: int,
        tokenizer: str = "",
        target: str = "",
    ) -> None:
        """Write the table to a file, for `load`; arguments as in `treespec.draft.state.save_state`."""
        width = 1 + max(map(len, self._table.values()), default=0)
        rows = np.full((len(self._table), width), -1, dtype=np.int64)
        for i, (token, row) in enumerate(self._table.items()):
            rows[i, : 1 + len(row)] = [token, *row]
        save_state(path, KIND, {"rows": rows}, vocab_size, tokenizer, target)

    @staticmethod
    def load(
        path: str | PathLike[str],
        *,
        vocab_size: int | None = None,
        tokenizer: str = "",
        target: str = "",
    ) -> Successors:
        """Read a table written by `save`; arguments as in `treespec.draft.state.load_state`.

        Raises:
            Unreadable: if there is no such file, it is damaged or of another version, or it was made with
                another tokenizer or target.
        """
        state = load_state(path, KIND, {"rows": 2}, vocab_size, tokenizer, target)
        rows = state["rows"].tolist()
        return {token: [entry for entry in row if entry >= 0] for token, *row in rows}

    def _restart(self) -> None:
        self._table = {token: list(row) for token, row in self._initial.items()}

    def _read(self, tokens: Sequence[int]) -> None:
        """Do nothing: of the text only the root is needed."""

    def _after(self, ahead: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        parents, tokens = [-1], [ahead[-1] if ahead else self._root]
        drafted = {0: 0}  # node of the shape to node of the tree
        ranks = self.shape.ranks
        for node, parent in enumerate(self.shape.parents[1:], start=1):
            if parent not in drafted:
                continue
            row = self._table.get(tokens[drafted[parent]], ())
            if ranks[node] < len(row):
                drafted[node] = len(parents)
                parents.append(drafted[parent])
                tokens.append(row[ranks[node]])
        return parents, tokens[1:]
