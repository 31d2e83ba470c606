"""Move the accepted rows of a cache next to the committed ones: all layers at once, in place."""

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from attention_masks._inputs import checked_integer
from attention_masks._kernels import load_kernels
from attention_masks._plain import plain_integers
from attention_masks.errors import InvalidInput, Unavailable, Unsupported

log = logging.getLogger("attention_masks")

MOST_ROWS_ONE_BY_ONE = 3
"""Up to this many rows are copied one by one without a kernel: a gather costs as much as four copies."""

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def commit_rows(
    keys: Shaped[Tensor, "layers batch kv_heads slots key_dim"],
    values: Shaped[Tensor, "layers batch kv_heads slots value_dim"] | None,
    source: Sequence[int] | Int[Tensor, " rows"],
    start: int,
    *,
    impl: str = "auto",
) -> None:
    """Move slot `source[i]` to slot `start + i`, in every layer, sequence and head, in place.

    Source and destination may overlap: every moved row has its value from before the call. Slots that
    are not destinations stay unchanged.

        >>> import torch
        >>> keys = torch.arange(6.0).reshape(1, 1, 1, 6, 1)
        >>> commit_rows(keys, None, [3, 5], 2)
        >>> keys.flatten().tolist()
        [0.0, 1.0, 3.0, 5.0, 4.0, 5.0]

    On CUDA, one launch moves keys and values of all layers; it reads and writes each moved row once.

    Args:
        keys: any dtype, any strides.
        values: in the same slots, of any dtype and dimension; None if there are none.
        source: slots, strictly increasing, the first at least `start`, so that no row moves upwards.
            Integers and tensors on the CPU are checked, and are copied to the device without waiting. A
            tensor on the device (int32 or int64) costs no copy and no synchronisation, and therefore *is
            not checked*: if it breaks the rule, the rows at `start, start + 1, ...` are undefined. The
            kernel never moves rows from outside the slots.
        start: first destination.
        impl: "torch" (gathers a copy of the rows, then writes it), "triton", or "auto": the kernel on
            CUDA if Triton is installed, else torch.

    Raises:
        InvalidInput: if shapes, devices or numbers do not fit together.
        Unsupported: for tensors that need gradients.
        Unavailable: if `impl="triton"` cannot run: not installed, or a CPU outside its interpreter.
    """
    RowMover(keys, values, impl=impl)(source, start)


class RowMover:
    """`commit_rows` for a cache whose memory stays in place: its tensors are checked once.

    Arguments and errors are those of `commit_rows`.
    """

    def __init__(
        self,
        keys: Shaped[Tensor, "layers batch kv_heads slots key_dim"],
        values: Shaped[Tensor, "layers batch kv_heads slots value_dim"] | None,
        *,
        impl: str = "auto",
    ) -> None:
        if impl not in ("auto", "torch", "triton"):
            raise InvalidInput(
                f"impl = {impl!r} is not known: it must be 'auto', 'torch' or 'triton'"
            )
        _check_tensors(keys, values)
        self._keys, self._values, self._kernel = keys, values, None
        if impl == "triton" or (impl == "auto" and _choose(keys.device) == "triton"):
            self._kernel = _kernel(keys.device)

    def __call__(self, source: Sequence[int] | Int[Tensor, " rows"], start: int) -> None:
        """Move slot `source[i]` to slot `start + i`, for all i."""
        keys, values = self._keys, self._values
        for name, rows in (("keys", keys), ("values", values)):
            if rows is not None and rows.requires_grad and torch.is_grad_enabled():
                raise Unsupported(
                    f"{name} need gradients, but rows are moved in place: use torch.no_grad()"
                )
        start = checked_integer("start", start)
        slots = _checked_source(source, start, keys)
        if not len(slots):
            return
        if self._kernel is not None:
            _launch(self._kernel, keys, values, _index(slots, keys.device), start)
            return
        for rows in (keys, values):
            if rows is not None:
                _move(rows, slots, start)


def _move(rows: Tensor, slots: list[int] | Tensor, start: int) -> None:
    if isinstance(slots, list) and len(slots) <= MOST_ROWS_ONE_BY_ONE:
        # Rows never move upwards, so none is overwritten before it is read.
        for target, slot in enumerate(slots, start):
            rows.select(3, target).copy_(rows.select(3, slot))
    else:
        index = _index(slots, rows.device)
        rows.narrow(3, start, len(index)).copy_(rows.index_select(3, index))


