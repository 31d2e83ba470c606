"""Acceptance rules as a single kernel on the device, with one synchronisation per step."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from attention_masks._kernels import why_too_old
from treespec.checks import integer
from treespec.errors import RefusedTree, Unavailable, in_words
from treespec.protocols import Coins, Rows
from treespec.sampling.coins import TorchCoins
from treespec.sampling.distributions import SampledRows, Sampling
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.tree.probabilities import no_distributions
from treespec.tree.shape import TreeShape
from treespec.tree.unread_tree import settle, unread
from treespec.verify.chain import chain
from treespec.verify.checked import TargetRows, require_width
from treespec.verify.engine.wrapped import WrappedRule, plan_of
from treespec.verify.greedy import greedy
from treespec.verify.greedy_multidraft import greedy_multidraft
from treespec.verify.lenient import lenient
from treespec.verify.naive import naive
from treespec.verify.onehot import onehot
from treespec.verify.rrs import rrs
from treespec.verify.rrsw import rrsw
from treespec.verify.rule import Rule
from treespec.verify.spechub import spechub

_KINDS = {
    greedy: "GREEDY",
    naive: "NAIVE",
    chain: "RRS",
    rrs: "RRS",
    rrsw: "RRSW",
    onehot: "ONEHOT",
    lenient: "RRS",
    greedy_multidraft: "MULTIDRAFT",
    spechub: "HUB",
}
_SCRATCH_ROWS = {"GREEDY": 0, "NAIVE": 0, "RRS": 2, "ONEHOT": 2}
"""Rows that a kind of kernel writes; 3 for the others, which change the draft's rows too."""
_UNIFORMS_A_NODE = {"MULTIDRAFT": 2, "HUB": 3}
"""Upper bound on the uniforms of a visited node; 1 for the others, counted for every node of the tree."""

ON_HOST = {
    "kseq": "its division factor is the root of a sum over the vocabulary, found in float64",
    "canonical": "its weights are a flow over pairs of tokens and sums in the order of p / q",
    "optimal_transport": "its plan is a linear programme over sets of tokens",
    "block": "its tests go from the leaf up and read the whole chain's rows",
    "gbv": "it sorts rows by p / q to choose a path, and tests from the leaf up",
    "traversal": "it changes the rows of parents after each rejected leaf and reads most of the tree",
    "typical": "it compares all paths by the rows and entropies along them",
    "synthetic_acceptance": "given rates decide, on numbers that the host has",
}
"""Why a rule has no kernel, by its file."""
_LARGEST_TOKEN_ID = 1 << 30
"""Limit on token ids where no draft distributions state the vocabulary."""

BLOCK = 4096
"""Number of tokens that the kernel reads at once."""


@runtime_checkable
class _Stream(Protocol):
    """Coins that reveal their next uniforms."""

    def peek(self, count: int) -> Sequence[float]: ...

    def skip(self, count: int) -> None: ...


class _DeviceRows(NamedTuple):
    """Target rows as the kernel reads them: values, their kind, and the temperature if they are logits."""

    values: Float[Tensor, "N V"]
    kind: str
    temperature: float = 1.0


