"""The target's rows of one text under processors, computed for the nodes that are visited."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.sampling.distributions import SampledRows, Sampling, wide
from treespec.tree import TokenTree

if TYPE_CHECKING:
    from treespec.sampling.processing.text import ProcessedText

FORBIDDEN = -1e30
"""A logit whose probability is 0; divided by the least temperature, it is finite in float32."""

RowsOf = Callable[[TokenTree, Tensor, Sequence[int]], SampledRows]
"""`(tree, logits of its nodes, committed ids so far) -> rows`; the last committed id is the tree's root."""


def rows_of_text(sampling: Sampling, prompt_length: int, device: torch.device) -> RowsOf:
    """A function that gives the rows of the trees of one text, step by step.

    Without processors it is `sampling.rows`. Processors that need no path (suppressed tokens, biases of
    single tokens) change all rows at once, so that kernels may read them.

    Args:
        sampling: the settings.
        prompt_length: tokens of the prompt.
        device: where the logits are.

    Raises:
        InvalidSampling: if transformers refuses a processor.
    """
    processors = getattr(sampling, "processors", None)
    if processors is None:
        return lambda tree, logits, ids: sampling.rows(logits)
    from treespec.sampling.processing.text import ProcessedText  # loads transformers

    text, reads_path = ProcessedText(processors, prompt_length, device), processors.reads_path

    def rows(tree: TokenTree, logits: Tensor, ids: Sequence[int]) -> SampledRows:
        text.follow(ids[:-1])
        if not reads_path:
            return SampledRows(finite_for_forbidden(text.every(logits)), sampling)
        return TextRows(logits, sampling, text, tree)

    return rows


def processed_row(
    sampling: Sampling, logits: Float[Tensor, "V"], ids: Sequence[int], prompt_length: int
) -> Float[Tensor, "V"]:
    """The logits after these ids as the processors change them; the logits themselves if there are none."""
    if sampling.processors is None:
        return logits
    from treespec.sampling.processing.text import ProcessedText  # loads transformers

    text = ProcessedText(sampling.processors, prompt_length, logits.device)
    text.extend(ids[:-1])
    return text.row(logits, ids[-1:], 0)


class TextRows(SampledRows):
    """Rows whose logits are processed along the path to their node, at first use.

    Args:
        logits: of the model, one row per node.
        sampling: the settings.
        text: the committed tokens before the root.
        tree: the tree.
    """

    def __init__(
        self,
        logits: Float[Tensor, "N V"],
        sampling: Sampling,
        text: "ProcessedText",
        tree: TokenTree,
    ) -> None:
        super().__init__(logits, sampling, text.model)
        self._text, self._tree, self._length = text, tree, text.length
        self._processed: dict[int, Tensor] = {}

    def copied(self, logits: Float[Tensor, "N V"]) -> SampledRows:
        """The same rows; processors that are on another device than `logits` get their rows back."""
        return _Copied(self, logits)

    def _finite(self, node: int) -> Float[Tensor, "V"]:
        if node not in self._processed:
            logits, parents = self._given(node), self._tree.shape.parents
            path = path_to(parents, self._tree.token_ids, node)
            if self._text.processors.custom and self._is_dead(node):
                self._processed[node] = wide(logits)
            else:
                self._processed[node] = self._text.row(logits, path, node, self._length)
        return self._processed[node]

    def _is_dead(self, node: int) -> bool:
        """Whether a node's token is forbidden: processors of a user need not know what follows it."""
        parent = self._tree.shape.parents[node]
        if parent < 0:
            return False
        token = self._tree.token_ids[node]
        return self._is_dead(parent) or bool(self._finite(parent)[token] == -torch.inf)


class _Copied(SampledRows):
    """Rows of a text, on another device."""

    def __init__(self, rows: TextRows, logits: Float[Tensor, "N V"]) -> None:
        super().__init__(logits, rows.sampling, rows.model)
        self._there = rows

    def _finite(self, node: int) -> Float[Tensor, "V"]:
        return self._there._finite(node).to(self.logits.device)


def finite_for_forbidden(logits: Float[Tensor, "*rows V"]) -> Float[Tensor, "*rows V"]:
    """The logits with a finite number in place of -inf, in place.

    Its probability is 0 as well, and everything that reads logits of models expects finite ones.
    """
    return logits.clamp_min_(FORBIDDEN)


def path_to(parents: Sequence[int], tokens: Sequence[int], node: int) -> list[int]:
    """The tokens from node 0 down to a node."""
    path = []
    while node >= 0:
        path.append(tokens[node])
        node = parents[node]
    return path[::-1]
