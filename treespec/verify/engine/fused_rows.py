# ruff: noqa: N803, SIM108  (compile-time arguments are in capitals; Triton compiles plain ifs)
"""Operations on rows of tokens inside the Triton kernel of `verify.engine.fused_kernel`.

`left` is what rejections have left of the target's row. It is never stored: it equals `weight / norm`,
where the weights come from the row itself (`side` 0: exponentials, probabilities or a one-hot row) or from
one of two scratch rows (`side` 1 and 2). Rejections write the scratch rows alternately, so one that leaves
no mass can keep the previous row. Sums over tokens are float64.

Some threads of the program write scratch that others read, so `reject` is fenced by
`tl.debug_barrier()`, a barrier that also orders global memory within the program.
"""

from typing import no_type_check

import triton
import triton.language as tl

GREEDY: tl.constexpr = tl.constexpr(0)
NAIVE: tl.constexpr = tl.constexpr(1)
RRS: tl.constexpr = tl.constexpr(2)
RRSW: tl.constexpr = tl.constexpr(3)
ONEHOT: tl.constexpr = tl.constexpr(4)
MULTIDRAFT: tl.constexpr = tl.constexpr(5)
HUB: tl.constexpr = tl.constexpr(6)

PROBS: tl.constexpr = tl.constexpr(0)
LOGITS: tl.constexpr = tl.constexpr(1)
ARGMAX: tl.constexpr = tl.constexpr(2)

# `no_type_check` stops import hooks that decorate every function from touching what Triton compiles.


@triton.jit
@no_type_check
def divide(a, b):
    """a / b, rounded as the reference rounds it (plain float32 division on a GPU is approximate)."""
    if a.dtype == tl.float64:
        ratio = a / b
    else:
        ratio = tl.div_rn(a, b)
    return ratio


@triton.jit
@no_type_check
def weight_of(
    row, scratch, offs, vocab, side, peak, best, temperature, ROWS: tl.constexpr, WIDE: tl.constexpr
):
    """`left` before normalisation; 0 past the end."""
    if side == 0:
        if ROWS == ARGMAX:
            weight = tl.where(offs == best, 1.0, 0.0).to(WIDE)
        elif ROWS == LOGITS:
            logits = tl.load(row + offs, mask=offs < vocab, other=float("-inf")).to(tl.float32)
            weight = tl.exp(tl.div_rn(logits, temperature) - peak).to(WIDE)
        else:
            weight = tl.load(row + offs, mask=offs < vocab, other=0.0).to(WIDE)
    else:
        weight = tl.load(scratch + (side - 1) * vocab + offs, mask=offs < vocab, other=0.0)
    return weight


