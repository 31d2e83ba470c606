"""Randomness for real decoding: one stream of uniforms, shared by drafting and acceptance."""

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.checks import integer, shown
from treespec.errors import InvalidArgument, NotADistribution
from treespec.sampling.children import chosen_children, next_child, require_children
from treespec.tree import Law

_BLOCK = 256

_Draw = Callable[[Tensor, Tensor], Tensor]
"""Maps rows of probabilities and uniforms to tokens."""


class TorchCoins:
    """Coins that draw from a torch generator.

    Uniforms are drawn in float64 on the CPU, in blocks, and handed out one by one: a decision depends on
    the seed and on the order of calls, never on the model's device.

    Args:
        seed: a seed, or a CPU generator to draw from.
    """

    def __init__(self, seed: int | torch.Generator) -> None:
        if isinstance(seed, torch.Generator):
            self._generator = seed
        else:
            self._generator = torch.Generator().manual_seed(
                integer("seed", seed, -(2**63), most=2**64 - 1)
            )
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
        """The next numbers of the stream without removing them, for a kernel that may use several.

        Call `skip` afterwards to remove those that it used.
        """
        while len(self._block) < count:
            self._refill()
        return self._block[: -count - 1 : -1]

    def skip(self, count: int) -> None:
        """Remove the next numbers from the stream."""
        self.peek(count)
        del self._block[len(self._block) - count :]

    def fork(self, name: str) -> "TorchCoins":
        """Coins with a stream of their own, determined by the seed and this name.

        Equal names give equal numbers, however many numbers were taken before, so coins that are forked by
        positions of a text serve one text only. The stream of these coins is not affected.
        """
        text = f"{self._generator.initial_seed()} {name}"
        digest = hashlib.sha256(text.encode()).digest()
        return TorchCoins(int.from_bytes(digest[:8], "big") >> 1)  # seeds of torch are below 2**63

    def _refill(self) -> None:
        block = torch.rand(_BLOCK, generator=self._generator, dtype=torch.float64)
        self._block = block.tolist()[::-1] + self._block

    def accept(self, probability: float | Float[Tensor, ""]) -> bool:
        """Return True with this probability.

        Raises:
            NotADistribution: if the probability is NaN.
        """
        chance = _chance(probability)
        return self.uniform() < chance

    def draw(self, probabilities: Float[Tensor, "V"]) -> int:
        """Draw a token id by inverse CDF.

        Raises:
            InvalidArgument: if the probabilities are not a row.
            NotADistribution: if their sum is not finite and positive, or one is negative.
        """
        _require_rows(probabilities, 1, "[V]")
        uniform = torch.tensor([self.uniform()], dtype=torch.float64, device=probabilities.device)
        return int(inverse_cdf(probabilities, uniform))

    def draw_many(
        self, probabilities: Float[Tensor, "R V"], k: int, law: Law
    ) -> Int[Tensor, "R k"]:
        """Draw k children for each row, in draw order; the uniforms are taken row by row.

        Raises:
            InvalidArgument: if the probabilities are not rows.
            InvalidTree: if the law cannot give k children.
            NotADistribution: see `draw`.
        """
        law = Law.of(law)
        _require_rows(probabilities, 2, "[R, V]")
        return self._drawn(probabilities, k, law, inverse_cdf)

    def draw_unseen(
        self, probabilities: Float[Tensor, "R V"], k: int, law: Law
    ) -> Int[Tensor, "R k"]:
        """As `draw_many`, but without checking the rows, so that nothing waits for their device.

        For rows that are not distributions, the result is some tokens of the vocabulary; only negative
        numbers on the CPU are refused.

        Args:
            probabilities: rows that `Sampling` computed from logits; the caller may check the logits later.
            k: number of children for each row.
            law: the law of the children.

        Raises:
            InvalidTree: if the law cannot give k children.
            NotADistribution: if a row on the CPU holds a negative number.
        """
        if probabilities.is_cpu and probabilities.numel() and float(probabilities.amin()) < 0:
            raise NotADistribution(
                f"negative probabilities, the least is {float(probabilities.amin()):g}"
            )
        return self._drawn(probabilities, k, law, _unchecked_inverse_cdf)

    def _drawn(self, probabilities: Tensor, k: int, law: Law, first_draw: _Draw) -> Tensor:
        """k children of each row by a law; `first_draw` draws the first child that is not chosen."""

        def take(count: int) -> Tensor:
            return on_device(self.uniforms(count), torch.float64, probabilities.device)

        return _children(probabilities, k, law, take, first_draw)


