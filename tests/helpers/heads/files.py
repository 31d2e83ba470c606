"""Random tensors whose rows vary, and checkpoints as their authors lay them out."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

__all__ = ["HIDDEN", "LAYER", "Random", "read", "reduced", "write"]

HIDDEN, VOCAB, DRAFT_VOCAB = 32, 96, 40
LAYER = {
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


class Random:
    """Tensors on the scales of `tiny_models.build`."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(shape, generator=self.generator)

    def linear(self, rows: int, columns: int) -> Tensor:
        return self.normal(rows, columns, scale=1.3 * columns**-0.5)

    def gain(self, width: int) -> Tensor:
        return 1 + self.normal(width, scale=0.3)

    def embedding(self, rows: int, columns: int = HIDDEN) -> Tensor:
        return self.normal(rows, columns, scale=0.05)

    def head(self, rows: int, columns: int = HIDDEN) -> Tensor:
        return self.normal(rows, columns, scale=0.3)

    def fusion(self, rows: int, width: int) -> Tensor:
        """A projection of [embedding, state], without norms: embeddings are small."""
        weight = self.linear(rows, 2 * width)
        weight[:, :width] *= 10
        return weight

    def attention(
        self,
        name: str,
        width: int = HIDDEN,
        *,
        inputs: int | None = None,
        bias: bool = False,
        norms: bool = False,
    ) -> dict[str, Tensor]:
        """Four heads of queries, two of keys and values, each of 8 dimensions."""
        tensors = {f"{name}.o_proj.weight": self.linear(width, 32)}
        for part, rows in (("q_proj", 32), ("k_proj", 16), ("v_proj", 16)):
            tensors[f"{name}.{part}.weight"] = self.linear(rows, inputs or width)
            if bias:
                tensors[f"{name}.{part}.bias"] = self.normal(rows, scale=0.3)
        if norms:
            tensors |= {f"{name}.{part}.weight": self.gain(8) for part in ("q_norm", "k_norm")}
        return tensors

    def mlp(self, name: str, width: int = HIDDEN) -> dict[str, Tensor]:
        return {
            f"{name}.gate_proj.weight": self.linear(64, width),
            f"{name}.up_proj.weight": self.linear(64, width),
            f"{name}.down_proj.weight": self.linear(width, 64),
        }

    def layer(
        self, name: str, *norms: str, bias: bool = False, qk: bool = False
    ) -> dict[str, Tensor]:
        """A layer of llama, qwen2 (biases) or qwen3 (norms of queries and keys)."""
        return {
            **self.attention(f"{name}.self_attn", bias=bias, norms=qk),
            **self.mlp(f"{name}.mlp"),
            **{f"{name}.{norm}.weight": self.gain(HIDDEN) for norm in norms},
        }

    def kept(self) -> tuple[Tensor, Tensor]:
        """Which tokens of the target a reduced vocabulary keeps: offsets `d2t`, and the mask `t2d`."""
        ids = torch.randperm(VOCAB, generator=self.generator)[:DRAFT_VOCAB].sort().values
        mask = torch.zeros(VOCAB, dtype=torch.bool)
        mask[ids] = True
        return ids - torch.arange(DRAFT_VOCAB), mask


def reduced(logits: Tensor, tensors: dict[str, Tensor], vocabulary: int) -> Tensor:
    """Rows over the target's vocabulary: -inf where a reduced head has no row. `d2t` holds offsets."""
    if "d2t" not in tensors:
        return logits
    full = logits.new_full((len(logits), vocabulary), -torch.inf)
    full[:, torch.arange(logits.shape[-1]) + tensors["d2t"]] = logits
    return full


def write(
    folder: Path,
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    file: str = "model.safetensors",
) -> None:
    """config.json and one file of tensors, of the kind that its name says."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    if file.endswith(".safetensors"):
        save_file(tensors, folder / file, metadata={"format": "pt"})
    else:
        torch.save(tensors, folder / file)


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The raw tensors, of all files, and the config of a checkpoint."""
    tensors = {}
    for file in folder.iterdir():
        if file.suffix == ".safetensors":
            tensors |= load_file(file)
        elif file.suffix in (".bin", ".pt"):
            tensors |= torch.load(file, weights_only=True)
    return tensors, json.loads((folder / "config.json").read_text())
