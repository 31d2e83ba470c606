# ruff: noqa: N803, SIM102, SIM109  (compile-time arguments are in capitals; Triton compiles plain ifs)
"""The Triton kernel of `verify.engine.fused`: one program walks one tree, from the root to the bonus.

What it does with rows of tokens is in `fused_rows`, what it does with pairs in `fused_pairs`.

Cost: the program runs on one multiprocessor, so its time is the bytes read and written divided by the
bandwidth of *one* multiprocessor, plus a latency for each block. With b bytes per element of the target's
rows and V tokens, a visited node reads b V to open its row. Each rejection there reads b V (later ones
4 V) of `left` and 4 V of the draft, and writes 4 V; `rrsw` also writes (and later reads) 4 V for the
remaining draft. A draw reads `left` up to the block of the drawn token. Accepting reads two numbers. At a
node with several children `greedy_multidraft` first writes the draft without the elder ones (4 V read, 4 V
written), and `spechub` reads the draft three times and `left` once, and writes 4 V.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl

from treespec.verify.engine.fused_pairs import decide_pair, hub_of
from treespec.verify.engine.fused_rows import (  # noqa: F401  (`fused` reads all kinds here)
    ARGMAX,
    GREEDY,
    HUB,
    LOGITS,
    MULTIDRAFT,
    NAIVE,
    ONEHOT,
    PROBS,
    RRS,
    RRSW,
    divide,
    draft_of,
    draw,
    open_row,
    reject,
    remove_elders,
    weight_of,
)

TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}
"""Dtypes that residuals can be computed in."""


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
        peak, best, total, error = open_row(row, vocab, temperature, ROWS, RULE, BLOCK)
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
                chosen = draw(
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
                        mass = remove_elders(
                            draft, scratch, tokens, following, first, child, vocab, BLOCK
                        )
                        spent = tl.where(mass > 0.0, 0, 1)
                        draft_norm = tl.where(spent > 0, (vocab - tried).to(WIDE), mass.to(WIDE))
            if RULE == HUB:
                if child >= 0:
                    second = tl.load(following + child)
                    hub, share, others = hub_of(draft, vocab, BLOCK)
                    if (second >= 0) & (share != 1.0):
                        one = tl.load(tokens + child).to(tl.int32)
                        two = tl.load(tokens + second).to(tl.int32)
                        # Not a pair with the hub, or a first child that is never drawn: the rule refuses.
                        error = tl.where((one == hub) | (two == hub), 0, 1)
                        error = tl.where((one < vocab) & (two < vocab), error, 1)
                        one, two = tl.minimum(one, vocab - 1), tl.minimum(two, vocab - 1)
                        error = tl.where(tl.load(draft + one) > 0.0, error, 1)
                        hub_is_first = one == hub
                        mass, for_spoke, for_hub, missing = decide_pair(
                            row, draft, scratch, vocab, peak, best, temperature, norm, hub,
                            share.to(WIDE), others, tl.where(hub_is_first, two, one), hub_is_first,
                            ROWS, WIDE, BLOCK,
                        )  # fmt: skip
                        error = tl.where(mass > 0.0, error, 1)
                        uniform = tl.load(uniforms + used)
                        used += 1
                        if uniform < divide(for_spoke, mass).to(tl.float64):
                            accepted = tl.where(hub_is_first, second, child)
                        elif mass > for_spoke:
                            uniform = tl.load(uniforms + used)
                            used += 1
                            if uniform < divide(for_hub, mass - for_spoke).to(tl.float64):
                                accepted = tl.where(hub_is_first, child, second)
                        if missing > 0.0:  # else the bonus is drawn from the target
                            side = tl.full([], 1, tl.int32)
                            total = missing
                        child = tl.full([], -1, tl.int32)  # no further test
            while (child >= 0) & (accepted < 0) & (error == 0):
                token = tl.load(tokens + child).to(tl.int32)
                error = tl.where(token < vocab, 0, 1)
                token = tl.minimum(token, vocab - 1)
                weight = weight_of(
                    row, scratch, token, vocab, side, peak, best, temperature, ROWS, WIDE
                )
                chance = divide(weight, norm)
                if RULE != ONEHOT:
                    probs, _ = draft_of(
                        draft, scratch, token, vocab, tried, draft_norm, spent, reads
                    )
                    error = tl.where(probs > 0.0, error, 1)  # NaN is not
                    chance = divide(chance, probs)
                    if LENIENCE == 0.0:
                        chance = tl.full([], 1.0, WIDE)
                    elif LENIENCE != 1.0:
                        chance = divide(chance, tl.full([], LENIENCE, WIDE))
                uniform = tl.load(uniforms + used)
                used += 1
                if uniform < chance.to(tl.float64):
                    accepted = child
                elif error == 0:
                    mass, draft_mass = reject(
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
                bonus = draw(
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