class GivenUniforms:
    """Uniforms that lie in a device's memory already, taken in their order: for drafting without the host.

    They give the tokens that `TorchCoins.draw_unseen` gives for equal numbers.

    Args:
        uniforms: in [0, 1), in float64, on the device of the rows.
    """

    def __init__(self, uniforms: Float[Tensor, " U"]) -> None:
        self._uniforms, self._taken = uniforms, 0

    def draw_unseen(
        self, probabilities: Float[Tensor, "R V"], k: int, law: Law
    ) -> Int[Tensor, "R k"]:
        """See `TorchCoins.draw_unseen`; no row is checked."""
        return _children(probabilities, k, law, self._take, _unchecked_inverse_cdf)

    def _take(self, count: int) -> Tensor:
        self._taken += count
        return self._uniforms[self._taken - count : self._taken]


def _children(
    probabilities: Tensor, k: int, law: Law, take: Callable[[int], Tensor], first_draw: _Draw
) -> Tensor:
    """k children of each row by a law.

    `take`: gives the next uniforms. `first_draw`: draws the first child that is not chosen.
    """
    k = require_children(k, probabilities.shape[-1], law, least=1)
    children = chosen_children(probabilities, k, law)
    rows, chosen = probabilities.shape[0], children.shape[1]
    if k == chosen:
        return children
    uniforms = take(rows * (k - chosen)).view(rows, k - chosen)
    if law is Law.IID:  # all children share the cumulative sums
        return first_draw(probabilities, uniforms)
    for i in range(k - chosen):
        row = next_child(probabilities, children, law)
        # `next_child` maps distributions to distributions: only the first rows need a check.
        draw = _unchecked_inverse_cdf if i else first_draw
        child = draw(row, uniforms[:, i : i + 1])
        children = torch.cat([children, child], dim=1) if children.shape[1] else child
    return children


def uniforms_needed(children: Sequence[int], law: Law) -> int:
    """Number of uniforms that a law takes for nodes with so many children each.

    Example:
        >>> uniforms_needed([3, 1], Law.IID), uniforms_needed([3, 1], Law.TOP_THEN_SAMPLE)
        (4, 2)
    """
    if law is Law.DETERMINISTIC:
        return 0
    return len(children) if law is Law.TOP_THEN_SAMPLE else sum(children)


def inverse_cdf(
    probabilities: Float[Tensor, "*rows V"], uniforms: Float[Tensor, "*rows k"]
) -> Int[Tensor, "*rows k"]:
    """The tokens at which the cumulative mass first exceeds the uniforms, in the order of ids.

    Tokens of probability 0 are never returned. Rows need not be normalised. Sums are taken in float64.
    """
    _require_rows(probabilities, None, "[..., V]")
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    total = cumulative[..., -1:]
    points = uniforms * total
    if total.numel() and _require_mass(probabilities, total) < torch.finfo(torch.float64).tiny:
        # Only then can u * total round up to total, beyond which no token has mass.
        points = torch.minimum(points, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, points, right=True)


def _unchecked_inverse_cdf(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """`inverse_cdf` without checks; rows that hold NaN give some token of the vocabulary."""
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    index = torch.searchsorted(cumulative, uniforms * cumulative[..., -1:], right=True)
    return index.clamp_max(probabilities.shape[-1] - 1)


def on_device(numbers: Sequence[int | float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers as a tensor on a device, without waiting for the device."""
    on_cpu = torch.tensor(numbers, dtype=dtype)
    if device.type == "cpu":
        return on_cpu
    return (on_cpu.pin_memory() if device.type == "cuda" else on_cpu).to(device, non_blocking=True)


def _require_mass(
    probabilities: Float[Tensor, "*rows V"], total: Float[Tensor, "*rows 1"]
) -> float:
    """Check the sums of the rows and the smallest probability; return the smallest sum."""
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
    # Differences that acceptance rules compute may round to just below 0.
    if least < -4 * torch.finfo(probabilities.dtype).eps * max(masses):
        raise NotADistribution(
            f"negative probabilities, the least is {least:g}: no token is drawn from them"
        )
    return min(masses)


def _chance(probability: float | Float[Tensor, ""]) -> float:
    """The probability as a float."""
    chance = float(probability)
    if chance != chance:
        raise NotADistribution(
            "the probability of a coin is NaN: check the logits that it comes from"
        )
    return chance


def _require_rows(probabilities: Any, ndim: int | None, shape: str) -> None:
    """Refuse anything but a floating-point tensor with `ndim` dimensions and a non-empty last one."""
    is_valid = isinstance(probabilities, Tensor) and probabilities.is_floating_point()
    is_valid = is_valid and probabilities.ndim == (probabilities.ndim if ndim is None else ndim) > 0
    if not is_valid or not probabilities.shape[-1]:
        raise InvalidArgument(
            f"probabilities = {shown(probabilities)}, but must be a floating-point tensor {shape} with V "
            "at least 1"
        )
