"""The marginal heads that tests run: written in each published layout, read, and computed plainly."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from heads import block, files, medusa
from tiny_models import build
from torch import Tensor, nn

from treespec.draft.trained.block_draft import BlockDraft
from treespec.draft.trained.block_files import load_block
from treespec.draft.trained.block_head import BlockHead, BlockLayer, BlockRules, BlockSizes
from treespec.draft.trained.contract import Contract
from treespec.draft.trained.marginal_drafter import MarginalDrafter
from treespec.draft.trained.medusa import Medusa, MedusaHeads, ResidualBlock, load_medusa
from treespec.draft.trained.target_parts import TargetParts
from treespec.features import Features
from treespec.models.transformers_model import TransformersModel


@dataclass(frozen=True)
class Format:
    """One way in which a marginal head is published.

    Args:
        family: module of `heads` that writes and computes it.
        load: reads it.
        drafter: drafts with it.
        options: of the checkpoint.
    """

    family: Any
    load: Callable[..., Any]
    drafter: type[MarginalDrafter]
    options: dict[str, Any] = field(default_factory=dict)

    def read(self, folder: Path, model: TransformersModel | None = None, **changes: Any) -> Any:
        """A random head, from files of this layout."""
        self.family.checkpoint(folder, **{**self.options, **changes})
        return self.load(str(folder), model or target())

    def rows(
        self, folder: Path, model: TransformersModel, states: Tensor, root: int, path: list[int]
    ) -> Tensor:
        """Logits in a straight line, in float64; -inf for tokens that the head lacks.

        `states`: the features of the tokens before the root, in the order in which they are projected.
        """
        tensors, config = files.read(folder)
        net: Any = model.model
        head = net.get_output_embeddings().weight.double()
        if self.family is medusa:
            return medusa.rows(tensors, config, states[-1, 0], head)
        embedding = net.get_input_embeddings().weight.double()
        return block.rows(tensors, config, states, root, embedding, head, path)


def _medusa(**options: Any) -> Format:
    return Format(medusa, load_medusa, Medusa, options)


def _block(**options: Any) -> Format:
    return Format(block, load_block, BlockDraft, options)


FORMATS = {
    "medusa": _medusa(),
    "medusa, two layers": _medusa(layers=2),
    "medusa, legacy": _medusa(layout="legacy"),
    "medusa, numbers missing": _medusa(layers=2, said=False),
    "dflash": _block(),
    "dflash, nested size": _block(nested_size=True, layer_ids=(2, 0)),
    "dflash, last layer": _block(layer_ids=(1, 3)),
    "dflash, last layer first": _block(layer_ids=(3, 0)),
    "dflash, default ids": _block(layer_ids=None, layers=1),
    "jetspec": _block(layout="jetspec"),
    "transformers": _block(layout="transformers"),
    "speculators": _block(layout="speculators", layer_ids=(1, 3)),
    "speculators, boundary before the norm": _block(layout="speculators", layer_ids=(2, 4)),
    "speculators, small": _block(layout="speculators", small=True),
    "speculators, from the anchor": _block(layout="speculators", sample_from_anchor=True),
}


@cache
def target(architecture: str = "llama", dtype: torch.dtype = torch.float32) -> TransformersModel:
    """A target of four layers, as a shared object: whoever runs it uses fresh caches."""
    return TransformersModel(build(architecture, num_hidden_layers=4).to(dtype))


def states_of(model: TransformersModel, reads: Features, tokens: list[int]) -> Tensor:
    """The features of these tokens, in one pass over them alone."""
    twin = model.fresh()
    twin.lend(reads)
    states = twin.prefill(torch.tensor(tokens, dtype=torch.long))
    assert states is not None
    return states


@torch.no_grad()
def random_medusa(model: TransformersModel, ids: list[int], heads: int = 4) -> MedusaHeads:
    """Heads for any target: random blocks, and matrices that fit a text: some drafts are right."""
    parts = TargetParts.of(model)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        blocks = [ResidualBlock(parts.width).to(parts.dtype) for _ in range(heads)]
    states = states_of(model, Features(final="post"), ids)[:, 0]
    made = [
        nn.Sequential(block, fitted(block(states[: -i - 2]), ids[i + 2 :], model.vocab_size))
        for i, block in enumerate(blocks)
    ]
    return MedusaHeads(made, model.vocab_size)


@torch.no_grad()
def random_block(model: TransformersModel, ids: list[int]) -> BlockHead:
    """A block drafter for any target: random layers, and a matrix that fits a text."""
    parts = TargetParts.of(model)
    width, sizes = parts.width, BlockSizes(parts.width, 32, heads=2, kv_heads=1, head_dim=8)
    rules = BlockRules(5, 1, (0, 1), causal=False, from_anchor=False, max_length=model.max_length)
    reads = Features((0, parts.layers))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [BlockLayer(sizes).to(parts.dtype) for _ in range(2)]
        fc = nn.Linear(2 * width, width, bias=False).to(parts.dtype)
    norms = [nn.RMSNorm(width).to(parts.dtype) for _ in range(2)]

    def made(head: nn.Module, rows: int) -> BlockHead:
        return BlockHead(
            sizes, rules, Contract("block", reads), layers=layers, project=fc, hidden_norm=norms[0],
            norm=norms[1], embedding=parts.embedding, head=head, rotary=partial(_turns, dim=8),
            vocab_size=rows, ids=parts.vocab_size,
        )  # fmt: skip

    bare, states, found = made(nn.Identity(), width), states_of(model, reads, ids), []
    wanted = []
    for at in range(len(ids) - rules.depth):
        text = bare.new_text()
        bare.read(text, states[:at])
        found.append(bare(text, ids[at], [], rules.depth))
        wanted += ids[at + 1 : at + rules.block_size]
    if not found:
        return made(parts.head, model.vocab_size)
    return made(fitted(torch.cat(found), wanted, model.vocab_size), model.vocab_size)


@torch.no_grad()
def fitted(states: Tensor, ids: list[int], vocab_size: int) -> nn.Linear:
    """The matrix that tells, by least squares, which token follows each state."""
    head = nn.Linear(states.shape[1], vocab_size, bias=False).to(states.dtype)
    if ids:
        told = torch.nn.functional.one_hot(torch.tensor(ids), vocab_size).double()
        # A small ridge: texts may be shorter than states are wide.
        x, eye = states.double(), torch.eye(states.shape[1], dtype=torch.float64)
        head.weight.copy_(20 * torch.linalg.solve(x.T @ x + 1e-3 * eye, x.T @ told).T)
    return head


@cache
def table_medusa(vocab: int, seed: int = 5, heads: int = 2) -> MedusaHeads:
    """Heads on the states of a `TabularModel`, which are as wide as its vocabulary."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = [
            nn.Sequential(ResidualBlock(vocab), nn.Linear(vocab, vocab, bias=False)).double()
            for _ in range(heads)
        ]
    return MedusaHeads(made, vocab)