class Fused(WrappedRule):
    """The verifier that `fused` returns, with the name and the attributes of its rule."""

    def __init__(self, rule: Rule, block: int = BLOCK) -> None:
        super().__init__(rule)
        if reason := why_on_host(rule):
            covered = ", ".join(map(str, _KINDS))
            raise Unavailable(
                f"rule '{rule}' has no fused kernel: {reason} (only {covered} of treespec.verify have "
                f"one): use on_host({rule}), which also synchronises once"
            )
        block = integer("block", block, error=Unavailable)
        if block < 1 or block & (block - 1):
            raise Unavailable(f"block = {block}, but must be a power of two")
        _kernel()
        self.block = block

    def __call__(self, tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
        """Return the rule's verdict; consumes as many uniforms of `coins` as the rule would.

        Raises:
            Unavailable: for tensors that the kernel cannot run on, rows that it cannot read, and coins
                that do not reveal their uniforms.
            TreespecError: whatever the rule itself raises.
        """
        launched = self.decide_ahead(tree, target_probs, coins)
        return self.rule(tree, target_probs, coins) if launched is None else launched.verdict()

    def decide_ahead(
        self, tree: TokenTree, target_probs: Rows, coins: Coins, /
    ) -> "Launched | None":
        """Launch the kernel without waiting for it; None if the rule must decide.

        Raises:
            Unavailable, TreespecError: see the call.
        """
        TargetRows.of(tree, target_probs)  # refuses arguments that are not a tree and rows
        rule, plain, shape = self.rule, _plain(self.rule), tree.shape
        if not isinstance(coins, TorchCoins) and not isinstance(
            coins, _Stream
        ):  # the first is quick
            raise Unavailable(
                f"fused({rule}) passes uniforms to a kernel, so it needs coins with peek and skip, such as "
                f"TorchCoins, not {type(coins).__name__}: use the plain rule"
            )
        # `covers` reads no tokens, so it does not synchronise; the kernel finds repeated siblings.
        if reason := rule.covers(shape, tree.law):
            raise RefusedTree(reason)
        if tree.is_mixed and plain not in (greedy, naive):
            raise Unavailable(
                f"fused({rule}) does not cover mixed trees: use on_host({rule}), which also synchronises "
                "once"
            )
        if tree.is_mixed:
            rule.require(tree)  # whose tokens the host has: nobody drafts such trees on a device
        kernel = _kernel()
        rows = _device_rows(target_probs, rule)
        device, vocabulary = rows.values.device, rows.values.shape[1]
        if device.type != "cuda" and not kernel.INTERPRETED:
            raise Unavailable(
                f"fused({rule}) runs on CUDA tensors, not on '{device}': use the plain rule, or set "
                "TRITON_INTERPRET=1 before Triton is imported to try the kernel on the CPU"
            )
        require_width(tree, vocabulary)
        if not tree.is_vouched and not tree.look_at_rows():
            return None
        kind, draft_probs = _KINDS[plain], self._draft_probs(tree, device)
        wide = rows.values.dtype if rows.kind == "PROBS" else torch.float32
        if draft_probs is not None:
            wide = torch.promote_types(wide, draft_probs.dtype)
        scratch = torch.empty(_SCRATCH_ROWS.get(kind, 3) * vocabulary, dtype=wide, device=device)
        count = _UNIFORMS_A_NODE.get(kind, 1) * shape.size
        uniforms = torch.tensor(coins.peek(count), dtype=torch.float64)
        out = torch.empty(4, dtype=torch.int32, device=device)
        block = min(self.block, 1 << max(vocabulary - 1, 0).bit_length())
        limit = _LARGEST_TOKEN_ID if tree.draft_probs is None else tree.draft_probs.shape[1]
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
                LENIENCE=rule.settings.get("lenience", 1.0),
                RULE=getattr(kernel, kind).value,
                ROWS=getattr(kernel, rows.kind).value,
                WIDE=kernel.TYPES[wide],
                BLOCK=block,
                **options(block),
            )
        return Launched(rule, tree, target_probs, coins, out)

    def _draft_probs(self, tree: TokenTree, device: torch.device) -> Float[Tensor, "M V"] | None:
        """The draft distributions that the kernel reads; None if the rule reads none."""
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


class Launched:
    """A decision that the kernel is making.

    Args:
        rule: decides if the kernel refuses.
        tree, rows, coins: its arguments.
        out: what the kernel writes: whether it refused, the last node of the path, the bonus, and the
            number of uniforms used.
    """

    def __init__(
        self, rule: Rule, tree: TokenTree, rows: Rows, coins: Any, out: Int[Tensor, "4"]
    ) -> None:
        self._rule, self._tree, self._rows, self._coins, self.out = rule, tree, rows, coins, out
        self.stands = False
        """Whether the verdict is the kernel's; valid after `verdict`."""

    def verdict(self) -> Verdict:
        """Wait for the device, once, and return the verdict; ids of the tree are read along with it.

        Raises:
            TreespecError: whatever the rule raises, if the kernel refused.
        """
        tree, more = self._tree, unread(self._tree)
        numbers = self.out
        if more is not None and more.device == numbers.device:
            numbers = torch.cat([numbers.long(), more])
        refused, node, bonus, used, *ids = numbers.tolist()  # the synchronisation
        settle(tree, ids)
        if refused:
            # The rule raises the error. If only rounding, or a NaN that the rule does not read, made the
            # kernel refuse, the rule decides.
            return self._rule(tree, self._rows, self._coins)
        self.stands = True
        self._coins.skip(used)
        return Verdict(tree.shape.path(node), bonus)


def fused(rule: Rule, *, block: int = BLOCK) -> Fused:
    """Return a verifier that runs `rule` as one kernel on the device, with one synchronisation per call.

    The kernel receives the next uniforms of the stream and writes four integers: the last node of the
    path, the bonus, the number of uniforms used, and whether the reference must decide. Reading them is
    the synchronisation. The arithmetic is the rule's: ratio, residual and renormalisation in float32
    (float64 for float64 rows), the same fallback where no mass is left, and draws by token id with float64
    sums. The verdict on the same stream thus equals the rule's, except where a uniform falls within
    rounding of a threshold, since exponentials and sums differ in their last bits (through Triton's
    interpreter: in none of 1200 trees over 128256 tokens).

    Errors are the rule's as well. A tree or row that the kernel rejects (logits that are not finite, a
    child with draft probability 0, repeated siblings, rows that are not one-hot for `greedy`) is passed to
    the rule, which raises the error from tensors on the device and may synchronise more often.

    Rows may be a tensor of probabilities (float32 or float64) or `SampledRows`. For logits in float32,
    float16 or bfloat16 the kernel computes the softmax of the visited rows itself, at any temperature. With
    truncations, and for float64 logits, the distributions of *all* nodes are computed first, by
    tensor operations without a synchronisation (`N V` floats of memory).

    Rows that are not vouched for are validated: target probabilities at every call, without waiting for
    the device; draft rows once per tree, at the cost of one more synchronisation (`ModelDrafter` vouches
    for its own). Rows that are not distributions are passed to the rule too.

    The walk is one program on one multiprocessor (for its cost see `verify.engine.fused_kernel`): it is
    meant for the tens to hundreds of nodes of one sequence, not for batches.

    Args:
        rule: `greedy`, `naive`, `chain`, `rrs`, `rrsw`, `onehot`, `greedy_multidraft`, `spechub` or
            `lenient` (compiled anew for each lenience).
        block: number of tokens that the kernel reads at once, a power of two.

    Returns:
        A verifier with the rule's name, `laws`, `lossless`, `one_hot`, `reference`, `settings`, `using` and
        `require` (which reads tokens, so that calling it synchronises).

    Raises:
        InvalidArgument: if `rule` is not a rule.
        Unavailable: for other rules, or if Triton is not installed.
    """
    return Fused(rule, block)


