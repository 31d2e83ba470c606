"""What the layers of one forward pass over tree nodes share: sizes, rows and masks."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor

from attention_masks._inputs import checked_prefix_len, checked_rows
from attention_masks.topology import Topology
from attention_masks.tree_attention.pass_arrays import PassArrays, fill
from attention_masks.tree_attention.tiles import COUNTED


class AnyPass:
    """Base class of passes: their sizes, the arrays that kernels read, and scratch memory.

    Attributes:
        batch: number of sequences with their own tree; 1 if all sequences of a batch share one tree.
        row_count: rows of q in each sequence, padding included.
        key_count: number of slots that the longest sequence uses.
    """

    batch: int = 1
    row_count: int
    key_count: int

    def __init__(self) -> None:
        self._arrays: dict[torch.device, PassArrays] = {}
        self._scratch: dict[torch.device, Tensor] = {}
        self._counters: dict[torch.device, Tensor] = {}

    def key_counts(self, batch: int) -> list[int]:
        """Number of slots that each sequence of a batch uses, as far as the host knows."""
        return [self.key_count] * batch

    def arrays(self, device: torch.device) -> PassArrays:
        """Lengths, rows and tree for kernels; copied to the device at first use."""
        if device not in self._arrays:
            with torch.inference_mode(False):
                self._arrays[device] = self._make_arrays().to(device)
        return self._arrays[device]

    def scratch(self, device: torch.device, numbers: int) -> Float[Tensor, " numbers"]:
        """Memory for partial sums, shared by the layers of the pass, which run one after another."""
        memory = self._scratch.get(device)
        if memory is None or memory.numel() < numbers:
            with torch.inference_mode(False):
                memory = torch.empty(numbers, dtype=torch.float32, device=device)
            self._scratch[device] = memory
        return memory[:numbers]

    def counters(self, device: torch.device) -> Int32[Tensor, " counters"]:
        """Zeros by which programs find out which is the last; each launch leaves them zero again."""
        if device not in self._counters:
            with torch.inference_mode(False):
                zeros = torch.zeros(COUNTED, dtype=torch.int32, device=device)
            self._counters[device] = zeros
        return self._counters[device]

    def _make_arrays(self) -> PassArrays:
        raise NotImplementedError


class TreePass(AnyPass):
    """The queried nodes of a tree after a prefix, with each mask that the layers need, made once.

    Make one for each forward pass and pass it to `attend` in every layer. Window, dtype and device
    come from the layer: a model that mixes them gets one mask for each combination, at first use.

    The key of prefix key j is in slot j, that of node i in slot `prefix_len + i`. Slots from
    `key_count` on are not used.

    Args:
        topology: tree of all nodes whose keys are in the cache, the queried ones included. Committed
            tokens that the model has not run yet come first, as a chain above the root.
        prefix_len: number of cached keys before node 0.
        rows: the queried nodes, in the order of q's rows; all of them by default.

    Raises:
        InvalidInput: if `prefix_len` is negative, or `rows` is empty or not in the tree.
    """

    def __init__(
        self, topology: Topology, prefix_len: int, rows: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        self.topology = topology
        self.prefix_len = checked_prefix_len(prefix_len)
        self.rows = checked_rows(topology, rows)
        self.row_count = len(self.rows)
        self.key_count = self.prefix_len + topology.size
        depths = [topology.depths[node] for node in self.rows]
        self._shallowest, self._deepest = min(depths), max(depths)
        self._kept: dict[Hashable, Any] = {}

    def __repr__(self) -> str:
        return f"TreePass({self.topology}, prefix_len={self.prefix_len}, rows={self.rows})"

    def keys(self, window: int | None = None) -> slice:
        """The slots that hold every key that any row sees: all slots unless there is a window."""
        window = self._binding(window)
        if window is None:
            return slice(0, self.key_count)
        oldest = self.prefix_len + self._shallowest - window + 1
        return slice(min(max(oldest, 0), self.prefix_len), self.key_count)

    def cuts_prefix(self, window: int | None) -> bool:
        """Whether the window hides, from some row, a prefix key that `keys(window)` holds."""
        window = self._binding(window)
        return window is not None and self._deepest > self._shallowest

    def mask(
        self, window: int | None, device: torch.device
    ) -> Bool[Tensor, "rows prefix_and_nodes"]:
        """Which of all `key_count` keys each row sees: the result of `dense_mask`."""
        # Imported here: only implementations that read a dense mask need it.
        from attention_masks.dense import dense_mask

        window = self._binding(window)
        return self.kept(
            ("mask", window, device),
            lambda: dense_mask(
                self.topology.to(device), self.prefix_len, rows=self.rows, window=window
            ),
        )

    def bias(
        self, window: int | None, dtype: torch.dtype, device: torch.device, group: int = 1
    ) -> Float[Tensor, "group_and_rows keys"] | None:
        """The additive mask over the slots `keys(window)`, or None if nothing is hidden.

        Args:
            window: width of the sliding window over positions, None for no window.
            dtype: dtype of the scores.
            device: device of the scores.
            group: how often the rows are repeated, for the query heads that share a key head:
                row `g * row_count + t` is row t of head g.

        Returns:
            Mask `[group * row_count, keys]`, 0 where visible, the lowest finite number elsewhere.
        """
        window = self._binding(window)
        return self.kept(
            ("bias", window, dtype, device, group),
            lambda: self._bias(window, dtype, device, group),
        )

    def bias_parts(
        self, window: int | None, dtype: torch.dtype, device: torch.device, group: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """The additive masks over the prefix and over the nodes; None for a part with nothing hidden.

        If the window hides no prefix key in `keys(window)`, only the part over the nodes is made.
        """
        window = self._binding(window)
        if self.cuts_prefix(window):
            bias = self.bias(window, dtype, device, group)
            prefix_keys = self.prefix_len - self.keys(window).start
            return (None, None) if bias is None else (bias[:, :prefix_keys], bias[:, prefix_keys:])
        if self._sees_all(window):
            return None, None
        without_prefix = self.kept("nodes", lambda: TreePass(self.topology, 0, self.rows))
        return None, without_prefix.bias(window, dtype, device, group)

    def kept(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The cached value for `key`, made by `make` at the first call; for masks that layers share."""
        if key not in self._kept:
            with torch.inference_mode(False):  # cached tensors must be usable by autograd
                self._kept[key] = make()
        return self._kept[key]

    def _bias(
        self, window: int | None, dtype: torch.dtype, device: torch.device, group: int
    ) -> Tensor | None:
        if self._sees_all(window):
            return None
        from attention_masks.dense import additive_mask

        # Count positions from the first slot that is read: the prefix is shorter, the differences equal.
        prefix_len = self.prefix_len - self.keys(window).start
        bias = additive_mask(
            self.topology.to(device), prefix_len, rows=self.rows, window=window, dtype=dtype
        )
        return bias.expand(group, *bias.shape).flatten(0, 1)

    def _make_arrays(self) -> PassArrays:
        arrays = PassArrays.empty(1, self.row_count, self.topology.size)
        fill(arrays, 0, self.topology.to("cpu"), self.prefix_len, self.rows)
        return arrays

    def _binding(self, window: int | None) -> int | None:
        """The window, or None if it hides nothing, so that such layers share one mask."""
        if window is None or self.prefix_len + self._deepest < window:
            return None
        return window

    def _sees_all(self, window: int | None) -> bool:
        """Whether no key in `keys(window)` is hidden from any row.

        A row sees depth + 1 nodes, so it sees all nodes only as the last node of a chain.
        """
        if self._shallowest + 1 < self.topology.size:
            return False
        return window is None or self.prefix_len + self._deepest - self.keys(window).start < window
