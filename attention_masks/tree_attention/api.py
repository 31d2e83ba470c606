"""The one call for tree attention, and the table of what can answer it.

An implementation is a function with the signature of `Implementation`; it may rely on what `attend`
has checked. To add one, write it in a file of this folder and enter it in `IMPLEMENTATIONS`. An
optional dependency is imported in the function that the table holds, and is `Unavailable` where it
is missing. What was asked for by name runs or raises: only `impl="auto"` chooses.
"""

from collections.abc import Sequence
from typing import NoReturn, Protocol

from jaxtyping import Float
from torch import Tensor

from attention_masks._inputs import checked_window
from attention_masks.errors import InvalidInput, Unavailable
from attention_masks.topology import Topology
from attention_masks.tree_attention.reference import reference
from attention_masks.tree_attention.sdpa import sdpa
from attention_masks.tree_attention.tree_pass import TreePass

__all__ = ["IMPLEMENTATIONS", "Implementation", "attend", "choose", "tree_attention"]


class Implementation(Protocol):
    """Tree attention of checked inputs: raises `Unsupported` for an option that it cannot do."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        tree_pass: TreePass,
        /,
        *,
        scale: float,
        softcap: float | None,
        window: int | None,
    ) -> Tensor:
        """Output `[batch, q_heads, rows, head_dim]` in q's dtype."""
        ...


def _triton(*_: object, **__: object) -> NoReturn:
    raise Unavailable(
        "impl='triton' is not available yet: use impl='sdpa', 'reference' or 'auto' instead"
    )


IMPLEMENTATIONS: dict[str, Implementation] = {
    "reference": reference,
    "sdpa": sdpa,
    "triton": _triton,
}


def choose(*, softcap: float | None = None) -> str:
    """The name of the implementation that `impl="auto"` takes: sdpa unless there is a softcap."""
    return "sdpa" if softcap is None else "reference"


def tree_attention(
    q: Float[Tensor, "batch q_heads rows head_dim"],
    k: Float[Tensor, "batch kv_heads slots head_dim"],
    v: Float[Tensor, "batch kv_heads slots head_dim"],
    topology: Topology,
    prefix_len: int,
    *,
    rows: Sequence[int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    window: int | None = None,
    impl: str = "auto",
) -> Float[Tensor, "batch q_heads rows head_dim"]:
    """Attention of tree nodes over a prefix and the nodes above them.

    Each queried node attends to the `prefix_len` keys before the tree, to itself and to its
    ancestors. Builds its mask anew: for several layers make one `TreePass` and call `attend`.

    Args:
        q: one query for each node of `rows`, in that order.
        k: keys. Slot j is prefix key j, slot `prefix_len + i` is node i; what follows is not used
            and may hold anything, NaN included.
        v: values, in the same slots.
        topology: of all nodes whose keys are there, from `attention_masks.topology(parents)`.
        prefix_len: number of cached keys before node 0.
        rows: the nodes that q holds; all of them by default. A drafter that grows a tree level by
            level queries its newest nodes only.
        scale: factor on the scores, `head_dim ** -0.5` by default.
        softcap: bound of the scores, `softcap * tanh(score / softcap)`, applied before the mask.
        window: keys at `window` positions or more before a row are hidden; a node's position is
            `prefix_len + depth`. The `sliding_window` of transformers.
        impl: "reference", "sdpa", or "auto" to have `choose` choose.

    Returns:
        Output in q's shape and dtype.

    Raises:
        InvalidInput: if shapes, dtypes, devices or numbers do not fit together.
        Unsupported: if `impl` cannot do what is asked (sdpa: softcap).
        Unavailable: if `impl` is not there.

    Not covered: different trees or prefixes in one batch, dropout, attention sinks, ALiBi.
    """
    tree_pass = TreePass(topology, prefix_len, rows)
    return attend(q, k, v, tree_pass, scale=scale, softcap=softcap, window=window, impl=impl)


def attend(
    q: Float[Tensor, "batch q_heads rows head_dim"],
    k: Float[Tensor, "batch kv_heads slots head_dim"],
    v: Float[Tensor, "batch kv_heads slots head_dim"],
    tree_pass: TreePass,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    window: int | None = None,
    impl: str = "auto",
) -> Float[Tensor, "batch q_heads rows head_dim"]:
    """The same as `tree_attention`, with the masks of a pass that many layers share.

    Args:
        q: one query for each row of `tree_pass`.
        k: keys, at least `tree_pass.key_count` slots.
        v: values, in the same slots.
        tree_pass: tree, prefix and rows; keeps the masks.
        scale: see `tree_attention`, as for all that follow.
        softcap: bound of the scores.
        window: width of the sliding window.
        impl: name of the implementation, or "auto".

    Returns:
        Output in q's shape and dtype.

    Raises:
        InvalidInput: if shapes, dtypes, devices or numbers do not fit together.
        Unsupported: if `impl` cannot do what is asked (sdpa: softcap).
        Unavailable: if `impl` is not there.
    """
    name = choose(softcap=softcap) if impl == "auto" else impl
    if name not in IMPLEMENTATIONS:
        known = ", ".join(repr(known) for known in ("auto", *IMPLEMENTATIONS))
        raise InvalidInput(f"impl = {impl!r} is not known: it must be one of {known}")
    window = checked_window(window)
    if softcap is not None and not softcap > 0:
        raise InvalidInput(f"softcap = {softcap}, but it bounds the scores: above 0, or None")
    _check(q, k, v, tree_pass)
    if scale is None:
        scale = q.shape[-1] ** -0.5
    return IMPLEMENTATIONS[name](q, k, v, tree_pass, scale=scale, softcap=softcap, window=window)


def _check(q: Tensor, k: Tensor, v: Tensor, tree_pass: TreePass) -> None:
    """Refuse tensors that do not fit, in a few microseconds: this runs in every layer."""
    q_shape, k_shape = q.shape, k.shape
    if len(q_shape) != 4 or len(k_shape) != 4:
        raise InvalidInput(
            f"q is {list(q_shape)} and k {list(k_shape)}, but q must be "
            "[batch, q_heads, rows, head_dim] and k, v [batch, kv_heads, slots, head_dim]"
        )
    if v.shape != k_shape:
        raise InvalidInput(
            f"k is {list(k_shape)} and v {list(v.shape)}, but they must have one shape"
        )
    if q_shape[0] != k_shape[0] or q_shape[3] != k_shape[3]:
        raise InvalidInput(
            f"q is {list(q_shape)} and k {list(k_shape)}, but batch and head_dim must be equal"
        )
    if k_shape[1] == 0 or q_shape[1] % k_shape[1]:
        raise InvalidInput(
            f"q has {q_shape[1]} heads and k {k_shape[1]}, but q_heads must be a multiple"
        )
    if q_shape[2] != tree_pass.row_count:
        raise InvalidInput(
            f"q holds {q_shape[2]} rows, but {tree_pass.row_count} of the tree's "
            f"{tree_pass.topology.size} nodes are queried: pass rows= if q holds only some nodes"
        )
    if k_shape[2] < tree_pass.key_count:
        raise InvalidInput(
            f"k has {k_shape[2]} slots, but prefix_len + nodes = {tree_pass.prefix_len} + "
            f"{tree_pass.topology.size} = {tree_pass.key_count} keys are needed"
        )
    if not (q.dtype == k.dtype == v.dtype and q.is_floating_point()):
        raise InvalidInput(
            f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}, but they must be of one floating dtype"
        )
    if not q.device == k.device == v.device:
        raise InvalidInput(
            f"q, k, v are on {q.device}, {k.device}, {v.device}, but must be on one device"
        )