@cache
def table_block(
    vocab: int, seed: int = 5, *, causal: bool = False, kept: tuple[int, ...] | None = None
) -> BlockHead:
    """A block drafter on two boundaries of a `TabularModel`, with an embedding of its own."""
    sizes = BlockSizes(width=4, inner=6, heads=2, kv_heads=1, head_dim=2)
    rules = BlockRules(3, 0, (1, 0), causal, from_anchor=False, max_length=1000)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        embedding = nn.Embedding(vocab, 4).double()
        layers = [BlockLayer(sizes).double() for _ in range(2)]
        fc, adapter = nn.Linear(8, 4, bias=False), nn.Linear(vocab, 4, bias=False)
        head = nn.Linear(4, len(kept or range(vocab)), bias=False).double()
        with torch.no_grad():
            head.weight *= 4
    return BlockHead(
        sizes, rules, Contract("block", Features((2, 3))), layers=layers, project=fc.double(),
        hidden_norm=nn.RMSNorm(4).double(), norm=nn.RMSNorm(4).double(), embedding=embedding, head=head,
        rotary=_turns, vocab_size=vocab, adapter=adapter.double(),
        kept=None if kept is None else torch.tensor(kept),
    )  # fmt: skip


def _turns(x: Tensor, positions: Tensor, dim: int = 2) -> tuple[Tensor, Tensor]:
    """Rotations of heads, all by one angle: the position."""
    angles = positions[..., None].to(x.dtype).expand(-1, -1, dim)
    return angles.cos(), angles.sin()
