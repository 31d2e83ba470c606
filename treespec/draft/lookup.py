"""Prompt lookup: what followed the last tokens where they stood before is drafted again."""

import sys
from collections import Counter, defaultdict
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from treespec.door import integer, require_tokens
from treespec.protocols import Coins
from treespec.step import Step
from treespec.tree import Law, TokenTree, TreeShape

__all__ = ["PromptLookup"]


class PromptLookup:
    """Drafts a chain from the text itself, prompt and output; no model runs.

    The last `ngram` tokens are looked up earlier in the text. If they never stood there the last
    `ngram - 1` are, and so on down to one token; if that is new too, the tree is its root. All places
    found vote, token by token: the chain goes on with the token that follows at most of the places that
    agree with it so far, of tokens with equally many votes the one that was seen last. It ends at `depth`,
    or where the text ends.

    This is prompt lookup decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding), which is
    LLMA's copying (arXiv:2304.04487) without a reference text. It differs from the original, and from
    `prompt_lookup_num_tokens` of transformers, in one point: they copy from the first place, whatever
    followed at the others.

    The children are DETERMINISTIC, a function of the text: above temperature 0 only rules for that law keep
    the target's distribution.

    Args:
        depth: most draft tokens of a step, at least 1.
        ngram: most tokens that are looked up, at least 1.
        places: of how many places the latest are asked, at least 1. It bounds the time of a step in long
            texts that repeat a token everywhere.

    Raises:
        InvalidArgument: if one of them is no such integer.
    """

    max_length = sys.maxsize

    def __init__(self, depth: int, *, ngram: int = 3, places: int = 256) -> None:
        self.max_depth = integer("depth", depth, least=1)
        self.ngram = integer("ngram", ngram, least=1)
        self.places = integer("places", places, least=1)

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Forget the earlier text and read this one; its last token is the first root.

        Raises:
            InvalidPrompt, EmptyPrompt: if there is no row of token ids.
        """
        require_tokens(tokens)
        self._device = tokens.device
        self._text: list[int] = []
        # By n-gram: how long the text was whenever it had just ended so.
        self._ends: dict[tuple[int, ...], list[int]] = defaultdict(list)
        self._read(tokens.tolist())

    def propose(self, coins: Coins) -> TokenTree:
        """The root and what the text says comes next; no coin is used."""
        tokens = [self._text[-1], *self._continuation()]
        ids = torch.tensor(tokens, device=self._device)
        return TokenTree(TreeShape.chain(len(tokens) - 1), ids, None, Law.DETERMINISTIC)

    def commit(self, step: Step) -> None:
        """Read what was accepted, and the bonus."""
        accepted = [step.tree.token_ids[node] for node in step.verdict.path[1:]]
        self._read([*accepted, step.verdict.bonus])

    def _read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._text.append(token)
            for n in range(1, min(self.ngram, len(self._text)) + 1):
                self._ends[tuple(self._text[-n:])].append(len(self._text))

    def _continuation(self) -> list[int]:
        text, agreeing = self._text, self._matches()
        tokens: list[int] = []
        while agreeing and len(tokens) < self.max_depth:
            # A later place comes later, and so wins a tie.
            votes = Counter(text[at] for at in agreeing)
            most = max(votes.values())
            best = next(text[at] for at in reversed(agreeing) if votes[text[at]] == most)
            tokens.append(best)
            agreeing = [at + 1 for at in agreeing if text[at] == best and at + 1 < len(text)]
        return tokens

    def _matches(self) -> list[int]:
        """Where the text goes on after earlier places of its longest ending that has some."""
        for n in range(min(self.ngram, len(self._text)), 0, -1):
            # The last end is that of the text itself.
            earlier = self._ends[tuple(self._text[-n:])][:-1]
            if earlier:
                return earlier[-self.places :]
        return []
