"""Compiler options by which compiled code calls the kernels directly, without Python."""

from typing import Any

import torch

from treespec.kernels import joined_attention, masked_attention, packed_linear
from treespec.kernels.build import kernels

OPERATIONS = (packed_linear, masked_attention, joined_attention)
"""Modules that register the operations with torch."""

DECLARED = {
    "packed_linear": "AtenTensorHandle x, AtenTensorHandle packed, AtenTensorHandle* bias, int64_t size",
    "masked_attention": (
        "AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, AtenTensorHandle bias, "
        "AtenTensorHandle* sinks, double scale, double softcap"
    ),
    "joined_attention": (
        "AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, AtenTensorHandle places, "
        "AtenTensorHandle texts, AtenTensorHandle tree, AtenTensorHandle* sinks, int64_t layer, "
        "int64_t window, double scale, double softcap"
    ),
}
"""Parameters that compiled code passes to each operation, besides that for its result."""


def calls() -> dict[str, Any]:
    """Compiler options by which compiled code calls the kernels directly."""
    kernels()
    shims = {
        getattr(torch.ops.treespec, name).default: [
            f"AOTITorchError aoti_torch_cpu_{name}({parameters}, AtenTensorHandle* result)"
        ]
        for name, parameters in DECLARED.items()
    }
    return {"aot_inductor.custom_ops_to_c_shims": shims}
