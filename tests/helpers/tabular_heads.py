"""Autoregressive heads as tables, so that drafts by them can be enumerated exactly."""

from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from treespec.draft.trained.contract import Contract
from treespec.features import Features
from treespec.step import Scores
from treespec.testing import TabularModel


def _key(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=6).digest())


class TabularHead(TabularModel):
    """Rows looked up by all pairs (state, token) of the context: a twin of `HeadModel`.

    A committed token is paired with the target's features of the token before it, a drafted one with what
    the head itself stands at there. Each pair is a number, which stands in place of the token.
    """

    contract = Contract("eagle", Features((1, 3), "post"), ("embedding", "state"))
    given: list[int] | None = None

    def fused(self, features: Tensor) -> Tensor:
        return features

    def give(self, states: Tensor, *, anew: bool = False) -> None:
        keys = [_key(state.numpy().tobytes()) for state in states]
        self.given = keys if anew else [*(self.given or ()), *keys]

    def prefill(self, tokens: Tensor) -> None:
        assert self.given is not None
        assert len(self.given) == len(tokens)
        pairs = zip(self.given, tokens[1:].tolist(), strict=False)
        super().prefill(torch.tensor([self._pair(*pair) for pair in pairs], dtype=torch.long))
        self.given = self.given[max(len(tokens) - 1, 0) :]

    def run(self, tokens: Tensor, parents: tuple[int, ...], first: int = 0) -> Scores:
        assert self.given is not None
        pairs = self._tree[:first]
        for node, token in enumerate(tokens.tolist(), first):
            path, above = [], parents[node]
            while above >= 0:
                path.append(pairs[above])
                above = parents[above]
            own = _key(repr((self._committed, path)).encode())
            pairs.append(self._pair(self.given[node] if node < len(self.given) else own, token))
        return super().run(torch.tensor(pairs[first:]), parents, first)

    def keep(self, nodes: Sequence[int]) -> None:
        super().keep(nodes)
        assert self.given is not None
        assert len(nodes) <= len(self.given), "rows of drafted tokens are never kept"
        self.given = self.given[len(nodes) :]

    def _pair(self, key: int, token: int) -> int:
        return key * self.vocab_size + token
