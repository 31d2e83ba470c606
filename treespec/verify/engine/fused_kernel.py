# ruff: noqa: N803, SIM102, SIM108, SIM109  (compile-time arguments are in capitals; Triton compiles plain ifs)
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
remaining draft. A draw reads `left` up to the block of the drawn token. Accepting reads two numbers. At a
node with several children `greedy_multidraft` first writes the draft without the elder ones (4 V read, 4 V
written), and `spechub` reads the draft three times and `left` once, and writes 4 V.

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
MULTIDRAFT: tl.constexpr = tl.constexpr(5)
HUB: tl.constexpr = tl.constexpr(6)

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
        weight = _weight(row, scratch, offs, vocab, side, peak, best, temperature, ROWS, WIDE)
        left = _divide(weight, norm)
        if RULE == ONEHOT:
            rest = tl.where(offs == token, 0.0, left)
        else:
            probs, marked = _draft(draft, scratch, offs, vocab, tried, draft_norm, spent, RULE)
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
def _remove_elders(draft, scratch, tokens, following, first, last, vocab, BLOCK: tl.constexpr):
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


@triton.jit
@no_type_check
def _hub_of(draft, vocab, BLOCK: tl.constexpr):
    """The draft's most probable token (ties: the lowest id), its probability, and the sum of the others."""
    peak = tl.full([], -1.0, draft.dtype.element_ty)
    hub = tl.full([], 0, tl.int32)
    for start in range(0, vocab, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        probs = tl.load(draft + offs, mask=offs < vocab, other=-1.0)
        top = tl.max(probs, axis=0)
        place = tl.min(tl.where(probs == top, offs, vocab), axis=0)
        hub = tl.where(top > peak, place, hub)
        peak = tl.maximum(peak, top)
    others = tl.full([], 0.0, tl.float64)
    for start in range(0, vocab, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        probs = tl.load(draft + offs, mask=(offs < vocab) & (offs != hub), other=0.0)
        others += tl.sum(probs.to(tl.float64), axis=0)
    return hub, peak, others


@triton.jit
@no_type_check
def _pair_masses(left, probs, offs, vocab, hub, share, others, WIDE: tl.constexpr):
    """Masses of the two pairs of each token with the hub, (i, a) and (a, i), and what i takes of them."""
    alone = others == 0.0
    rest = tl.where(alone, (vocab - 1).to(WIDE), others.to(WIDE))
    after_hub = _divide(tl.where(alone, 1.0, probs).to(WIDE), rest)
    spoke_first = tl.where(offs == hub, 0.0, probs)
    hub_first = tl.where((offs == hub) | (offs >= vocab), 0.0, share * after_hub)
    of_spoke_first = tl.minimum(left, spoke_first)
    of_hub_first = tl.minimum(left - of_spoke_first, hub_first)
    return spoke_first, hub_first, of_spoke_first, of_hub_first


@triton.jit
@no_type_check
def _pair(
    row, draft, scratch, vocab, peak, best, temperature, norm, hub, share, others, spoke, hub_is_first,
    ROWS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """SpecHub's decision about the pair of a spoke and the hub (`treespec.verify.spechub`).

    Writes what no pair supplies to the first scratch row. Returns the mass of the pair, how much of it goes
    to the spoke and to the hub, and the sum of what was written.
    """
    tl.debug_barrier()
    unused_spoke = tl.full([], 0.0, tl.float64)
    unused_hub = tl.full([], 0.0, tl.float64)
    total = tl.full([], 0.0, tl.float64)
    for start in range(0, vocab, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        inside = offs < vocab
        weight = _weight(row, scratch, offs, vocab, 0, peak, best, temperature, ROWS, WIDE)
        left = _divide(weight, norm)
        probs = tl.load(draft + offs, mask=inside, other=0.0).to(WIDE)
        spoke_first, hub_first, of_spoke_first, of_hub_first = _pair_masses(
            left, probs, offs, vocab, hub, share, others, WIDE
        )
        missing = left - of_spoke_first - of_hub_first
        unused_spoke += tl.sum((spoke_first - of_spoke_first).to(tl.float64), axis=0)
        unused_hub += tl.sum((hub_first - of_hub_first).to(tl.float64), axis=0)
        total += tl.sum(tl.where(offs == hub, 0.0, missing).to(tl.float64), axis=0)
        tl.store(scratch + offs, missing, mask=inside)
    tl.debug_barrier()
    lacking = tl.load(scratch + hub)
    takes_first = tl.minimum(lacking, unused_hub.to(WIDE))
    takes_second = tl.minimum(lacking - takes_first, unused_spoke.to(WIDE))
    weight = _weight(row, scratch, spoke, vocab, 0, peak, best, temperature, ROWS, WIDE)
    spoke_first, hub_first, of_spoke_first, of_hub_first = _pair_masses(
        _divide(weight, norm),
        tl.load(draft + spoke).to(WIDE),
        spoke,
        vocab,
        hub,
        share,
        others,
        WIDE,
    )
    mass = tl.where(hub_is_first, hub_first, spoke_first)
    for_spoke = tl.where(hub_is_first, of_hub_first, of_spoke_first)
    taken = tl.where(hub_is_first, takes_first, takes_second)
    unused = tl.where(hub_is_first, unused_hub, unused_spoke).to(WIDE)
    for_hub = _divide((mass - for_spoke) * taken, tl.where(unused > 0.0, unused, 1.0))
    tl.debug_barrier()  # all threads have read what is missing at the hub
    lacking = lacking - takes_first - takes_second
    lacking = tl.where(lacking < 0.0, 0.0, lacking)
    tl.store(scratch + hub, lacking)
    tl.debug_barrier()
    return mass, for_spoke, tl.where(unused > 0.0, for_hub, 0.0), total + lacking.to(tl.float64)


@triton.jit
@no_type_check
def _child_with(tokens, following, child, token):
    """The first of these siblings that holds a token; -1 if none does."""
    found = tl.full([], -1, tl.int32)
    while (child >= 0) & (found < 0):
        found = tl.where(tl.load(tokens + child).to(tl.int32) == token, child, -1)
        child = tl.load(following + child)
    return found


@triton.jit
@no_type_check
def _sound(tokens, elder, size, vocab, limit, RULE: tl.constexpr):
    """Whether all token ids are in range and, for rules that need it, siblings are distinct."""
    sound = tl.full([], 1, tl.int32)
    for start in range(0, size, 128):
        nodes = start + tl.arange(0, 128)
        token = tl.load(tokens + nodes, mask=nodes < size, other=0)
        wrong = (token < 0) | ((nodes > 0) & (token >= limit))
        if RULE == RRSW or RULE == ONEHOT or RULE == MULTIDRAFT or RULE == HUB:
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
    LENIENCE: tl.constexpr, RULE: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tree's verdict: `out` = whether the reference must decide, last node of the path, bonus, used.

    - rows: `[N, V]` probabilities (PROBS) or logits (LOGITS, ARGMAX).
    - draft_probs: `[M, V]`, read by all rules but GREEDY, NAIVE and ONEHOT.
    - tokens: `[N]`.
    - plan: `[4, N]` first child, next sibling, previous sibling, row of `draft_probs`; -1 for none.
    - uniforms: `[U]` float64, the next uniforms of the stream: as many as the rule can use.
    - scratch: `[2, V]` of dtype WIDE, with a third row for RRSW, MULTIDRAFT and HUB; not read by GREEDY and
      NAIVE.
    - out: `[4]` int32.
    - limit: smallest token id that is out of range.
    - LENIENCE: factor of the draft's probabilities, for RRS; 1 but for the lossy rule `lenient`.
    - RULE, ROWS: the rule, and the kind of the rows.
    - WIDE: the dtype that residuals are computed in.
    - BLOCK: number of tokens read at once, a power of two.
    """
    following, elder, draft_rows = plan + size, plan + 2 * size, plan + 3 * size
    # What is removed of the draft is marked for rules of distinct children; the others read it as it is.
    reads: tl.constexpr = RRSW if RULE == MULTIDRAFT or RULE == HUB else RULE
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
            accepted = _child_with(tokens, following, child, chosen)
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
            first = child
            if RULE == MULTIDRAFT:
                if child >= 0:  # only the last child is tested; the draft chose the others
                    while tl.load(following + child) >= 0:
                        tried += 1
                        child = tl.load(following + child)
                    if tried > 0:
                        mass = _remove_elders(
                            draft, scratch, tokens, following, first, child, vocab, BLOCK
                        )
                        spent = tl.where(mass > 0.0, 0, 1)
                        draft_norm = tl.where(spent > 0, (vocab - tried).to(WIDE), mass.to(WIDE))
            if RULE == HUB:
                if child >= 0:
                    second = tl.load(following + child)
                    hub, share, others = _hub_of(draft, vocab, BLOCK)
                    if (second >= 0) & (share != 1.0):
                        one = tl.load(tokens + child).to(tl.int32)
                        two = tl.load(tokens + second).to(tl.int32)
                        # Not a pair with the hub, or a first child that is never drawn: the rule refuses.
                        error = tl.where((one == hub) | (two == hub), 0, 1)
                        error = tl.where((one < vocab) & (two < vocab), error, 1)
                        one, two = tl.minimum(one, vocab - 1), tl.minimum(two, vocab - 1)
                        error = tl.where(tl.load(draft + one) > 0.0, error, 1)
                        hub_is_first = one == hub
                        mass, for_spoke, for_hub, missing = _pair(
                            row, draft, scratch, vocab, peak, best, temperature, norm, hub,
                            share.to(WIDE), others, tl.where(hub_is_first, two, one), hub_is_first,
                            ROWS, WIDE, BLOCK,
                        )  # fmt: skip
                        error = tl.where(mass > 0.0, error, 1)
                        uniform = tl.load(uniforms + used)
                        used += 1
                        if uniform < _divide(for_spoke, mass).to(tl.float64):
                            accepted = tl.where(hub_is_first, second, child)
                        elif mass > for_spoke:
                            uniform = tl.load(uniforms + used)
                            used += 1
                            if uniform < _divide(for_hub, mass - for_spoke).to(tl.float64):
                                accepted = tl.where(hub_is_first, child, second)
                        if missing > 0.0:  # else the bonus is drawn from the target
                            side = tl.full([], 1, tl.int32)
                            total = missing
                        child = tl.full([], -1, tl.int32)  # no further test
            while (child >= 0) & (accepted < 0) & (error == 0):
                token = tl.load(tokens + child).to(tl.int32)
                error = tl.where(token < vocab, 0, 1)
                token = tl.minimum(token, vocab - 1)
                weight = _weight(
                    row, scratch, token, vocab, side, peak, best, temperature, ROWS, WIDE
                )
                chance = _divide(weight, norm)
                if RULE != ONEHOT:
                    probs, _ = _draft(draft, scratch, token, vocab, tried, draft_norm, spent, reads)
                    error = tl.where(probs > 0.0, error, 1)  # NaN is not
                    chance = _divide(chance, probs)
                    if LENIENCE == 0.0:
                        chance = tl.full([], 1.0, WIDE)
                    elif LENIENCE != 1.0:
                        chance = _divide(chance, tl.full([], LENIENCE, WIDE))
                uniform = tl.load(uniforms + used)
                used += 1
                if uniform < chance.to(tl.float64):
                    accepted = child
                elif error == 0:
                    mass, draft_mass = _reject(
                        row, draft, scratch, vocab, side, peak, best, temperature, norm, tried,
                        draft_norm, spent, token, LENIENCE, reads, ROWS, WIDE, BLOCK,
                    )  # fmt: skip
                    if mass > 0.0:  # otherwise only rounding rejected: keep `left`
                        side = tl.where(side == 1, 2, 1)
                        norm = mass.to(WIDE)
                        total = mass
                    tried += 1
                    spent = tl.where(draft_mass > 0.0, 0, 1)
                    draft_norm = tl.where(spent > 0, (vocab - tried).to(WIDE), draft_mass.to(WIDE))
                child = tl.load(following + child)
                if RULE == HUB:  # one child is tested, whatever others there are
                    child = tl.full([], -1, tl.int32)
            if (accepted < 0) & (error == 0):
                uniform = tl.load(uniforms + used)
                used += 1
                bonus = _draw(
                    row, scratch, vocab, side, peak, best, temperature, total, uniform,
                    ROWS, WIDE, BLOCK,
                )  # fmt: skip
                if RULE == MULTIDRAFT or RULE == HUB:
                    accepted = _child_with(tokens, following, first, bonus)
                    bonus = tl.where(accepted < 0, bonus, -1)
        node = tl.where(accepted >= 0, accepted, node)
    tl.store(out, error)
    tl.store(out + 1, node)
    tl.store(out + 2, bonus)
    tl.store(out + 3, used)


INTERPRETED = not isinstance(walk, triton.JITFunction)
"""Whether the kernel runs on CPU tensors, because TRITON_INTERPRET=1 was set before this import."""
