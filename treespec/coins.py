"""Randomness for real decoding: one stream of uniforms, used by drafting and acceptance alike."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.children import chosen_children, next_child, require_children
from treespec.door import instance, integer, shown
from treespec.errors import InvalidArgument, NotADistribution
from treespec.tree import Law

__all__ = ["TorchCoins", "inverse_cdf", "on_device"]

_BLOCK = 256

_Draw = Callable[[Tensor, Tensor], Tensor]
"""From rows of probabilities and uniforms to tokens."""


class TorchCoins:
    """Coins from a torch generator.

    Uniforms are drawn in float64 on the CPU, in blocks, and handed out one by one: a decision depends on
    the seed and on the order of calls, never on the device of the model.

    Args:
        seed: a seed, or a CPU generator to draw from.
    """

    def __init__(self, seed: int | torch.Generator) -> None:
        if isinstance(seed, torch.Generator):
            self._generator = seed
        else:
            self._generator = torch.Generator().manual_seed(integer("seed", seed))
        self._block: list[float] = []

    def uniform(self) -> float:
        """The next number of the stream, in [0, 1)."""
        if not self._block:
            self._refill()
        return self._block.pop()

    def uniforms(self, count: int) -> list[float]:
        """The next numbers of the stream."""
        return [self.uniform() for _ in range(count)]

    def peek(self, count: int) -> list[float]:
        """The next numbers of the stream, which stay in it: for a kernel that decides with several.

        `skip` then takes out those that it used.
        """
        count = integer("count", count, least=0)
        while len(self._block) < count:
            self._refill()
        return self._block[: -count - 1 : -1]

    def skip(self, count: int) -> None:
        """Take the next numbers out of the stream."""
        self.peek(count)
        del self._block[len(self._block) - count :]

    def _refill(self) -> None:
        block = torch.rand(_BLOCK, generator=self._generator, dtype=torch.float64)
        self._block = block.tolist()[::-1] + self._block

    def accept(self, probability: float | Float[Tensor, ""]) -> bool:
        """True with this probability.

        Raises:
            InvalidArgument: if it is not a number, and NotADistribution if it is NaN.
        """
        chance = _chance(probability)
        return self.uniform() < chance

    def draw(self, probabilities: Float[Tensor, "V"]) -> int:
        """A token id, by inverse CDF.

        Raises:
            InvalidArgument: if the probabilities are no row.
            NotADistribution: if they have no finite, positive mass, or one is negative.
        """
        _require_rows(probabilities, 1, "[V]")
        uniform = torch.tensor([self.uniform()], dtype=torch.float64, device=probabilities.device)
        return int(inverse_cdf(probabilities, uniform))

    def draw_many(
        self, probabilities: Float[Tensor, "R V"], k: int, law: Law
    ) -> Int[Tensor, "R k"]:
        """k children for each row, in draw order; the uniforms are taken row by row.

        Raises:
            InvalidArgument: if the probabilities are no rows.
            InvalidTree: if the law cannot give so many children.
            NotADistribution: see `draw`.
        """
        law = Law.of(law)
        _require_rows(probabilities, 2, "[R, V]")
        return self._drawn(probabilities, k, law, inverse_cdf)

    def draw_unseen(
        self, probabilities: Float[Tensor, "R V"], k: int, law: Law
    ) -> Int[Tensor, "R k"]:
        """As `draw_many`, from rows that are known to be distributions: nothing waits for their device.

        Of rows that are none, some tokens of the vocabulary come back.

        Args:
            probabilities: as `Sampling` makes them of logits; whether those are finite can be seen later.
            k: children of each row.
            law: of the children.

        Raises:
            InvalidTree: if the law cannot give so many children.
        """
        return self._drawn(probabilities, k, law, _first_beyond)

    def _drawn(self, probabilities: Tensor, k: int, law: Law, first_draw: _Draw) -> Tensor:
        """Children by a law; the first that is drawn is found by this function."""
        k = require_children(k, probabilities.shape[-1], law, least=1)
        drawn = chosen_children(probabilities, k, law)
        rows, first = probabilities.shape[0], drawn.shape[1]
        if k == first:
            return drawn
        numbers = self.uniforms(rows * (k - first))
        uniforms = on_device(numbers, torch.float64, probabilities.device).view(rows, k - first)
        if law is Law.IID:  # the same cumulative sums for all
            return first_draw(probabilities, uniforms)
        for i in range(k - first):
            row = next_child(probabilities, drawn, law)
            # What `next_child` makes of distributions is one: only the first rows need a look.
            draw = _first_beyond if i else first_draw
            next_one = draw(row, uniforms[:, i : i + 1])
            drawn = torch.cat([drawn, next_one], dim=1) if drawn.shape[1] else next_one
        return drawn


def inverse_cdf(
    probabilities: Float[Tensor, "*rows V"], uniforms: Float[Tensor, "*rows k"]
) -> Int[Tensor, "*rows k"]:
    """The tokens at which the cumulative mass first exceeds the uniforms, in the order of ids.

    Tokens of probability 0 are never returned. Rows need not be normalised. Cumulated in float64.

    Raises:
        NotADistribution: if a row has no finite, positive mass, or a negative number.
    """
    _require_rows(probabilities, None, "[..., V]")
    instance("uniforms", uniforms, Tensor, "a tensor of numbers in [0, 1)")
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    total = cumulative[..., -1:]
    points = uniforms * total
    if total.numel() and _require_mass(probabilities, total) < torch.finfo(torch.float64).tiny:
        # Only there u * total can round up to total, past which only tokens without mass lie.
        points = torch.minimum(points, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, points, right=True)


def _first_beyond(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """`inverse_cdf` of distributions, not looked at; of NaN some token."""
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    index = torch.searchsorted(cumulative, uniforms * cumulative[..., -1:], right=True)
    return index.clamp_max(probabilities.shape[-1] - 1)


def on_device(numbers: Sequence[int | float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers as a tensor; a device is not waited for."""
    there = torch.tensor(numbers, dtype=dtype)
    if device.type == "cpu":
        return there
    return (there.pin_memory() if device.type == "cuda" else there).to(device, non_blocking=True)


