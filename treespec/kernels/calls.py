"""How compiled code calls the kernels itself, without Python."""

from typing import Any

import torch

from treespec.kernels import masked_attention, packed_linear
from treespec.kernels.build import kernels

__all__ = ["calls"]

OPERATIONS = (packed_linear, masked_attention)
"""Modules by which torch knows them."""

DECLARED = {
    "packed_linear": "AtenTensorHandle x, AtenTensorHandle packed, AtenTensorHandle* bias, int64_t size",
    "masked_attention": (
        "AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, AtenTensorHandle bias, "
        "AtenTensorHandle* sinks, double scale, double softcap"
    ),
}
"""What compiled code gives each operation, besides the place of its result."""


def calls() -> dict[str, Any]:
    """Options of the compiler by which its code calls the kernels itself.

    Raises:
        Unavailable: if they cannot be compiled.
    """
    kernels()
    shims = {
        getattr(torch.ops.treespec, name).default: [
            f"AOTITorchError aoti_torch_cpu_{name}({given}, AtenTensorHandle* result)"
        ]
        for name, given in DECLARED.items()
    }
    return {"aot_inductor.custom_ops_to_c_shims": shims}
