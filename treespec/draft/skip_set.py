"""Skip sets, the sublayers that a draft leaves out: searched on separate texts, stored in a file."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from treespec.checks import integer, plain_tokens, sequence
from treespec.draft.layers import LayeredModel
from treespec.errors import InvalidArgument, Unreadable
from treespec.files import read_bytes, write_whole
from treespec.models.variants.sublayers import Sublayer, require_sublayers, sublayers_of
from treespec.protocols import TreeModel
from treespec.reading_models import FirstVersion, Strict, read_model
from treespec.sampling.distributions import Sampling
from treespec.sampling.processing.processed_model import processed

MOST_EVALUATIONS = 1000
"""Maximum number of sets that a search tries, as in Draft & Verify."""


class SkipSet(Strict):
    """A set of sublayers to leave out, and the result of its search."""

    format: Literal["treespec skip set"] = "treespec skip set"
    """Type of the file."""
    version: FirstVersion = 1
    """Version of the format."""
    layers: Annotated[int, Field(strict=True, ge=1, le=10**6)]
    """Number of layers of the model that the set was searched for."""
    target: Annotated[str, Field(max_length=1000)] = ""
    """Fingerprint of this model; empty if unknown, but then configs refuse the file."""
    skip: tuple[str, ...]
    """Names of the sublayers, such as `attention.3`."""
    acceptance: Annotated[float, Field(ge=0, le=1)]
    """Mean over positions of the sum of min(target, draft), on the texts of the search."""
    tokens: Annotated[int, Field(strict=True, ge=1)]
    """Number of positions of these texts."""
    tried: Annotated[int, Field(strict=True, ge=1)]
    """Number of sets that the search compared."""

    def require_of(self, layers: int, target: str = "") -> None:
        """Refuse a set that was searched for another model.

        Args:
            layers: number of layers of the target.
            target: its fingerprint; empty to check only the number of layers.

        Raises:
            InvalidArgument: saying what differs, or that the set does not state its model.
        """
        if self.layers != layers:
            raise InvalidArgument(
                f"searched for a model of {self.layers} layers, but the target has {layers}: search again"
            )
        if target and not self.target:
            raise InvalidArgument(
                f"does not say which model it was searched for, and the target is {target}: search again, "
                "or name its sublayers with skip"
            )
        if target and self.target != target:
            raise InvalidArgument(
                f"searched for another model ({self.target}), but the target is {target}: search again, or "
                "name its sublayers with skip"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the set as JSON.

        Raises:
            OSError: if the file cannot be written.
        """
        write_whole(Path(path), self.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "SkipSet":
        """Read a set written by `save`.

        Raises:
            Unreadable: if there is no such file, it is damaged or of another version, or it names a
                sublayer that its model does not have. The message begins with the path.
        """
        content = read_bytes(path)
        try:
            skip_set = read_model(cls, content)
            require_sublayers("skip", skip_set.skip, skip_set.layers)
        except (Unreadable, InvalidArgument) as error:
            raise Unreadable(f"{os.fspath(path)}: {error}") from None
        return skip_set


def fewest_sets(size: int, layers: int) -> int:
    """The sets that a search has to try to complete one of `size` sublayers."""
    return sum(2 * layers - i for i in range(size))


class SkipSets:
    """Judges skip sets by the acceptance rate of their draft on texts, and searches for a good one.

    The acceptance rate at a position is the sum over tokens of min(target, draft): the probability that a
    token drawn from the draft is accepted. All positions of a text count, each after the text's own tokens,
    so a set costs one pass over the texts and no drafting.

    Args:
        target: the model whose sublayers are left out.
        texts: token ids of each text; use other texts than those measured later.
        sampling: settings of target and draft; at temperature 0 the rate is the share of positions at
            which both have the same best token.

    Raises:
        InvalidArgument: if there is no text, or a text is not a row of token ids.
    """

    def __init__(
        self,
        target: LayeredModel,
        texts: Iterable[Sequence[int]],
        sampling: Sampling | None = None,
    ) -> None:
        self.target, self.sampling = target, sampling or Sampling()
        rows = [
            plain_tokens(f"texts[{i}]", text, target.vocab_size)
            for i, text in enumerate(sequence("texts", texts, "texts"))
        ]
        self._texts = [torch.tensor(row) for row in rows if row]
        if not self._texts:
            raise InvalidArgument("texts has no token: judging a skip set needs at least one text")
        self.tokens = sum(map(len, self._texts))
        self._target_probs = [self._probs(target.fresh(), text) for text in self._texts]
        self._known: dict[frozenset[Sublayer], float] = {}

    def acceptance(self, skip: Iterable[str | Sublayer]) -> float:
        """The mean acceptance rate of the draft without these sublayers, in 0..1.

        Raises:
            InvalidArgument, UnsupportedModel: if they cannot be left out.
        """
        wanted = require_sublayers("skip", skip, self.target.layer_count)
        if wanted not in self._known:
            draft, total = self.target.without(wanted).fresh(), 0.0
            for text, target_probs in zip(self._texts, self._target_probs, strict=True):
                total += float(torch.minimum(target_probs, self._probs(draft, text)).sum())
            self._known[wanted] = total / self.tokens
        return self._known[wanted]

    def search(
        self,
        size: int,
        most: int = MOST_EVALUATIONS,
        say: Callable[[int, float], None] = lambda tried, acceptance: None,
    ) -> SkipSet:
        """Search for a set of `size` sublayers with a high acceptance rate.

        Sublayers are added one by one, each time the one that keeps the rate highest. Then a sublayer of
        the set is exchanged for one outside it, the best exchange first, until none helps. (Draft & Verify
        searches the same sets by Bayesian optimisation, and by the time per token instead of the acceptance
        rate.)

        Args:
            size: number of sublayers to leave out; at least 1, and not all.
            most: maximum number of sets to try.
            say: called after each step with the number of sets tried and the acceptance rate of the
                current set.

        Raises:
            InvalidArgument: if the model does not have more sublayers than `size`, or `most` is too small
                to complete a set.
        """
        sublayers = sublayers_of(self.target.layer_count)
        size = integer("size", size, least=1, most=len(sublayers) - 1)
        most = integer("most", most, least=fewest_sets(size, self.target.layer_count))
        before, skip = len(self._known), frozenset[Sublayer]()
        for _ in range(size):
            skip = self._best(skip | {sublayer} for sublayer in sublayers if sublayer not in skip)
            say(len(self._known) - before, self.acceptance(skip))
        while len(self._known) - before + size * (len(sublayers) - size) <= most:
            better = self._best(
                (skip - {removed}) | {added}
                for removed in sorted(skip)
                for added in sublayers
                if added not in skip
            )
            if self.acceptance(better) <= self.acceptance(skip):
                break
            skip = better
            say(len(self._known) - before, self.acceptance(skip))
        return SkipSet(
            layers=self.target.layer_count,
            target=getattr(self.target, "fingerprint", ""),
            skip=tuple(map(str, sorted(skip))),
            acceptance=self.acceptance(skip),
            tokens=self.tokens,
            tried=len(self._known) - before,
        )

    def _best(self, sets: Iterable[frozenset[Sublayer]]) -> frozenset[Sublayer]:
        """The set with the highest acceptance rate; the first one in case of ties."""
        return max(sets, key=self.acceptance)

    def _probs(self, model: TreeModel, text: Tensor) -> Float[Tensor, "T V"]:
        """The model's distributions after each token of a text, its first token for a prompt."""
        model = processed(model, self.sampling, "target")
        model.prefill(text[:0])
        device = getattr(model, "device", None)
        logits = model.run(text.to(device), tuple(range(-1, len(text) - 1))).logits
        return self.sampling.without_processors(logits.float())
