"""Documents given with the prompt: drafts what follows the last tokens there."""

from collections.abc import Iterable, Sequence

from jaxtyping import Int
from torch import Tensor

from treespec.checks import plain_tokens
from treespec.draft.text.best_first import Limits, Match
from treespec.draft.text.ngrams import END, Ngrams, matches_at, most_places
from treespec.draft.text.text_source import MatchingSource
from treespec.errors import InvalidArgument


class Documents(MatchingSource):
    """Drafts from texts that are known before decoding, such as a file being edited or retrieved passages.

    Prompt lookup (`PromptLookup`) in these texts alone: the last `ngram` tokens of prompt and output are
    looked up in the documents, never in the text itself, and what follows at the places found is counted
    in one trie. No continuation extends from one document into the next. This is LLMA (arXiv:2304.04487)
    with all matches instead of the first, drafted as a tree.

    Args:
        documents: token ids of each document, at least one; None to use the prompt of each text as the only
            document, without the output decoded after it.
        depth: maximum depth of a tree, at least 1.
        size: maximum number of nodes, the root included; None for a chain of `depth`.
        branching: maximum number of children of a node; with 1 the trees are chains.
        ngram: maximum number of tokens to look up, at least 1.
        places: maximum number of places to consult, the latest first, at least 1.
        vocab_size: the target's vocabulary size, to refuse larger ids; None to skip the check.

    Raises:
        InvalidArgument: if an argument is not such an integer, or a branching above 1 is given without a
            size; if there is no document, or a document is not a row of token ids of the vocabulary.
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
        self._prompt_is_document = documents is None
        if documents is None:
            return
        for i, document in enumerate(documents):
            self._documents.read(plain_tokens(f"documents[{i}]", document, vocab_size))
            self._documents.end()
        if max(self._documents.text, default=END) == END:
            raise InvalidArgument("documents hold no token: give at least one row of token ids")

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Forget the earlier text and read this prompt, which is the document if none were given."""
        super().prefill(tokens)
        if self._prompt_is_document:
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
        return matches_at(self._documents, places, self.limits)
