"""A pass whose tree is in a buffer on the device, to be changed between runs: for captured graphs."""

import torch

from attention_masks.errors import InvalidInput
from attention_masks.tree_attention.pass_arrays import PassArrays
from attention_masks.tree_attention.tree_pass import AnyPass

__all__ = ["BufferedPass"]


class BufferedPass(AnyPass):
    """Arrays that were made elsewhere, with room for so many rows, nodes and keys.

    Only kernels can run it: nobody else reads the tree on the device. A graph that was captured with
    it runs for whatever `arrays.buffer` holds then; scratch is kept as long as the pass.

    Args:
        arrays: on the device of the run.
        key_count: slots at most, prefix and nodes. Prefixes beyond it are not noticed.

    Raises:
        InvalidInput: if there is no room for the nodes.
    """

    def __init__(self, arrays: PassArrays, key_count: int) -> None:
        super().__init__()
        if key_count < arrays.nodes:
            raise InvalidInput(f"key_count = {key_count} has no room for {arrays.nodes} nodes")
        self.batch = arrays.buffer.shape[0]
        self.row_count, self.key_count = arrays.rows, key_count
        self._arrays[arrays.buffer.device] = arrays

    def key_counts(self, batch: int) -> list[int]:
        """None of the slots is known to be used: that stands in the buffer."""
        return [0] * batch

    def arrays(self, device: torch.device) -> PassArrays:
        """The arrays as they were given.

        Raises:
            InvalidInput: if they are on another device.
        """
        if device not in self._arrays:
            held = ", ".join(map(str, self._arrays))
            raise InvalidInput(f"the tree's arrays are on {held}, but q is on {device}")
        return self._arrays[device]
