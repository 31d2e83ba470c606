"""Medusa: several heads on the target's final state, each for one of the next positions."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor, nn

from treespec.draft.trained.contract import Contract
from treespec.draft.trained.marginal_drafter import MarginalDrafter, spread
from treespec.features import Features

if TYPE_CHECKING:
    from treespec.draft.trained.checkpoint import Checkpoint
    from treespec.draft.trained.target_parts import TargetParts


WEIGHTS = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
"""Names under which heads are published."""

READS = Features(final="post")


class ResidualBlock(nn.Module):
    """x + SiLU(W x + b).

    Args:
        width: H.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, states: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows H"]:
        """One block."""
        return states + F.silu(self.linear(states))


class MedusaHeads(nn.Module):
    """The heads, each residual blocks and a matrix.

    Args:
        heads: each maps a state to logits, the last of its layers being the matrix; the first head is that
            of the position after the root.
        vocab_size: V, the target's vocabulary.
        contract: the conventions, for records; by default those of heads of their own matrices.
    """

    max_length = sys.maxsize

    def __init__(
        self, heads: Sequence[nn.Sequential], vocab_size: int, contract: Contract | None = None
    ) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)
        self.depth, self.vocab_size = len(heads), vocab_size
        self.contract = contract or Contract("medusa", READS, head="own", embedding="none")

    @torch.inference_mode()
    def forward(self, state: Float[Tensor, "H"], count: int) -> Float[Tensor, "D V"]:
        """The logits of the first `count` heads."""
        logits = [self.matrix(i)(self.hidden(state, i)) for i in range(count)]
        return spread(torch.stack(logits), self.vocab_size)

    def hidden(self, states: Float[Tensor, "*rows H"], head: int) -> Float[Tensor, "*rows H"]:
        """What the matrix of a head reads at some states. Gradients pass."""
        layers: Any = self.heads[head]
        for layer in list(layers)[:-1]:
            states = layer(states)
        return states

    def matrix(self, head: int) -> Any:
        """The last layer of a head."""
        layers: Any = self.heads[head]
        return layers[-1]


class Medusa(MarginalDrafter):
    """Drafts with independent heads on the target's final state.

    Cai et al. 2024, Medusa, arXiv:2401.10774. With x_{t+1} the root, head k >= 1 reads the target's state
    h_t after the final norm, that of the last *accepted* token x_t, and predicts x_{t+1+k}: h_t exists as
    soon as the root is known, the root's own state does not. A prompt of one token has no such state: its
    first tree is the root alone. Ours differs in that children may be drawn by any law from the row of
    their depth, where the authors' code takes the best tokens in a fixed tree and accepts by a lossy rule
    ("typical acceptance"): so a tree is verified by every rule of this project.

    Args:
        head: the heads; see `load_medusa`.
        growth: where the tree grows, at most as deep as there are heads; see `MarginalDrafter`.
        law: how children are chosen.
        sampling: the target's sampling settings.
        observer: see `ModelDrafter`.

    Raises:
        InvalidTree: see `MarginalDrafter`.
    """

    _state: Tensor | None = None

    def begin(self, features: Float[Tensor, "P 1 H"]) -> None:
        """Remember the state of the token before the root, if there is one."""
        self._state = features[-1, 0].clone() if len(features) else None

    def follow(self, features: Float[Tensor, "E 1 H"]) -> None:
        """Remember the state of the last accepted token."""
        self._state = features[-1, 0].clone()

    def rows_after(self, path: Sequence[int], count: int) -> Float[Tensor, "D V"] | None:
        """Logits of the first `count` heads, whatever the path; None if there is no state yet."""
        return None if self._state is None else self.given(self._state, count)