def _launch(kernel: Any, keys: Tensor, values: Tensor | None, index: Tensor, start: int) -> None:
    layers, batch, kv_heads, slots, _ = keys.shape
    if not layers * batch * kv_heads:
        return
    keys = keys.view(_WORDS[keys.itemsize])
    values_or_keys = keys if values is None else values.view(_WORDS[values.itemsize])
    key_dim, value_dim = keys.shape[-1], 0 if values is None else values.shape[-1]
    # A power of two that holds the wider of the two; at least what a warp copies at once.
    block = min(kernel.BLOCK_D, max(32, 1 << (max(key_dim, value_dim) - 1).bit_length()))
    key_blocks, value_blocks = -(-key_dim // block), -(-value_dim // block)
    if not key_blocks + value_blocks:
        return
    launch = {} if kernel.INTERPRETED else {"num_warps": 4, "num_stages": 1}
    if not kernel.INTERPRETED:
        launch["enable_fp_fusion"] = False
    # Triton launches on the current device, which need not be the tensors' device.
    with torch.cuda.device(keys.device if keys.is_cuda else -1):
        kernel.move_rows[(layers * batch * kv_heads, key_blocks + value_blocks)](
            keys, values_or_keys, index, start, len(index), slots, batch, kv_heads,
            key_dim, key_blocks, *keys.stride(), value_dim, *values_or_keys.stride(),
            BLOCK_T=kernel.BLOCK_T, BLOCK_D=block, **launch,
        )  # fmt: skip


def _check_tensors(keys: Tensor, values: Tensor | None) -> None:
    for name, rows in (("keys", keys), ("values", values)):
        if rows is None:
            continue
        if rows.ndim != 5 or rows.shape[:4] != keys.shape[:4]:
            raise InvalidInput(
                f"{name} are {list(rows.shape)}, but must be [layers, batch, kv_heads, slots, dim], equal "
                f"in all but the last dimension (keys are {list(keys.shape)})"
            )
        if rows.device != keys.device:
            raise InvalidInput(f"{name} are on {rows.device}, keys on {keys.device}")
        if any(not step and size > 1 for step, size in zip(rows.stride(), rows.shape, strict=True)):
            raise InvalidInput(f"{name} are expanded: several rows share memory and cannot move")
        if rows.itemsize not in _WORDS:
            raise Unsupported(f"{name} are {rows.dtype}, but elements must have at most 8 bytes")


def _checked_source(source: Any, start: int, keys: Tensor) -> list[int] | Int[Tensor, " rows"]:
    """The slots, checked; unchecked if they are on a device, where checking would wait."""
    slots, device = keys.shape[3], keys.device
    if start < 0 or start + len(source) > slots:
        raise InvalidInput(
            f"start = {start}: {len(source)} rows go to slots {start}..{start + len(source) - 1}, "
            f"but there are {slots} slots"
        )
    if isinstance(source, Tensor):
        if source.dtype not in (torch.int32, torch.int64) or source.ndim != 1:
            raise InvalidInput(
                f"source is {source.dtype} {list(source.shape)}, but must be a list of int32 or int64"
            )
        if source.device.type != "cpu":
            if source.device != device:
                raise InvalidInput(f"source is on {source.device}, keys on {device}")
            return source.contiguous()
        source = source.tolist()
    plain = plain_integers(source)
    if plain is None:
        plain = [checked_integer(f"source[{i}]", slot) for i, slot in enumerate(source)]
    numbers = [*plain]
    for i, slot in enumerate(numbers):
        if i and slot <= numbers[i - 1]:
            raise InvalidInput(
                f"source[{i}] = {slot} after {numbers[i - 1]}, but source must increase strictly: {numbers}"
            )
        if slot < start:
            raise InvalidInput(
                f"source[{i}] = {slot} is below start = {start}, but no row moves upwards: {numbers}"
            )
    if numbers and numbers[-1] >= slots:
        raise InvalidInput(
            f"source[{len(numbers) - 1}] = {numbers[-1]}, but there are {slots} slots: {numbers}"
        )
    return numbers


def _index(slots: list[int] | Tensor, device: torch.device) -> Tensor:
    """The slots on the device, copied without waiting."""
    if isinstance(slots, Tensor):
        return slots
    index = torch.tensor(slots, dtype=torch.int64)
    return (index.pin_memory() if device.type == "cuda" else index).to(device, non_blocking=True)


@lru_cache
def _choose(device: torch.device) -> str:
    """The implementation that `impl="auto"` takes on this device; logged once."""
    name, missing = "torch", ""
    if device.type == "cuda":
        try:
            _kernel(device)
            name = "triton"
        except Unavailable as error:
            missing = f" ({error})"
    log.info("commit_rows on %s: impl='auto' takes '%s'%s", device, name, missing)
    return name


def _kernel(device: torch.device) -> Any:
    """The module with the kernel; Triton is imported here."""
    return load_kernels("attention_masks.commit_kernel", device, "rows", "impl='torch' or 'auto'")
