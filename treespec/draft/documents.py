"""Documents given with the prompt: what follows the last tokens there is drafted."""

from collections.abc import Iterable, Sequence

from jaxtyping import Int
from torch import Tensor

from treespec.door import sequence
from treespec.draft.best_first import Limits, Match
from treespec.draft.ngrams import Ngrams, matches_at, most_places
from treespec.draft.text_source import MatchingSource
from treespec.draft.vocabulary import plain_tokens
from treespec.errors import InvalidArgument

__all__ = ["Documents"]


class Documents(MatchingSource):
    """Drafts from texts that are known before decoding: a file that is edited, retrieved passages.

    Prompt lookup (`PromptLookup`) over these texts alone: the last `ngram` tokens of prompt and output are
    looked up in the documents, never in the text itself, and what follows at the places found is counted
    into one trie. No continuation goes on from one document into the next. This is LLMA (arXiv:2304.04487)
    with all matches instead of the first, drafted as a tree.

    Args:
        documents: token ids of each, at least one document; None for the prompt of each text as the only
            one: what is decoded behind it is not looked up.
        depth: most draft tokens below each other, at least 1.
        size: most nodes of a tree, the root included; None for a chain of `depth`.
        branching: most children of a node; with 1 the trees are chains.
        ngram: most tokens that are looked up, at least 1.
        places: of how many places the latest are asked, at least 1.
        vocab_size: of the target, to refuse ids beyond it; None to look at nothing.

    Raises:
        InvalidArgument: if one of them is no such integer, or a branching above 1 comes without a size; if
            there is no document, or one is no row of token ids of the vocabulary.
    """

    def __init__(
        self,
        documents: Iterable[Sequence[int] | Tensor] | None,
        depth: int,
        *,
        size: int | None = None,
        branching: int = 1,
        ngram: int = 3,
        places: int = 256,
        vocab_size: int | None = None,
    ) -> None:
        self.limits = Limits(depth, size, branching)
        self.max_depth = self.limits.depth
        self.places = most_places(places)
        self._documents = Ngrams(ngram)
        self._of_prompt = documents is None
        if documents is None:
            return
        given = sequence("documents", documents, "documents, each a row of token ids")
        if not given:
            raise InvalidArgument("documents is empty: give at least one row of token ids")
        for i, document in enumerate(given):
            self._documents.read(plain_tokens(f"documents[{i}]", document, vocab_size))
            self._documents.end()

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Forget the earlier text and read this one; without other documents its prompt is one.

        Raises:
            InvalidPrompt, EmptyPrompt: if there is no row of token ids.
        """
        super().prefill(tokens)
        if self._of_prompt:
            self._documents = Ngrams(self._documents.ngram)
            self._documents.read(tokens.tolist())
            self._documents.end()

    def _restart(self) -> None:
        self._ending: list[int] = []

    def _read(self, tokens: Sequence[int]) -> None:
        ngram = self._documents.ngram
        self._ending = [*self._ending, *tokens[-ngram:]][-ngram:]

    def _matches(self, ahead: Sequence[int]) -> list[Match]:
        places = self._documents.places([*self._ending, *ahead], self.places)
        return matches_at(places, self._documents.followers, self.limits)
