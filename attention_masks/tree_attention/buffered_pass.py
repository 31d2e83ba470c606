"""A pass whose tree is in a buffer on the device and can change between runs, for captured graphs."""

import torch
from jaxtyping import Int32
from torch import Tensor

from attention_masks.errors import InvalidInput
from attention_masks.tree_attention.pass_arrays import PassArrays
from attention_masks.tree_attention.tree_pass import AnyPass


class BufferedPass(AnyPass):
    """A pass over given arrays with a fixed capacity of rows, nodes and keys.

    Only kernels can run it: no other implementation reads the tree from the device. A graph captured
    with it uses whatever `arrays.buffer` holds at the replay; scratch lives as long as the pass.

    Args:
        arrays: arrays on the device of the run.
        key_count: largest number of slots, prefix and nodes. Longer prefixes are not detected.
        counters: counters of a pass that this one stands for (`AnyPass.counters`); by default its own.

    Raises:
        InvalidInput: if `key_count` is smaller than the number of nodes.
    """

    def __init__(
        self,
        arrays: PassArrays,
        key_count: int,
        counters: Int32[Tensor, " counters"] | None = None,
    ) -> None:
        super().__init__()
        if key_count < arrays.nodes:
            raise InvalidInput(f"key_count = {key_count} has no room for {arrays.nodes} nodes")
        self.batch = arrays.buffer.shape[0]
        self.row_count, self.key_count = arrays.rows, key_count
        self._arrays[arrays.buffer.device] = arrays
        if counters is not None:
            self._counters[counters.device] = counters

    def key_counts(self, batch: int) -> list[int]:
        """0 for each sequence: only the buffer knows the number of used slots."""
        return [0] * batch

    def arrays(self, device: torch.device) -> PassArrays:
        """The given arrays.

        Raises:
            InvalidInput: if they are on another device.
        """
        if device not in self._arrays:
            arrays_device = ", ".join(map(str, self._arrays))
            raise InvalidInput(f"the tree's arrays are on {arrays_device}, but q is on {device}")
        return self._arrays[device]
