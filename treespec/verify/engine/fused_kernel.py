# ruff: noqa: N803, SIM108, SIM109  (compile-time arguments are in capitals; Triton compiles plain ifs)
"""The Triton kernel of `verify.engine.fused`: one program walks one tree, from the root to the bonus.

Names: `row` is the target's row of the current node; `left` is what rejections have left of it. `left` is
never stored: it equals `weight / norm`, where the weights come from the row itself (`side` 0:
exponentials, probabilities or a one-hot row) or from one of two scratch rows (`side` 1 and 2). Rejections
write the scratch rows alternately, so one that leaves no mass can keep the previous row. Sums over tokens
are float64.

Cost: the program runs on one multiprocessor, so its time is the bytes read and written divided by the
bandwidth of *one* multiprocessor, plus a latency for each block. With b bytes per element of the target's
rows and V tokens, a visited node reads b V to open its row. Each rejection there reads b V (later ones
4 V) of `left` and 4 V of the draft, and writes 4 V; `rrsw` also writes (and later reads) 4 V for the
remaining draft. A draw reads `left` up to the block of the drawn token. Accepting reads two numbers.

Some threads of the program write scratch that others read, so `_reject` is fenced by
`tl.debug_barrier()`, a barrier that also orders global memory within the program.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl

TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}
"""Dtypes that residuals can be computed in."""

GREEDY: tl.constexpr = tl.constexpr(0)
NAIVE: tl.constexpr = tl.constexpr(1)
RRS: tl.constexpr = tl.constexpr(2)
RRSW: tl.constexpr = tl.constexpr(3)
ONEHOT: tl.constexpr = tl.constexpr(4)

PROBS: tl.constexpr = tl.constexpr(0)
LOGITS: tl.constexpr = tl.constexpr(1)
ARGMAX: tl.constexpr = tl.constexpr(2)

# `no_type_check` stops import hooks that decorate every function from touching what Triton compiles.


@triton.jit
@no_type_check
def _divide(a, b):
    """a / b, rounded as the reference rounds it (plain float32 division on a GPU is approximate)."""
    if a.dtype == tl.float64:
        ratio = a / b
    else:
        ratio = tl.div_rn(a, b)
    return ratio


@triton.jit
@no_type_check
def _weight(
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
def _open(row, vocab, temperature, ROWS: tl.constexpr, RULE: tl.constexpr, BLOCK: tl.constexpr):
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
def _draw(
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
        weight = _weight(row, scratch, offs, vocab, side, peak, best, temperature, ROWS, WIDE)
        mass = tl.sum(weight.to(tl.float64), axis=0)
        # Blocks without mass are skipped: `block` is the last one that can hold the token.
        block = tl.where(mass > 0.0, start, block)
        before = tl.where(mass > 0.0, reached, before)
        reached += mass
        start += BLOCK
    offs = block + tl.arange(0, BLOCK)
    weight = _weight(row, scratch, offs, vocab, side, peak, best, temperature, ROWS, WIDE)
    beyond = before + tl.cumsum(weight.to(tl.float64), axis=0) > point
    first = tl.min(tl.where(beyond & (weight > 0.0), offs, vocab), axis=0)
    # Sums in another order can miss the point by rounding: then the last token with mass is drawn.
    last = tl.max(tl.where(weight > 0.0, offs, 0), axis=0)
    return tl.where(first < vocab, first, last)


@triton.jit
@no_type_check
def _draft(draft, scratch, offs, vocab, tried, norm, spent, RULE: tl.constexpr):
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
        probs = _divide(tl.where(marked < 0.0, 0.0, weight), norm)
    else:
        marked = tl.load(draft + offs, mask=inside, other=0.0).to(scratch.dtype.element_ty)
        probs = marked
    return probs, marked


@triton.jit
@no_type_check
def _reject(
    row, draft, scratch, vocab, side, peak, best, temperature, norm, tried, draft_norm, spent, token,
    RULE: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write what rejecting `token` leaves to the other scratch row; return its sum and the draft's."""
    tl.debug_barrier()  # no thread may still be reading what is written below
    to = tl.where(side == 1, vocab, 0)
    total = tl.full([], 0.0, tl.float64)
    draft_total = tl.full([], 0.0, tl.float64)
    for start in range(0, vocab, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        inside = offs < vocab
        weight = _weight(row, scratch, offs, vocab, side, peak, best, temperature, ROWS, WIDE)
        left = _divide(weight, norm)
        if RULE == ONEHOT:
            rest = tl.where(offs == token, 0.0, left)
        else:
            probs, marked = _draft(draft, scratch, offs, vocab, tried, draft_norm, spent, RULE)
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
def _sound(tokens, elder, size, vocab, limit, RULE: tl.constexpr):
    """Whether all token ids are in range and, for rules that need it, siblings are distinct."""
    sound = tl.full([], 1, tl.int32)
    for start in range(0, size, 128):
        nodes = start + tl.arange(0, 128)
        token = tl.load(tokens + nodes, mask=nodes < size, other=0)
        wrong = (token < 0) | ((nodes > 0) & (token >= limit))
        if RULE == RRSW or RULE == ONEHOT:
            other = tl.load(elder + nodes, mask=nodes < size, other=-1)
            while tl.max(other, axis=0) >= 0:
                there = other >= 0
                twin = tl.load(tokens + other, mask=there, other=-1) == token
                wrong = wrong | (there & twin)
                other = tl.load(elder + other, mask=there, other=-1)
        sound = tl.minimum(sound, 1 - tl.max(wrong.to(tl.int32), axis=0))
    return sound


@triton.jit(do_not_specialize=["size", "limit"])
@no_type_check
def walk(
    rows, draft_probs, tokens, plan, uniforms, scratch, out,
    size, vocab, row_stride, draft_stride, limit, temperature,
    RULE: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tree's verdict: `out` = whether the reference must decide, last node of the path, bonus, used.

    - rows: `[N, V]` probabilities (PROBS) or logits (LOGITS, ARGMAX).
    - draft_probs: `[M, V]`, read by RRS and RRSW.
    - tokens: `[N]`.
    - plan: `[4, N]` first child, next sibling, previous sibling, row of `draft_probs`; -1 for none.
    - uniforms: `[N]` float64, the next uniforms of the stream.
    - scratch: `[2, V]` of dtype WIDE, with a third row for RRSW; not read by GREEDY and NAIVE.
    - out: `[4]` int32.
    - limit: smallest token id that is out of range.
    - RULE, ROWS: the rule, and the kind of the rows.
    - WIDE: the dtype that residuals are computed in.
    - BLOCK: number of tokens read at once, a power of two.
    """
    following, elder, draft_rows = plan + size, plan + 2 * size, plan + 3 * size
    node = tl.full([], 0, tl.int32)
    used = tl.full([], 0, tl.int32)
    bonus = tl.full([], -1, tl.int32)
    error = 1 - _sound(tokens, elder, size, vocab, limit, RULE)
    while (bonus < 0) & (error == 0):
        row = rows + node.to(tl.int64) * row_stride
        peak, best, total, error = _open(row, vocab, temperature, ROWS, RULE, BLOCK)
        child = tl.load(plan + node)
        accepted = tl.full([], -1, tl.int32)
        if RULE == GREEDY or RULE == NAIVE:
            if RULE == GREEDY:
                if ROWS == PROBS:
                    error = tl.where(peak == 1.0, error, 1)
                elif ROWS == LOGITS:
                    error = tl.where(total.to(tl.float32) == 1.0, error, 1)
                chosen = best
            else:
                uniform = tl.load(uniforms + used)
                used += 1
                chosen = _draw(
                    row, scratch, vocab, 0, peak, best, temperature, total, uniform,
                    ROWS, WIDE, BLOCK,
                )  # fmt: skip
            while (child >= 0) & (accepted < 0):  # the first of equal siblings
                accepted = tl.where(tl.load(tokens + child).to(tl.int32) == chosen, child, -1)
                child = tl.load(following + child)
            bonus = tl.where(accepted < 0, chosen, -1)
        else:
            draft = draft_probs
            if RULE != ONEHOT:
                draft += tl.load(draft_rows + node).to(tl.int64) * draft_stride
            side = tl.full([], 0, tl.int32)
            tried = tl.full([], 0, tl.int32)
            spent = tl.full([], 0, tl.int32)
            draft_norm = tl.full([], 1.0, WIDE)
            norm = total.to(WIDE) if ROWS == LOGITS else tl.full([], 1.0, WIDE)
            while (child >= 0) & (accepted < 0) & (error == 0):
                token = tl.load(tokens + child).to(tl.int32)
                error = tl.where(token < vocab, 0, 1)
                token = tl.minimum(token, vocab - 1)
                weight = _weight(
                    row, scratch, token, vocab, side, peak, best, temperature, ROWS, WIDE
                )
                chance = _divide(weight, norm)
                if RULE != ONEHOT:
                    probs, _ = _draft(draft, scratch, token, vocab, tried, draft_norm, spent, RULE)
                    error = tl.where(probs > 0.0, error, 1)  # NaN is not
                    chance = _divide(chance, probs)
                uniform = tl.load(uniforms + used)
                used += 1
                if uniform < chance.to(tl.float64):
                    accepted = child
                elif error == 0:
                    mass, draft_mass = _reject(
                        row, draft, scratch, vocab, side, peak, best, temperature, norm, tried,
                        draft_norm, spent, token, RULE, ROWS, WIDE, BLOCK,
                    )  # fmt: skip
                    if mass > 0.0:  # otherwise only rounding rejected: keep `left`
                        side = tl.where(side == 1, 2, 1)
                        norm = mass.to(WIDE)
                        total = mass
                    tried += 1
                    spent = tl.where(draft_mass > 0.0, 0, 1)
                    draft_norm = tl.where(spent > 0, (vocab - tried).to(WIDE), draft_mass.to(WIDE))
                child = tl.load(following + child)
            if (accepted < 0) & (error == 0):
                uniform = tl.load(uniforms + used)
                used += 1
                bonus = _draw(
                    row, scratch, vocab, side, peak, best, temperature, total, uniform,
                    ROWS, WIDE, BLOCK,
                )  # fmt: skip
        node = tl.where(accepted >= 0, accepted, node)
    tl.store(out, error)
    tl.store(out + 1, node)
    tl.store(out + 2, bonus)
    tl.store(out + 3, used)


INTERPRETED = not isinstance(walk, triton.JITFunction)
"""Whether the kernel runs on CPU tensors, because TRITON_INTERPRET=1 was set before this import."""
