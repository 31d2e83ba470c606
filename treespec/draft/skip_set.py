"""Which sublayers to leave out: searched on text that is not measured, kept in a file."""

import os
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from treespec.distributions import Sampling
from treespec.door import integer, sequence
from treespec.draft.layers import LayeredModel
from treespec.draft.vocabulary import plain_tokens
from treespec.errors import InvalidArgument, Unreadable
from treespec.models.sublayers import Sublayer, require_sublayers, sublayers_of
from treespec.protocols import TreeModel
from treespec.reading import read_bytes
from treespec.reading_models import Strict, only, read_model
from treespec.whole_file import write_whole

__all__ = ["SkipSet", "SkipSets", "random_skip_sets"]

LARGEST_FILE = 2**20
"""Bytes of a file."""

MOST_EVALUATIONS = 1000
"""Sets that a search tries at most, as many as in Draft & Verify."""


class SkipSet(Strict):
    """A set of sublayers, and what was found of it."""

    format: Annotated[
        Literal["treespec skip set"], only("treespec skip set", "must be 'treespec skip set'")
    ] = "treespec skip set"
    """What the file is."""
    version: Annotated[Literal[1], only(1, "is another version than 1, which is read here")] = 1
    """Of the format."""
    layers: Annotated[int, Field(strict=True, ge=1, le=10**6)]
    """Of the model that it was searched for."""
    target: Annotated[str, Field(max_length=1000)] = ""
    """That model's fingerprint; empty if it is not known: configs refuse the file then."""
    skip: tuple[str, ...]
    """The sublayers, such as `attention.3`."""
    acceptance: Annotated[float, Field(ge=0, le=1)]
    """Mean over positions of the sum of min(target, draft), on the texts of the search."""
    tokens: Annotated[int, Field(strict=True, ge=1)]
    """Positions of these texts."""
    tried: Annotated[int, Field(strict=True, ge=1)]
    """Sets that the search compared."""

    def require_of(self, layers: int, target: str = "") -> None:
        """Refuse a set that was searched for another model.

        Args:
            layers: of the model that is to draft.
            target: its fingerprint; empty to look at the layers alone.

        Raises:
            InvalidArgument: saying what differs, or that the set does not say which model it is of.
        """
        if self.layers != layers:
            raise InvalidArgument(
                f"searched for a model of {self.layers} layers, but the target has {layers}: search anew"
            )
        if target and not self.target:
            raise InvalidArgument(
                f"does not say which model it was searched for, and the target is {target}: search anew, "
                "or name its sublayers by skip"
            )
        if target and self.target != target:
            raise InvalidArgument(
                f"searched for another model ({self.target}), but the target is {target}: search anew, or "
                "name its sublayers by skip"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON.

        Raises:
            OSError: if it cannot be written.
        """
        write_whole(Path(path), self.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "SkipSet":
        """What `save` wrote.

        Raises:
            Unreadable: beginning with the path: if there is no such file, it is damaged or newer, or names
                a sublayer that its model does not have.
        """
        content = read_bytes(path, LARGEST_FILE)
        try:
            skip_set = read_model(cls, content)
            require_sublayers("skip", skip_set.skip, skip_set.layers)
        except (Unreadable, InvalidArgument) as error:
            raise Unreadable(f"{os.fspath(path)}: {error}") from None
        return skip_set


class SkipSets:
    """Judges skip sets by the acceptance rate of their draft on texts, and searches a good one.

    The acceptance rate at a position is the sum over tokens of min(target, draft): the probability that a
    token drawn from the draft is accepted. All positions of a text count, each after the text's own tokens,
    so a set costs one pass over the texts and no drafting.

    Args:
        target: whose sublayers are left out.
        texts: token ids of each; not those that are measured later.
        sampling: of target and draft; at temperature 0 the rate is the share of equal best tokens.

    Raises:
        InvalidArgument: if there is no text, or one is no row of token ids.
    """

    def __init__(
        self,
        target: LayeredModel,
        texts: Iterable[Sequence[int]],
        sampling: Sampling | None = None,
    ) -> None:
        self.target, self.sampling = target, sampling or Sampling()
        given = sequence("texts", texts, "texts")
        rows = [plain_tokens(f"texts[{i}]", t, target.vocab_size) for i, t in enumerate(given)]
        self._texts = [torch.tensor(row) for row in rows if row]
        if not self._texts:
            raise InvalidArgument("texts has no token: a skip set is judged on a text at least")
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
        """A set of so many sublayers with a high acceptance rate.

        Sublayers are added one by one, each the one that costs least; then one of the set is exchanged for
        one outside it, the best exchange first, until none helps. (Draft & Verify searches the same sets by
        Bayesian optimisation, and by the time of a token instead of the acceptance rate.)

        Args:
            size: sublayers to leave out; at least 1, and not all.
            most: sets that are tried at most.
            say: told after each step how many were tried, and the best rate of a set of the size so far.

        Raises:
            InvalidArgument: if the model has not so many sublayers, or `most` is too few for one set.
        """
        every = sublayers_of(self.target.layer_count)
        size = integer("size", size, least=1, most=len(every) - 1)
        needed = sum(len(every) - i for i in range(size))
        most = integer("most", most, least=needed)
        before, skip = len(self._known), frozenset[Sublayer]()
        for _ in range(size):
            skip = self._best(skip | {one} for one in every if one not in skip)
            say(len(self._known) - before, self.acceptance(skip))
        while len(self._known) - before + size * (len(every) - size) <= most:
            better = self._best(
                (skip - {out}) | {into}
                for out in sorted(skip)
                for into in every
                if into not in skip
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
        """The set of the highest rate; of equal ones the first."""
        return max(sets, key=self.acceptance)

    def _probs(self, model: TreeModel, text: Tensor) -> Float[Tensor, "T V"]:
        """The model's distributions after each token of a text."""
        model.prefill(text[:0])
        device = getattr(model, "device", None)
        logits = model.run(text.to(device), tuple(range(-1, len(text) - 1)))
        return self.sampling(logits.float())


def random_skip_sets(
    layers: int, size: int, count: int, seed: int = 0
) -> list[frozenset[Sublayer]]:
    """Sets of so many sublayers, drawn uniformly, each once; to hold a searched one against.

    Args:
        layers: of the model.
        size: sublayers in each.
        count: sets; fewer if there are not so many.
        seed: names them.
    """
    from math import comb

    every, rng = sublayers_of(layers), random.Random(seed)
    sets: dict[frozenset[Sublayer], None] = {}
    while len(sets) < min(count, comb(len(every), size)):
        sets[frozenset(rng.sample(every, size))] = None
    return list(sets)
