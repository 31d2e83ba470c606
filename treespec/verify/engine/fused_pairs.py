# ruff: noqa: N803  (compile-time arguments are in capitals; Triton compiles plain ifs)
"""SpecHub's pairs of a token and the hub (`treespec.verify.spechub`), inside the Triton kernel."""

from typing import no_type_check

import triton
import triton.language as tl

from treespec.verify.engine.fused_rows import divide, weight_of


@triton.jit
@no_type_check
def hub_of(draft, vocab, BLOCK: tl.constexpr):
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
    after_hub = divide(tl.where(alone, 1.0, probs).to(WIDE), rest)
    spoke_first = tl.where(offs == hub, 0.0, probs)
    hub_first = tl.where((offs == hub) | (offs >= vocab), 0.0, share * after_hub)
    of_spoke_first = tl.minimum(left, spoke_first)
    of_hub_first = tl.minimum(left - of_spoke_first, hub_first)
    return spoke_first, hub_first, of_spoke_first, of_hub_first


@triton.jit
@no_type_check
def decide_pair(
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
        weight = weight_of(row, scratch, offs, vocab, 0, peak, best, temperature, ROWS, WIDE)
        left = divide(weight, norm)
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
    weight = weight_of(row, scratch, spoke, vocab, 0, peak, best, temperature, ROWS, WIDE)
    spoke_first, hub_first, of_spoke_first, of_hub_first = _pair_masses(
        divide(weight, norm),
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
    for_hub = divide((mass - for_spoke) * taken, tl.where(unused > 0.0, unused, 1.0))
    tl.debug_barrier()  # all threads have read what is missing at the hub
    lacking = lacking - takes_first - takes_second
    lacking = tl.where(lacking < 0.0, 0.0, lacking)
    tl.store(scratch + hub, lacking)
    tl.debug_barrier()
    return mass, for_spoke, tl.where(unused > 0.0, for_hub, 0.0), total + lacking.to(tl.float64)