def load_medusa(source: str, target: Any) -> MedusaHeads:
    """Read Medusa's heads in their authors' layout.

    The number of heads and of residual blocks is that of the tensors: published config.json files omit the
    latter, or state two heads for files of five.

    Args:
        source: their folder, or a hub id; a pickle is read as tensors alone.
        target: the target they were trained for.

    Raises:
        LoadError: if it cannot be read, or does not hold such heads for this target.
        UnsupportedModel: if the target is not a transformers model with a head.
    """
    from treespec.draft.trained.checkpoint import read_checkpoint  # loads transformers
    from treespec.draft.trained.target_parts import TargetParts

    parts = TargetParts.of(target)
    checkpoint = read_checkpoint(source, WEIGHTS)
    numbers = [match for name in checkpoint.names if (match := re.match(r"(\d+)\.(\d+)\.", name))]
    if not numbers:
        checkpoint.require_family("medusa", "0.0.linear.weight")
    count = 1 + max(int(match[1]) for match in numbers)
    blocks = len(
        {match[2] for match in numbers if f"0.{match[2]}.linear.weight" in checkpoint.names}
    )
    own = [checkpoint.has(f"{head}.{blocks}.weight") for head in range(count)]
    heads = [
        _head(checkpoint, parts, head, blocks, all(own) or not any(own)) for head in range(count)
    ]
    checkpoint.require_all_taken()
    return MedusaHeads(
        heads, target.vocab_size, _contract(checkpoint, count, blocks, None if any(own) else parts)
    )


def save_medusa(heads: MedusaHeads, folder: Path) -> None:
    """Write heads in their authors' layout, which `load_medusa` and serving engines read.

    Raises:
        InvalidArgument: if the folder holds something already.
    """
    from treespec.draft.trained.writing import write_head

    own, tensors, blocks = heads.contract.head == "own", {}, 0
    for i, head in enumerate(heads.heads):
        layers: Any = head
        blocks = sum(isinstance(layer, ResidualBlock) for layer in layers)
        for name, tensor in layers[: blocks + own].state_dict().items():
            tensors[f"{i}.{name}"] = tensor
    config = {"medusa_num_heads": len(heads.heads), "medusa_num_layers": blocks}
    write_head(folder, config, tensors, file=WEIGHTS[1])


def _head(
    checkpoint: "Checkpoint", parts: "TargetParts", head: int, blocks: int, alike: bool
) -> nn.Sequential:
    """One head; without a matrix of its own it shares the target's, if all heads do."""
    width, tensors = parts.width, {}
    for block in range(blocks):
        name = f"{head}.{block}.linear"
        tensors[f"{block}.linear.weight"] = checkpoint.take(f"{name}.weight", (width, width))
        tensors[f"{block}.linear.bias"] = checkpoint.take(f"{name}.bias", (width,))
    last, shape = f"{head}.{blocks}.weight", (parts.vocab_size, width)
    matrix = checkpoint.maybe(last, shape) if alike else checkpoint.take(last, shape)
    with torch.device("meta"):
        layers: list[nn.Module] = [ResidualBlock(width) for _ in range(blocks)]
        if matrix is not None:
            layers.append(nn.Linear(width, len(matrix), bias=False))
            tensors[f"{blocks}.weight"] = matrix
        made = nn.Sequential(*layers)
    cast = {name: t.to(parts.device, parts.dtype) for name, t in tensors.items()}
    made.load_state_dict(cast, assign=True)
    made.requires_grad_(False)
    return made if matrix is not None else nn.Sequential(*made, parts.head)


def _contract(
    checkpoint: "Checkpoint", count: int, blocks: int, shared: "TargetParts | None"
) -> Contract:
    """The conventions; `shared` is the target, if its head gives the logits."""
    notes = [f"{count} heads of {blocks} residual block{'s' * (blocks != 1)}"]
    for key, found in (("medusa_num_heads", count), ("medusa_num_layers", blocks)):
        stated = checkpoint.setting(key, int, None)
        if stated is not None and stated != found:
            notes.append(f"config.json says {key} = {stated}, the tensors count")
    notes += () if shared is None else shared.missing
    head = "own" if shared is None else "target's"
    return Contract("medusa", READS, head=head, embedding="none", notes=tuple(notes))