@triton.jit
@no_type_check
def open_row(row, vocab, temperature, ROWS: tl.constexpr, RULE: tl.constexpr, BLOCK: tl.constexpr):
    """The row's maximum, its first position, the sum of the weights, and whether the row is unusable."""
    peak = tl.full([], float("-inf"), tl.float32)
    if ROWS == PROBS:
        peak = peak.to(row.dtype.element_ty)
    best = tl.full([], 0, tl.int32)
    total = tl.full([], 0.0, tl.float64)
    for start in range(0, vocab, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        inside = offs < vocab
        if ROWS == PROBS:
            value = tl.load(row + offs, mask=inside, other=0.0)
            total += tl.sum(value.to(tl.float64), axis=0)
            value = tl.where(inside, value, float("-inf"))
        else:
            logits = tl.load(row + offs, mask=inside, other=float("-inf")).to(tl.float32)
            value = tl.div_rn(logits, temperature)
            usable = (value > float("-inf")) & (value < float("inf"))  # NaN is neither
            value = tl.where(inside & (usable == 0), float("nan"), value)  # so the total is NaN
        if ROWS != PROBS or RULE == GREEDY:
            top = tl.max(value, axis=0)
            if ROWS == ARGMAX or RULE == GREEDY:  # ties: the lowest id
                place = tl.min(tl.where(value == top, offs, vocab), axis=0)
                best = tl.where(top > peak, place, best)
            new = tl.maximum(peak, top)
            if ROWS == LOGITS:
                total = total * tl.exp(peak - new).to(tl.float64)
                total += tl.sum(tl.exp(value - new).to(tl.float64), axis=0)
            elif ROWS == ARGMAX:
                flawed = tl.max((inside & (usable == 0)).to(tl.int32), axis=0)
                total = tl.where(flawed > 0, float("nan"), total)
            peak = new
    if ROWS == ARGMAX:
        total += 1.0
    return peak, best, total, tl.where((total > 0.0) & (total < float("inf")), 0, 1)


@triton.jit
@no_type_check
def draw(
    row, scratch, vocab, side, peak, best, temperature, total, uniform,
    ROWS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The token at which the cumulative weight first exceeds uniform * total (`coins.inverse_cdf`)."""
    point = uniform * total
    before = tl.full([], 0.0, tl.float64)
    reached = tl.full([], 0.0, tl.float64)
    block = tl.full([], 0, tl.int32)
    start = tl.full([], 0, tl.int32)
    while (start < vocab) & (reached <= point):
        offs = start + tl.arange(0, BLOCK)
        weight = weight_of(row, scratch, offs, vocab, side, peak, best, temperature, ROWS, WIDE)
        mass = tl.sum(weight.to(tl.float64), axis=0)
        # Blocks without mass are skipped: `block` is the last one that can hold the token.
        block = tl.where(mass > 0.0, start, block)
        before = tl.where(mass > 0.0, reached, before)
        reached += mass
        start += BLOCK
    offs = block + tl.arange(0, BLOCK)
    weight = weight_of(row, scratch, offs, vocab, side, peak, best, temperature, ROWS, WIDE)
    beyond = before + tl.cumsum(weight.to(tl.float64), axis=0) > point
    first = tl.min(tl.where(beyond & (weight > 0.0), offs, vocab), axis=0)
    # Sums in another order can miss the point by rounding: then the last token with mass is drawn.
    last = tl.max(tl.where(weight > 0.0, offs, 0), axis=0)
    return tl.where(first < vocab, first, last)


@triton.jit
@no_type_check
def draft_of(draft, scratch, offs, vocab, tried, norm, spent, RULE: tl.constexpr):
    """The draft distribution of the next child, and the draft row in which removed tokens are marked -1.

    `tried` is the number of rejected children. `spent` says that they exhausted the draft's support: the
    draft is then uniform over the other tokens (`distributions.without`).
    """
    inside = offs < vocab
    if RULE == RRSW:
        if tried == 0:
            marked = tl.load(draft + offs, mask=inside, other=-1.0).to(scratch.dtype.element_ty)
        else:
            marked = tl.load(scratch + 2 * vocab + offs, mask=inside, other=-1.0)
        weight = tl.where(spent > 0, 1.0, marked)
        probs = divide(tl.where(marked < 0.0, 0.0, weight), norm)
    else:
        marked = tl.load(draft + offs, mask=inside, other=0.0).to(scratch.dtype.element_ty)
        probs = marked
    return probs, marked


@triton.jit
@no_type_check
def reject(
    row, draft, scratch, vocab, side, peak, best, temperature, norm, tried, draft_norm, spent, token,
    LENIENCE: tl.constexpr, RULE: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write what rejecting `token` leaves to the other scratch row; return its sum and the draft's."""
    tl.debug_barrier()  # no thread may still be reading what is written below
    to = tl.where(side == 1, vocab, 0)
    total = tl.full([], 0.0, tl.float64)
    draft_total = tl.full([], 0.0, tl.float64)
    for start in range(0, vocab, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        inside = offs < vocab
        weight = weight_of(row, scratch, offs, vocab, side, peak, best, temperature, ROWS, WIDE)
        left = divide(weight, norm)
        if RULE == ONEHOT:
            rest = tl.where(offs == token, 0.0, left)
        else:
            probs, marked = draft_of(draft, scratch, offs, vocab, tried, draft_norm, spent, RULE)
            if LENIENCE != 1.0:
                probs = probs * LENIENCE
            rest = left - probs
            rest = tl.where(rest < 0.0, 0.0, rest)  # NaN stays
            if RULE == RRSW:
                marked = tl.where(offs == token, -1.0, marked)
                remaining = tl.where(marked < 0.0, 0.0, marked)
                draft_total += tl.sum(remaining.to(tl.float64), axis=0)
                tl.store(scratch + 2 * vocab + offs, marked, mask=inside)
        total += tl.sum(rest.to(tl.float64), axis=0)
        tl.store(scratch + to + offs, rest, mask=inside)
    tl.debug_barrier()  # no thread may read before everything is written
    return total, draft_total


@triton.jit
@no_type_check
def remove_elders(draft, scratch, tokens, following, first, last, vocab, BLOCK: tl.constexpr):
    """Write the draft row with the tokens of the children before `last` marked -1; return what remains."""
    tl.debug_barrier()
    total = tl.full([], 0.0, tl.float64)
    for start in range(0, vocab, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        inside = offs < vocab
        marked = tl.load(draft + offs, mask=inside, other=-1.0).to(scratch.dtype.element_ty)
        elder = first
        while elder != last:
            marked = tl.where(offs == tl.load(tokens + elder), -1.0, marked)
            elder = tl.load(following + elder)
        total += tl.sum(tl.where(marked < 0.0, 0.0, marked).to(tl.float64), axis=0)
        tl.store(scratch + 2 * vocab + offs, marked, mask=inside)
    tl.debug_barrier()
    return total
