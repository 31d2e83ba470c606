"""Prompt lookup: drafts what followed the last tokens at their earlier occurrences."""

from collections.abc import Sequence

from treespec.checks import plain_tokens
from treespec.draft.text.best_first import Limits, Match
from treespec.draft.text.ngrams import Ngrams, matches_at, most_places
from treespec.draft.text.text_source import MatchingSource


class PromptLookup(MatchingSource):
    """Drafts from the text itself, prompt and output, without a model.

    The last `ngram` tokens are looked up earlier in the text. If they do not occur there, the last
    `ngram - 1` are looked up, and so on down to one token; if that is new too, the tree is its root. What
    followed at all places found is counted in a trie, and the most frequent continuations are drafted; in
    case of ties the shorter one, then the one seen last. A chain (`branching` 1) continues token by token
    with the most frequent token at the places that agree with it so far.

    As a chain this is prompt lookup decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding),
    which is LLMA's copying (arXiv:2304.04487) without a reference text. It differs from the original, and
    from `prompt_lookup_num_tokens` of transformers, in one point: they copy from the first place, whatever
    followed at the others.

    The children are DETERMINISTIC, a function of the text: above temperature 0 only rules for this law
    preserve the target's distribution.

    Args:
        depth: maximum depth of a tree, at least 1.
        size: maximum number of nodes, the root included; None for a chain of `depth`.
        branching: maximum number of children of a node; with 1 the trees are chains.
        ngram: maximum number of tokens to look up, at least 1.
        places: maximum number of places to consult, the latest first, at least 1. It bounds the time of a
            step in long texts that repeat a token everywhere.
        source: token ids that are looked up too, as if they stood before the text: what an encoder-decoder
            reads, and its summary or translation copies. No continuation extends from them into the text.

    Raises:
        InvalidArgument: if an argument is not such an integer, or a branching above 1 is given without a
            size.
    """

    def __init__(
        self,
        depth: int,
        *,
        size: int | None = None,
        branching: int = 1,
        ngram: int = 3,
        places: int = 256,
        source: Sequence[int] = (),
    ) -> None:
        self.limits = Limits(depth, size, branching)
        self.max_depth = self.limits.depth
        self.ngram = Ngrams(ngram).ngram
        self.places = most_places(places)
        self.source = plain_tokens("source", source)

    def _restart(self) -> None:
        self._text = Ngrams(self.ngram)
        if self.source:
            self._text.read(self.source)
            self._text.end()

    def _read(self, tokens: Sequence[int]) -> None:
        self._text.read(tokens)

    def _after(self, ahead: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        with self._text.reading(ahead):
            return super()._after(())

    def _matches(self, ahead: Sequence[int]) -> list[Match]:
        places = self._text.places(self._text.text[-self.ngram :], self.places)
        return matches_at(self._text, places, self.limits)
