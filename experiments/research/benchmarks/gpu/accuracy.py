"""Test whether the kernel is right on this device: compare it with attention in float64 over many cases.

The largest error may be twice that of plain attention computed in float32 and rounded once, plus the effect
of the kernel's own roundings: of the weights and the output in the dtype, and of the largest score in
float32 (an error e of a score changes its weight by e times itself). No tolerance is tuned.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from attention_masks import RaggedPass, TreePass, attend, topology
from attention_masks.tree_attention.tree_pass import AnyPass
from treespec.errors import in_words
from treespec.experiments.measure.roofline import Heads
from treespec.experiments.research.benchmarks.gpu.gpu_session import Session

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
HEADS = (
    Heads(32, 8, 128), Heads(64, 8, 128), Heads(32, 32, 128), Heads(14, 2, 64), Heads(8, 1, 256),
    Heads(6, 2, 96), Heads(9, 3, 80),
)  # fmt: skip
DRY = (Heads(6, 2, 16), Heads(2, 2, 80)), ((9, 70), (1, 3)), (Heads(4, 2, 16), 9, 40)
WITH_OPTIONS = (HEADS[0], 48, 4096)
"""Heads, nodes and prefix of the cases with options."""

SIZES = ((64, 16384), (8, 1000), (33, 4097), (16, 131072), (512, 1024), (128, 65536), (1, 255))
OPTIONS: dict[str, dict[str, Any]] = {
    "window": {"window": 1024},
    "short window": {"window": 5},
    "softcap": {"softcap": 5.0},
    "sinks": {"sinks": True},
    "sinks, window": {"sinks": True, "window": 128},
    "ragged": {"ragged": True},
    "paged": {"page": 16},
    "last rows": {"last": 7},
    "ragged, paged, softcap": {"ragged": True, "page": 64, "softcap": 20.0},
    "ragged, sinks, window": {"ragged": True, "sinks": True, "window": 700},
}


@dataclass(frozen=True)
class Case:
    """A case that is computed in both ways, with options by name (see `OPTIONS`)."""

    dtype: str
    heads: Heads
    rows: int
    prefix: int
    name: str = "plain"
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def key(self) -> str:
        """A readable key for files and messages."""
        return f"{self.dtype} {self.heads} T={self.rows} prefix={self.prefix} {self.name}"


def cases(dry: bool) -> list[Case]:
    """All cases, bfloat16 first."""
    heads, sizes, base = DRY if dry else (HEADS, SIZES, WITH_OPTIONS)
    dtypes = list(DTYPES)
    plain = [
        Case(dtype, layer_heads, *sizes[(i + turn) % len(sizes)])
        for (turn, dtype), (i, layer_heads) in product(enumerate(dtypes), enumerate(heads))
    ]
    special = [
        Case(dtype, *base, name, tuple(options.items()))
        for dtype, (name, options) in product(dtypes[:1] if dry else dtypes, OPTIONS.items())
    ]
    return sorted([*plain, *special], key=lambda case: dtypes.index(case.dtype))


def run(session: Session, deadline: float) -> None:
    """Check the cases until all are done or the time is over."""
    todo, worst = cases(session.dry), 0.0
    store = session.store("accuracy", cells=len(todo))
    for case in session.each("accuracy", todo, deadline, store):
        try:
            cell = check(case, session.device)
        except torch.OutOfMemoryError as error:  # the reference in float64 is large
            cell = {"error": in_words(error, "the kernel")}
            session.recover(case.key)
        except Exception as error:
            cell = {"error": in_words(error, "the kernel"), "passed": False}
        store.add(case.key, {"dtype": case.dtype, "name": case.name, **cell})
        if cell.get("passed") is False:
            session.fail("accuracy", case.key, str(cell.get("error", cell)))
            session.recover(case.key)
        worst = max(worst, cell.get("of_bound", 0.0))
    session.say(f"accuracy: {len(store.cells)} cases, largest error {worst:.2f} of its bound")


@torch.inference_mode()
def check(case: Case, device: torch.device) -> dict[str, Any]:
    """The kernel's largest error, that of plain attention, and the bound."""
    options, dtype = dict(case.options), DTYPES[case.dtype]
    tree_pass, batch = _pass(case, options), 3 if options.get("ragged") else 1
    make = torch.Generator(device).manual_seed(case.rows + case.prefix)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=make, device=device).to(dtype)

    heads, slots = case.heads, -(-tree_pass.key_count // 64) * 64
    q = normal(batch, heads.q, tree_pass.row_count, heads.dim) * 2
    k, v = (normal(batch, heads.kv, slots, heads.dim) for _ in range(2))
    limits: dict[str, Any] = {name: options.get(name) for name in ("window", "softcap")}
    sinks = normal(heads.q) if options.get("sinks") else None
    cache: dict[str, Any] = _paged(k, v, options["page"]) if "page" in options else {"k": k, "v": v}
    out = attend(q, tree_pass=tree_pass, impl="triton", sinks=sinks, **cache, **limits)
    truth = attend(
        q.double(), k.double(), v.double(), tree_pass, impl="reference",
        sinks=None if sinks is None else sinks.double(), **limits,
    )  # fmt: skip
    plain = attend(q, k, v, tree_pass, impl="reference", sinks=sinks, **limits)
    score = float(q.double().norm(dim=-1).max() * k.double().norm(dim=-1).max()) * heads.dim**-0.5
    score = min(score, options.get("softcap") or score)
    eps = torch.finfo(dtype).eps + torch.finfo(torch.float32).eps * score
    usual = float((plain.double() - truth).abs().max())
    bound = 2 * usual + eps * float(v.double().abs().max())
    error = float((out.double() - truth).abs().max())
    return {
        "error_max": error,
        "plain_error_max": usual,
        "bound": bound,
        "of_bound": round(error / bound, 4),
        "passed": bool(error <= bound),
    }


def _pass(case: Case, options: dict[str, Any]) -> AnyPass:
    def pass_of(rows: int, prefix: int, branching: int) -> TreePass:
        tree = topology([(i - 1) // branching for i in range(rows)])
        last = options.get("last")
        return TreePass(tree, prefix, range(rows - last, rows) if last else None)

    largest = pass_of(case.rows, case.prefix, 3)
    if not options.get("ragged"):
        return largest
    return RaggedPass([largest, pass_of(case.rows // 2, case.prefix // 3, 1), pass_of(1, 0, 2)])


def _paged(k: Tensor, v: Tensor, page: int) -> dict[str, Tensor]:
    """The keys and values in pages that lie in memory in random order."""
    batch, heads, slots, dim = k.shape
    blocks = slots // page
    order = torch.randperm(batch * blocks, device=k.device)

    def pages(x: Tensor) -> Tensor:
        ordered = x.reshape(batch, heads, blocks, page, dim).transpose(1, 2).flatten(0, 1)
        shuffled = torch.empty_like(ordered, memory_format=torch.contiguous_format)
        shuffled[order] = ordered
        return shuffled

    return {
        "k": pages(k),
        "v": pages(v),
        "block_table": order.view(batch, blocks).to(torch.int32),
    }
