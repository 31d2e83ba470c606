"""How often each short string occurs in texts: a compressed trie of all windows, with counts."""

from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise
from os import PathLike

import numpy as np

from treespec.checks import integer
from treespec.draft.state import load_state, save_state
from treespec.draft.text.best_first import Follower
from treespec.draft.text.compiled import CompiledTrie, library
from treespec.draft.text.trie import Locus, Trie

KIND = "suffix tree of texts"


class SuffixCounts:
    """The suffix trees of texts, cut at a depth, in one trie with counts.

    Starting at each token of a text, a window of at most `window` tokens is inserted into the trie. The
    result is a suffix tree cut at that depth with compressed edges, each edge a slice of the text itself.
    The count of a node is the number of windows through it, which is the number of occurrences of its
    string. The last `window - 1` windows of a text that is still being read are inserted once they are
    complete, or when the text ends.

    Compiled code holds the trie where there is a compiler (`text.compiled`), Python otherwise.

    Reading a token takes one walk down the trie with at most `window` comparisons. A text of T tokens makes
    at most 2 T nodes, however it repeats; the same bound holds for the remaining texts after others are
    dropped.

    Ended texts can be dropped again, the oldest first, or automatically when a text ends (`most_tokens`),
    as SuffixDecoding does with past outputs. An edge always lies in the latest text through it, so dropping
    a text leaves the others intact.

    Args:
        window: length of the longest string that is counted, at least 2.
        most_tokens: maximum number of tokens of ended texts, at least 1; the oldest texts are dropped, but
            the latest is kept whatever its length. None for no limit.

    Raises:
        InvalidArgument: if an argument is not such an integer.
    """

    def __init__(self, window: int = 64, most_tokens: int | None = None) -> None:
        self.window = integer("window", window, least=2)
        self.most_tokens = None
        if most_tokens is not None:
            self.most_tokens = integer("most_tokens", most_tokens, least=1)
        self.trie = Trie(self.window) if library() is None else CompiledTrie(self.window)
        self.largest_id = -1
        """The largest token id ever read; -1 if none was."""
        self._lengths: deque[int] = deque()  # of the ended texts
        self._ended = 0  # tokens of all of them

    def __len__(self) -> int:
        """Number of tokens held, without those of dropped texts."""
        return len(self.trie)

    @property
    def nodes(self) -> int:
        """Number of nodes of the trie, its root included."""
        return self.trie.nodes

    @property
    def texts(self) -> list[list[int]]:
        """The ended texts, the oldest first."""
        bounds = accumulate(self._lengths, initial=0)
        return [self.trie.text(begin, end) for begin, end in pairwise(bounds)]

    def read(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        self.largest_id = max(self.largest_id, max(tokens, default=-1))
        self.trie.read(tokens)

    def end(self) -> None:
        """End the text and count its last, shorter windows; the next token begins another text.

        The oldest texts are dropped while all together have more than `most_tokens`.
        """
        self.trie.finish()
        length = len(self) - self._ended
        if length:
            self._lengths.append(length)
            self._ended += length
        most = len(self) if self.most_tokens is None else self.most_tokens
        while len(self) > most and len(self._lengths) > 1:
            self.drop_oldest()

    def drop_oldest(self) -> None:
        """Drop the oldest ended text, if there is one."""
        if self._lengths:
            length = self._lengths.popleft()
            self.trie.drop(length)
            self._ended -= length

    def save(self, path: str | PathLike[str], *, vocab_size: int, tokenizer: str = "") -> None:
        """Write the ended texts to a file, for `load`; arguments: see `treespec.draft.state.save_state`."""
        texts = self.texts
        arrays = {
            "window": np.array([self.window]),
            "lengths": np.array([len(text) for text in texts], dtype=np.int64),
            "tokens": np.array([token for text in texts for token in text], dtype=np.int64),
        }
        save_state(path, KIND, arrays, vocab_size, tokenizer)

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        vocab_size: int | None = None,
        tokenizer: str = "",
        most_tokens: int | None = None,
    ) -> "SuffixCounts":
        """Read texts written by `save`, and count their strings again; of the oldest, see `most_tokens`.

        Other arguments as in `treespec.draft.state.load_state`.

        Raises:
            Unreadable: if there is no such file, it is damaged or of another version, or it was made with
                another tokenizer.
        """
        wanted = {"window": 1, "lengths": 1, "tokens": 1}
        arrays = load_state(path, KIND, wanted, vocab_size, tokenizer)
        counts, begin = cls(int(arrays["window"][0]), most_tokens), 0
        tokens = arrays["tokens"].tolist()
        for length in arrays["lengths"].tolist():
            counts.read(tokens[begin : begin + length])
            counts.end()
            begin += length
        return counts

    def open_ending(self) -> list[int]:
        """The end of the text being read: all tokens whose windows are not counted yet."""
        return self.trie.open_ending()

    def find(self, string: Sequence[int]) -> Locus | None:
        """The place in the trie where a string ends; None if no window begins with the string."""
        return self.trie.find(string)

    def count(self, at: Locus) -> int:
        """How often the string that ends at this place occurs in complete windows."""
        return self.trie.count(at)

    def followers(self, at: Locus, least: int = 1) -> list[Follower]:
        """The tokens that followed the string at this place at least `least` times, within windows."""
        return self.trie.followers(at, least)