def options(block: int) -> dict[str, Any]:
    """Compile options of the kernel.

    Eight tokens per thread, and permission to use all registers: on sm_80 to sm_100, float32 then compiles
    without spills, or with up to 48 bytes per thread (rows whose length is not a multiple of 16; `naive` at
    temperature 0, and `spechub`, on sm_100).
    """
    plain = {"num_warps": max(1, min(16, block // 256)), "enable_fp_fusion": False}
    return plain if torch.version.hip else plain | {"maxnreg": 128}


def why_on_host(rule: Rule) -> str | None:
    """Why no kernel decides by a rule, so that it is decided on the host; None if one does.

    Example:
        >>> from treespec import verify
        >>> why_on_host(verify.kseq)
        'its division factor is the root of a sum over the vocabulary, found in float64'
        >>> why_on_host(verify.rrs)
    """
    plain = _plain(rule)
    if plain in _KINDS:
        return None
    return ON_HOST.get(
        plain.__module__.removeprefix("treespec.verify."), "it is a rule of your own"
    )


@lru_cache
def why_no_kernel(device: torch.device) -> str | None:
    """Why the kernel does not run on a device; None if it does. Tried once, on a tree of one node.

    Triton compiles at the first launch, which needs a driver that it knows and a C compiler. GPUs that it
    does not compile for are not tried.
    """
    if why := why_too_old(device):
        return f"the kernel {why}"
    root = torch.zeros(1, dtype=torch.long, device=device)
    tree = TokenTree(TreeShape.chain(0), root, None, Law.DETERMINISTIC)
    rows = Sampling(temperature=0.0).rows(torch.zeros(1, 2, device=device))
    try:
        fused(greedy)(tree, rows, TorchCoins(0))
    except torch.OutOfMemoryError:
        raise
    except Exception as problem:  # the compiler raises errors of many classes
        return in_words(problem, "Triton")
    return None


def _plain(rule: Rule) -> Rule:
    """The registered rule that this rule is, or of which it is a copy with settings: the key of `_KINDS`.

    Neither the rule itself, which `using` copies, nor its name would do: a user's rule may be called `rrs`.
    """
    return rule._plain


def _device_rows(target_probs: Rows, rule: Rule) -> _DeviceRows:
    """The tensor that the kernel reads."""
    half = torch.float16, torch.bfloat16
    if isinstance(target_probs, SampledRows):
        logits, sampling = target_probs.logits, target_probs.sampling
        if type(target_probs) is not SampledRows:  # processed by their paths
            return _DeviceRows(torch.stack([target_probs[i] for i in range(len(logits))]), "PROBS")
        cut = sampling.truncates(logits.shape[1])
        if logits.dtype in (torch.float32, *half) and not cut:
            kind = "ARGMAX" if sampling.greedy else "LOGITS"
            return _DeviceRows(_rows(logits), kind, sampling.temperature or 1.0)
        # NaN marks rows that must not be used; a single -inf would look like a token that was cut off.
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
    """The same rows, each contiguous."""
    return tensor if tensor.stride(1) == 1 else tensor.contiguous()


@lru_cache(maxsize=256)
def _plan(shape: TreeShape, device: torch.device) -> Int[Tensor, "4 N"]:
    """`plan_of` on a device."""
    return _onto(plan_of(shape), device)


def _onto(tensor: Shaped[Tensor, "*dims"], device: torch.device) -> Shaped[Tensor, "*dims"]:
    """The tensor on the device; copied without waiting if it is elsewhere."""
    if tensor.device == device:
        return tensor
    if tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


@lru_cache
def _kernel() -> ModuleType:
    """The module with the kernel; Triton is imported here."""
    try:
        from treespec.verify.engine import fused_kernel
    except ImportError as error:
        raise Unavailable(
            f"fused rules need Triton ({error}): use on_host(rule), or the plain rule"
        ) from error
    return fused_kernel
