"""Random targets of transformers' classes, saved with an MTP module beside them."""

from pathlib import Path

import torch
import transformers
from transformers import PreTrainedModel

from heads.files import LAYER, Random
from heads.mtp import CONFIGS, add

FAMILIES = {
    "deepseek": ("DeepseekV3", {}),
    "glm": ("Glm4Moe", {}),
    "qwen3_next": ("Qwen3Next", {"num_mtp_layers": 1, "layer_types": ["full_attention"] * 2}),
}


def save(folder: Path, layout: str, seed: int = 3) -> type[PreTrainedModel]:
    """Save a random target of two layers with an MTP module of its family; returns the target's class."""
    family, more = FAMILIES[layout]
    settings = {**LAYER, **CONFIGS[layout], "num_hidden_layers": 2, **more}
    for name in ("rope_theta", "torch_dtype", "model_type"):
        settings.pop(name)
    settings |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = getattr(transformers, f"{family}Config")(**settings)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    random = Random(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(
                random.gain(len(weight)) if weight.ndim == 1 else random.normal(*weight.shape) * 0.3
            )
    model.save_pretrained(folder)
    add(folder, layout, seed)
    return type(model)
