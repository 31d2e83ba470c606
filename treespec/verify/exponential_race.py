"""Drawing without replacement as a race of exponential clocks, for all prefixes of an ordering at once."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

TOLERANCE = 1e-13
"""Bound on each of three errors: the trapezoid rule, and its truncation on the left and on the right."""
BLOCK = 1024
LARGEST_EXPONENT = 500.0
"""Within a block, numbers grow up to exp of this; float64 overflows at exp(709)."""


def draws_in_prefix(draft_probs: Float[Tensor, "V"], k: int) -> Float[Tensor, "V"]:
    """For each n, the probability that k tokens drawn without replacement are all among the first n.

    Drawing without replacement is a race (Plackett-Luce): the clock of token i rings at an exponential
    time of rate q(i), and tokens are drawn in the order of their rings. Let H be the first n tokens,
    lambda = 1 - q(H), and T the time of the k-th ring in H. The result is the probability that no clock
    outside H rings before T, the integral over t of lambda exp(-lambda t) P(T <= t). P(T > t) is the
    probability that fewer than k of the independent events of probability 1 - exp(-q(i) t) happen; a
    recurrence over tokens computes it for all prefixes in one sweep.

    The integral is computed by the trapezoid rule in log t, whose error is bounded: at an angle a < pi / 2
    in the complex plane |1 - exp(-z)| <= (1 - exp(-Re z)) / cos a, so the integral of the integrand there
    is at most cos(a)^-k, and with step h the error is at most 2 cos(a)^-k / (exp(2 pi a / h) - 1) for
    every a. h makes this bound 1e-13 at the best a. All terms are positive, so rounding adds at most about
    1e-16 for each token.

    `draft_probs`: positive, in float64, in the order that defines the prefixes. `k`: number of draws, 2 to
    V. (For one draw the result is the cumulative sum.) Returns the probabilities for n = 1 ... V: 0 for n <
    k, 1 for n = V.
    """
    size = len(draft_probs)
    draft_probs = draft_probs / draft_probs.sum()
    # Sum from the end: 1 - cumulative sum would lose the small masses of the last tokens.
    after = draft_probs.flip(0).cumsum(0).flip(0)
    outside = torch.cat([after[1:], after.new_zeros(1)])
    step = _step(k)
    first = min(1.0, math.exp((math.log(TOLERANCE) + math.lgamma(k + 1)) / k))
    # After `last`, a clock outside the prefix or k clocks inside have rung, up to the tolerance.
    slowest = max(float(draft_probs[-1]), float(draft_probs[:k].min()))
    last = max((math.log(k / TOLERANCE)) / max(slowest, 1e-300), first)
    times = torch.arange(math.ceil(math.log(last / first) / step) + 1, dtype=torch.float64)
    times = first * (step * times).exp()

    # late[n]: for the prefix of n + 1 tokens, the integral over t > first of exp(-lambda t) P(T > t).
    late = torch.zeros(size, dtype=torch.float64)
    # rings[j, t]: the probability that exactly j < k clocks of the prefix have rung by time t.
    rings = torch.zeros(k, len(times), dtype=torch.float64)
    rings[0] = 1
    start = 0
    while start < size and len(times):
        ahead = draft_probs[start : start + BLOCK]
        fits = int((ahead.cumsum(0) * times[-1] <= LARGEST_EXPONENT).sum())
        tokens = slice(start, start + max(fits, 1))
        weights = step * times
        if fits:
            weights = weights * torch.exp(-after[start] * times)
            rings, totals = _block(rings, draft_probs[tokens], times)
        else:
            weights = weights * torch.exp(-outside[start] * times)
            rings = _token(rings, draft_probs[start], times)
            totals = rings.sum(0)[:, None]
        late[tokens] = weights @ totals
        # P(T > t) falls with t and with every token: drop the late times at which it has vanished.
        alive = int((rings.sum(0) > 1e-18).sum())
        rings, times = rings[:, :alive], times[:alive]
        start = tokens.stop
    inside = 1 - outside * late - _early(outside * first, step)
    inside[: k - 1] = 0
    inside[-1] = 1
    return inside.clamp(0, 1)


def _block(
    rings: Float[Tensor, "k T"], draft_probs: Float[Tensor, "B"], times: Float[Tensor, "T"]
) -> tuple[Float[Tensor, "k T"], Float[Tensor, "T B"]]:
    """The rings after a block of tokens, and P(fewer than k) x exp(q t) after each of its tokens.

    q is the mass of the block up to the token. Multiplied by exp(q t), the recurrence has no decay and
    becomes a cumulative sum.
    """
    odds = torch.expm1(times[:, None] * draft_probs)
    before = rings[0][:, None].expand(odds.shape)
    totals = before.clone()
    ends = [before[:, -1]]
    grown = torch.empty_like(odds)
    for start in rings[1:]:
        torch.cumsum(odds.mul(before), dim=1, out=grown)
        grown += start[:, None]
        totals += grown
        ends.append(grown[:, -1].clone())
        before = torch.cat([start[:, None], grown[:, :-1]], dim=1)
    return torch.stack(ends) * torch.exp(-draft_probs.sum() * times), totals


def _token(
    rings: Float[Tensor, "k T"], draft_prob: Float[Tensor, ""], times: Float[Tensor, "T"]
) -> Float[Tensor, "k T"]:
    """The rings after a single token that is too probable for a block."""
    silent = torch.exp(-draft_prob * times)
    grown = rings * silent
    grown[1:] += rings[:-1] * -torch.expm1(-draft_prob * times)
    return grown


def _early(reach: Float[Tensor, "V"], step: float) -> Float[Tensor, "V"]:
    """The trapezoid sum over all times before `first`, where P(T > t) is 1.

    The sum over m >= 1 of h x exp(-x), x = reach exp(-m h), with reach = lambda x first, by the series of
    exp.
    """
    total = torch.zeros_like(reach)
    for r in range(24, -1, -1):
        factor = (-1) ** r * step / (math.factorial(r) * math.expm1((r + 1) * step))
        total = total * reach + factor
    return total * reach


def _step(k: int) -> float:
    """The largest step of the trapezoid rule whose error bound does not exceed the tolerance."""
    angles = [math.pi / 2 * i / 200 for i in range(1, 200)]
    return max(
        2 * math.pi * a / (math.log(2 / TOLERANCE) - k * math.log(math.cos(a))) for a in angles
    )
