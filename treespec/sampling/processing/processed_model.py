"""A model whose logits are processed along the path to each node, for drafting and recording."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.protocols import TreeModel
from treespec.sampling.distributions import Sampling, wide
from treespec.sampling.processing.rows import FORBIDDEN, finite_for_forbidden, path_to
from treespec.sampling.processors import Processors
from treespec.step import Scores

if TYPE_CHECKING:
    from treespec.sampling.processing.text import ProcessedText


def processed(model: TreeModel, sampling: Sampling, name: str = "draft") -> TreeModel:
    """The model itself, or under processors a `ProcessedModel` that runs it."""
    processors = getattr(sampling, "processors", None)
    return model if processors is None else ProcessedModel(model, processors, name)


class ProcessedModel:
    """Runs a model, and processes the logits of every node that it runs.

    A forbidden token gets a finite logit whose probability is 0.

    Args:
        model: the model with its cache; it is used, not copied.
        processors: the settings.
        name: the model's name in messages.
    """

    def __init__(self, model: TreeModel, processors: Processors, name: str) -> None:
        self.inner, self._processors, self._name = model, processors, name
        self._text: ProcessedText | None = None
        self._tokens: list[int] = []
        self._rows: list[Tensor] = []

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def fresh(self) -> "ProcessedModel":
        """A model with the same weights and processors, and its own empty cache."""
        return ProcessedModel(self.inner.fresh(), self._processors, self._name)

    def prefill(self, tokens: Int[Tensor, "T"]) -> Float[Tensor, "T F H"] | None:
        """Clear the cache and commit these tokens: a prompt without its last token."""
        features = self.inner.prefill(tokens)
        self.start(tokens)
        return features

    def start(self, tokens: Int[Tensor, "T"]) -> None:
        """Begin a text whose prompt is these tokens and one more; another runs the model on them."""
        from treespec.sampling.processing.text import ProcessedText  # loads transformers

        self._text = ProcessedText(self._processors, len(tokens) + 1, tokens.device, self._name)
        self._text.extend(tokens.tolist())
        self._tokens = []

    def run(self, tokens: Int[Tensor, "T"], parents: tuple[int, ...], first: int = 0) -> Scores:
        """Processed logits after nodes first .. first + T - 1; see `TreeModel.run`."""
        assert self._text is not None, "prefill comes first"
        scores = self.inner.run(tokens, parents, first)
        self._tokens, self._rows = [*self._tokens[:first], *tokens.tolist()], self._rows[:first]
        for node, row in enumerate(scores.logits, first):
            parent = parents[node]
            path = path_to(parents, self._tokens, node)
            # A forbidden token may be drafted where too few are allowed; what follows it is never asked.
            dead = parent >= 0 and bool(self._rows[parent][path[-1]] <= FORBIDDEN)
            made = wide(row).clone().fill_(FORBIDDEN) if dead else self._text.row(row, path, node)
            self._rows.append(finite_for_forbidden(made))
        return Scores(torch.stack(self._rows[first:]), scores.features)

    def keep(self, nodes: Sequence[int]) -> None:
        """Commit the rows of these nodes; see `TreeModel.keep`."""
        self.inner.keep(nodes)
        self.follow([self._tokens[node] for node in nodes])

    def follow(self, tokens: Sequence[int]) -> None:
        """Move on by committed tokens, and forget all nodes."""
        assert self._text is not None, "prefill comes first"
        self._text.extend(tokens)
        self._tokens = []
