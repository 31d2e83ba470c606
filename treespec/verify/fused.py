"""Acceptance rules as one kernel on the device: one synchronisation a step."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from treespec.distributions import SampledRows
from treespec.door import integer
from treespec.errors import RefusedTree, Unavailable
from treespec.probabilities import no_distributions
from treespec.protocols import Coins, Rows
from treespec.shape import TreeShape
from treespec.step import Verdict
from treespec.tree import TokenTree
from treespec.verify.chain import chain
from treespec.verify.checked import CheckedRows, require_width
from treespec.verify.greedy import greedy
from treespec.verify.naive import naive
from treespec.verify.onehot import onehot
from treespec.verify.rrs import rrs
from treespec.verify.rrsw import rrsw
from treespec.verify.rule import Rule
from treespec.verify.tree_plan import plan_of
from treespec.verify.wrapped import WrappedRule

__all__ = ["BLOCK", "Fused", "fused", "options"]

_KINDS = {
    greedy: "GREEDY",
    naive: "NAIVE",
    chain: "RRS",
    rrs: "RRS",
    rrsw: "RRSW",
    onehot: "ONEHOT",
}
_WIDEST = 1 << 30

BLOCK = 4096
"""Tokens that a kernel reads at once."""


@runtime_checkable
class _Stream(Protocol):
    """Coins that show the numbers to come."""

    def peek(self, count: int) -> Sequence[float]: ...

    def skip(self, count: int) -> None: ...


class _DeviceRows(NamedTuple):
    """Target rows as the kernel reads them: what they are, and the temperature if they are logits."""

    values: Float[Tensor, "N V"]
    kind: str
    temperature: float = 1.0


class Fused(WrappedRule):
    """What `fused` gives: a verifier with the name and the attributes of its rule."""

    def __init__(self, rule: Rule, block: int = BLOCK) -> None:
        super().__init__(rule)
        if _plain(rule) not in _KINDS:
            covered = ", ".join(map(str, _KINDS))
            raise Unavailable(
                f"rule '{rule}' has no fused kernel ({covered} of treespec.verify have): use "
                f"on_host({rule}), which synchronises once too"
            )
        block = integer("block", block, error=Unavailable)
        if block < 1 or block & (block - 1):
            raise Unavailable(f"block = {block}, but must be a power of two")
        _kernel()
        self.block = block

    def __call__(self, tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
        """The rule's verdict; takes as many uniforms from the coins as the rule would.

        Raises:
            Unavailable: for tensors that the kernel cannot run on, rows that it cannot read and coins that
                do not show their uniforms; and what the rule itself raises.
        """
        CheckedRows.of(tree, target_probs)  # refuses what is no tree and no rows
        rule, plain, shape = self.rule, _plain(self.rule), tree.shape
        if not isinstance(coins, _Stream):
            raise Unavailable(
                f"fused({rule}) hands uniforms to a kernel, so it needs coins with peek and skip, as "
                f"TorchCoins have, not {type(coins).__name__}: use the plain rule"
            )
        # Only what does not read tokens; repeated siblings are the kernel's to find.
        if reason := rule.covers(shape, tree.law):
            raise RefusedTree(reason)
        if tree.is_mixed and plain not in (greedy, naive):
            raise Unavailable(
                f"fused({rule}) does not decide on mixed trees: use on_host({rule}), which synchronises "
                "once too"
            )
        kernel = _kernel()
        rows = _device_rows(target_probs, rule)
        device, vocabulary = rows.values.device, rows.values.shape[1]
        if device.type != "cuda" and not kernel.INTERPRETED:
            raise Unavailable(
                f"fused({rule}) runs on CUDA tensors, not on '{device}': use the plain rule, or set "
                "TRITON_INTERPRET=1 before Triton is imported to try the kernel on the CPU"
            )
        if rows.values.shape[0] < shape.size:
            raise RefusedTree(f"{shape.size} nodes, but {rows.values.shape[0]} target rows")
        require_width(tree, vocabulary)
        if not tree.is_vouched and not tree.look_at_rows():
            return rule(tree, target_probs, coins)
        kind, draft_probs = _KINDS[plain], self._draft_probs(tree, device)
        wide = rows.values.dtype if rows.kind == "PROBS" else torch.float32
        if draft_probs is not None:
            wide = torch.promote_types(wide, draft_probs.dtype)
        scratch_rows = {"GREEDY": 0, "NAIVE": 0, "RRSW": 3}.get(kind, 2)
        scratch = torch.empty(scratch_rows * vocabulary, dtype=wide, device=device)
        uniforms = torch.tensor(coins.peek(shape.size), dtype=torch.float64)
        out = torch.empty(4, dtype=torch.int32, device=device)
        block = min(self.block, 1 << max(vocabulary - 1, 0).bit_length())
        limit = _WIDEST if tree.draft_probs is None else tree.draft_probs.shape[1]
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            kernel.walk[(1,)](
                rows.values,
                scratch if draft_probs is None else draft_probs,
                _onto(tree.tokens, device),
                _plan(shape, device),
                _onto(uniforms, device),
                scratch,
                out,
                shape.size,
                vocabulary,
                rows.values.stride(0),
                0 if draft_probs is None else draft_probs.stride(0),
                limit,
                rows.temperature,
                RULE=getattr(kernel, kind).value,
                ROWS=getattr(kernel, rows.kind).value,
                WIDE=kernel.TYPES[wide],
                BLOCK=block,
                **options(block),
            )
            refused, node, bonus, used = out.tolist()  # the synchronisation
        if refused:
            # The rule words the error. What only rounding (or a NaN that it does not look at) made
            # the kernel refuse, it decides.
            return rule(tree, target_probs, coins)
        coins.skip(used)
        return Verdict(shape.path(node), bonus)

    def _draft_probs(self, tree: TokenTree, device: torch.device) -> Float[Tensor, "M V"] | None:
        """The draft distributions that the kernel reads, None if the rule reads none."""
        draft_probs, plain = tree.draft_probs, _plain(self.rule)
        if draft_probs is None or plain in (greedy, naive, onehot):
            return None
        if draft_probs.dtype not in (torch.float32, torch.float64):
            raise Unavailable(
                f"fused({self.rule}) reads draft_probs in float32 or float64, not {draft_probs.dtype}"
            )
        return _onto(_rows(draft_probs), device)

    def __repr__(self) -> str:
        return f"fused({self.rule})"


def fused(rule: Rule, *, block: int = BLOCK) -> Fused:
    """The same rule as one kernel that walks the tree on the device: one synchronisation a call.

    The kernel gets the next uniforms of the stream and writes four integers, the last node of the path,
    the bonus, how many uniforms it used and whether the reference must look; reading them is the
    synchronisation. Its arithmetic is the rule's: ratio, residual and renormalisation in float32 (float64
    for float64 rows), the same rule where no mass is left, draws by token id with float64 sums. So the
    verdict is the rule's own on the same stream, except where a uniform falls within rounding of a
    threshold, since exponentials and sums differ in their last bits (through Triton's interpreter: none of
    1200 trees over 128256 tokens).

    Errors are the rule's own too. A tree or row that the kernel cannot pass (logits that are not finite, a
    child with draft probability 0, repeated siblings, rows that are not one-hot for `greedy`) is handed to
    the rule, which words the error from tensors on the device, synchronising as it likes.

    Rows may be a tensor of probabilities (float32 or float64) or `SampledRows`. From logits in float32,
    float16 or bfloat16 the kernel takes the softmax of the visited rows itself, at any temperature. With
    top-k, top-p or min-p, and for float64 logits, the distributions of *all* nodes are computed first, by
    tensor operations without a synchronisation (`N V` floats of memory).

    Rows that nobody vouches for are looked at, as rules look at those that they visit: target rows given as
    probabilities at every call, without waiting; the draft's once for each tree, which waits once more
    (`ModelDrafter` vouches for its own). What is no distribution goes to the rule too.

    The walk is one program on one multiprocessor (its cost: `treespec.verify.fused_kernel`): made for the
    tens to hundreds of nodes of one sequence, not for batches.

    Args:
        rule: `greedy`, `naive`, `chain`, `rrs`, `rrsw` or `onehot`.
        block: tokens that the kernel reads at once, a power of two.

    Returns:
        A verifier with the rule's name, `laws`, `lossless`, `one_hot`, `reference`, `settings`, `using` and
        `require` (which reads tokens, so that calling it synchronises).

    Raises:
        InvalidArgument: for what is no rule.
        Unavailable: for other rules, and where Triton is not installed.
    """
    return Fused(rule, block)


def options(block: int) -> dict[str, Any]:
    """How the kernel is compiled.

    Eight tokens a thread, and leave to use all registers: for sm_80 to sm_100 float32 then compiles
    without spills, or with up to 48 bytes a thread (rows that are no multiple of 16 tokens; `naive` at
    temperature 0 on sm_100).
    """
    plain = {"num_warps": max(1, min(16, block // 256)), "enable_fp_fusion": False}
    return plain if torch.version.hip else plain | {"maxnreg": 128}


def _plain(rule: Rule) -> Rule:
    """The registered object that this rule is, or that it is with settings: what `_KINDS` knows.

    Neither the rule itself, which `using` copies, nor its name would do: others may call theirs `rrs`.
    """
    return rule._plain


def _device_rows(target_probs: Rows, rule: Rule) -> _DeviceRows:
    """The tensor that the kernel reads."""
    half = torch.float16, torch.bfloat16
    if isinstance(target_probs, SampledRows):
        logits, sampling = target_probs.logits, target_probs.sampling
        cut = (
            (sampling.top_k is not None and sampling.top_k < logits.shape[1])
            or (sampling.top_p is not None and sampling.top_p < 1)
            or bool(sampling.min_p)
        )
        if logits.dtype in (torch.float32, *half) and (sampling.greedy or not cut):
            kind = "ARGMAX" if sampling.greedy else "LOGITS"
            return _DeviceRows(_rows(logits), kind, sampling.temperature or 1.0)
        # NaN marks the rows that must not be used; a lone -inf would look like a token cut off.
        bad = ~logits.isfinite().all(-1, keepdim=True)
        return _DeviceRows(sampling(logits).masked_fill(bad, torch.nan), "PROBS")
    if not isinstance(target_probs, Tensor):
        raise Unavailable(
            f"fused({rule}) reads `Sampling.rows(logits)` or a tensor of probabilities, not "
            f"{type(target_probs).__name__}: use the plain rule"
        )
    if target_probs.dtype not in (torch.float32, torch.float64):
        raise Unavailable(
            f"fused({rule}) reads probabilities in float32 or float64, not {target_probs.dtype}: "
            "use the plain rule, or give logits"
        )
    bad = no_distributions(target_probs)[:, None]
    return _DeviceRows(_rows(target_probs.masked_fill(bad, torch.nan)), "PROBS")


def _rows(tensor: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
    """The same rows, each of them contiguous."""
    return tensor if tensor.stride(1) == 1 else tensor.contiguous()


@lru_cache(maxsize=256)
def _plan(shape: TreeShape, device: torch.device) -> Int[Tensor, "4 N"]:
    """`plan_of` on a device."""
    return _onto(plan_of(shape), device)


def _onto(tensor: Shaped[Tensor, "*dims"], device: torch.device) -> Shaped[Tensor, "*dims"]:
    """The tensor on the device, by a copy that does not wait if it is not there yet."""
    if tensor.device == device:
        return tensor
    if tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


@lru_cache
def _kernel() -> ModuleType:
    """The module with the kernel; Triton loads here."""
    try:
        from treespec.verify import fused_kernel
    except ImportError as error:
        raise Unavailable(
            f"fused rules need Triton ({error}): use on_host(rule), or the plain rule"
        ) from error
    return fused_kernel