def _require_mass(
    probabilities: Float[Tensor, "*rows V"], total: Float[Tensor, "*rows 1"]
) -> float:
    """Refuse rows by their mass and the least of all numbers; the mass of the lightest."""
    least = probabilities.amin()
    if total.is_cpu:
        masses, least = total.flatten().tolist(), least.item()
    else:  # waits for the device once
        *masses, least = torch.cat([total.flatten(), least.double()[None]]).tolist()
    if not all(0 < mass < math.inf for mass in masses):
        raise NotADistribution(
            "probabilities without finite, positive mass (NaN, infinite or all zero): "
            "check the logits that they come from"
        )
    # What rules make by differences may round to just below 0.
    if least < -4 * torch.finfo(probabilities.dtype).eps * max(masses):
        raise NotADistribution(
            f"negative probabilities, the least is {least:g}: no token is drawn from them"
        )
    return min(masses)


def _chance(probability: Any) -> float:
    """The probability as a float."""
    try:
        chance = math.nan if isinstance(probability, str | bytes) else float(probability)
    except (TypeError, ValueError, RuntimeError):  # the last: a tensor of several numbers
        raise InvalidArgument(f"probability = {shown(probability)} is not a number") from None
    if chance != chance:
        raise NotADistribution(f"probability = {shown(probability)}: no coin lands by that")
    return chance


def _require_rows(probabilities: Any, ndim: int | None, shape: str) -> None:
    """Refuse what is no tensor of probabilities of this shape."""
    fine = isinstance(probabilities, Tensor) and probabilities.is_floating_point()
    fine = fine and probabilities.ndim == (probabilities.ndim if ndim is None else ndim) > 0
    if not fine or not probabilities.shape[-1]:
        raise InvalidArgument(
            f"probabilities = {shown(probabilities)}, but must be a tensor {shape} of floating numbers, "
            "V at least 1"
        )
