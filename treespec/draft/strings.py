"""Drafting strings with a source of any other tokenizer (string-level exact match, arXiv:2502.05202)."""

import sys
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from treespec.checks import require_tokens
from treespec.draft.cascade import DraftsBelow
from treespec.models.codec import CUT, Codec, plain_text
from treespec.models.text_follower import TextFollower
from treespec.protocols import Coins
from treespec.step import Scores, Step, Verdict
from treespec.tree import Law, TokenTree, TreeShape

HELD = 6
"""Last pieces of the text that the source is given anew each time: later text may split them otherwise."""

TAIL = 8
"""Tokens before a draft with which it is encoded."""


class StringDrafter:
    """Drafts what a source of another tokenizer drafts, as strings in the target's ids.

    It follows the text in the source's ids (`treespec.models.text_follower`). Every path of the source's
    tree is a string, up to a special token; it is encoded together with the end of the text, and equal
    beginnings are one node. The children are DETERMINISTIC given the source's draws, which no rule reads.
    The last pieces of the text are not committed to the source but drafted below, so that a model keeps its
    cache when they are split otherwise; if earlier ones are, it starts over on the text. Nothing is drafted
    while the text ends inside a character.

    Args:
        drafter: the source, in its own ids; it must be able to draft after uncommitted tokens, as models
            and text sources are.
        target: the target's text and ids.
        draft: the source's.
        size: largest number of nodes of a tree, the root included.
        depth: largest depth of a tree.
    """

    max_length = sys.maxsize

    def __init__(
        self, drafter: DraftsBelow, target: Codec, draft: Codec, *, size: int, depth: int
    ) -> None:
        self.drafter, self.size, self.max_depth = drafter, size, depth
        self._text = TextFollower(target, draft)
        self._given: list[int] = []
        self._from = 0

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Start over on a prompt.

        Raises:
            InvalidPrompt: if it spells out a special token of the source.
        """
        require_tokens(tokens)
        self._device, ids = tokens.device, tokens.tolist()
        plain_text(self._text.source, self._text.codec, ids)
        self._text.restart(ids)
        self._given, self._from = [], 0
        self._follow()

    def _follow(self) -> None:
        """Commit to the source what no later text is expected to change."""
        ids = self._text.ids
        if not ids:
            self._given = []
            return
        most = self.drafter.max_length - self.drafter.max_depth - HELD
        if len(ids) - self._from > most:
            self._from, self._given = len(ids) - most // 2, []
        ids = ids[self._from :]
        end = max(len(ids) - HELD, 1)
        known = len(self._given)
        if not known or ids[:known] != self._given:
            self._given = ids[:end]
            self.drafter.prefill(self._row(self._given))
        elif end > known:
            *further, last = ids[known:end]
            root = TokenTree.of(
                TreeShape.chain(0), self._given[-1:], None, Law.DETERMINISTIC, self._device
            )
            nothing = Scores(torch.empty(1, 0, device=self._device))
            verdict = Verdict((0,), last)
            self.drafter.commit(Step(root, verdict, nothing, (*further, last), tuple(further)))
            self._given = ids[:end]

    def propose(self, coins: Coins) -> TokenTree:
        """The strings of the source's tree."""
        parents, tokens = [-1], [self._text.tokens[-1]]
        children: list[dict[int, int]] = [{}]
        for ids in self._strings(coins):
            node = 0
            for token in ids[: self.max_depth]:
                if token not in children[node]:
                    if len(tokens) == self.size:
                        break
                    children[node][token] = len(tokens)
                    parents.append(node)
                    tokens.append(token)
                    children.append({})
                node = children[node][token]
        shape = TreeShape(tuple(parents))
        return TokenTree.of(shape, tokens, None, Law.DETERMINISTIC, self._device)

    def _strings(self, coins: Coins) -> list[list[int]]:
        """The source's paths in the target's ids, in the order of their leaves."""
        if not self._given or not self._text.whole:
            return []
        held = self._text.ids[self._from + len(self._given) :]
        tree = self.drafter.propose_below(held, coins)
        codec, tail = self._text.codec, self._text.ids[-TAIL:]
        before, found = codec.decode(tail), []
        for leaf in range(1, tree.shape.size):
            if tree.shape.children[leaf]:
                continue
            path, node = [], leaf
            while node:
                path.append(tree.token_ids[node])
                node = tree.shape.parents[node]
            drafted = codec.decode([*tail, *self._plain(reversed(path))])
            if drafted.startswith(before):
                found.append(self._encoded(drafted[len(before) :].rstrip(CUT)))
        return found

    def _plain(self, path: Iterable[int]) -> list[int]:
        """The tokens of a path before the first special one, which has no text."""
        plain: list[int] = []
        for token in path:
            if token in self._text.codec.special:
                break
            plain.append(token)
        return plain

    def _encoded(self, string: str) -> list[int]:
        """The target's ids of a string that continues the text; none if they would say something else."""
        if not string:
            return []
        codec, tail = self._text.source, self._text.tokens[-TAIL:]
        before = codec.decode(tail)
        ids, starts = codec.encode(before + string)
        if ids[: len(tail)] == tail:
            return ids[len(tail) :]
        if len(before) in starts:
            return ids[starts.index(len(before)) :]
        alone = codec.inside(string)
        return alone if codec.decode([*tail, *alone]) == before + string else []

    def commit(self, step: Step) -> None:
        """Follow the text."""
        self._text.append(step.emitted_ids)
        self._follow()

    def _row(self, ids: Sequence[int]) -> Int[Tensor, "T"]:
        return torch.tensor(ids, dtype=torch.long, device=self._device)
