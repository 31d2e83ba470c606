"""Cases whose rows the package speculators computed once, and how they were computed.

    python tests/helpers/heads/recorded.py 0.9 FILE    # with speculators 0.9: eagle3, dflash, mtp
    python tests/helpers/heads/recorded.py 0.4 FILE    # with speculators 0.4: eagle

Recorded with speculators 0.9.0 on transformers 5.23 and 0.4.0 on 4.57, in float32. FILE gets, for each
case, the rows and a sum over the checkpoint, which tells another random generator from another result.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from heads import block, eagle, eagle3, mtp
from heads.files import HIDDEN, VOCAB, Random, read

TOKENS = [5, 17, 80, 2, 41, 63, 9, 33]
DRAFTED = [12, 90, 7]
ANCHOR = 33

EAGLE3 = {
    "eagle3": {},
    "eagle3, norm_before_residual": {"flags": ("norm_before_residual",)},
    "eagle3, norm_before_fc, norm_output": {"flags": ("norm_before_fc", "norm_output")},
    "eagle3, fc_norm": {"flags": ("fc_norm",), "embedding": True},
    "eagle3, two layers of qwen3": {"layers": 2, "qwen3": True, "small": False},
    "eagle3, theta": {"rope_theta": 100.0},
}
DFLASH = {
    "dflash": {},
    "dflash, small, from anchor": {"small": True, "sample_from_anchor": True},
}
EAGLE = {
    "eagle": {},
    "eagle, norms, no bias": {"layernorms": True, "bias": False},
}
CASES = {
    **{name: (eagle3, case) for name, case in EAGLE3.items()},
    **{name: (block, case) for name, case in DFLASH.items()},
    **{name: (eagle, case) for name, case in EAGLE.items()},
    "mtp": (mtp, {}),
}


def inputs(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Features of all tokens but the last, embedding, head."""
    random, count = Random(7), 3 if CASES[name][0] in (eagle3, block) else 1
    features = random.normal(len(TOKENS) - 1, count, HIDDEN)
    return features, random.embedding(VOCAB), random.head(VOCAB)


def written(name: str, folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The checkpoint of a case: its tensors and its config."""
    module, case = CASES[name]
    module.checkpoint(folder, "speculators", seed=1, **case)
    return read(folder)


def total(tensors: dict[str, Tensor]) -> Tensor:
    """A sum that changes with any tensor."""
    return torch.stack([tensors[name].double().abs().sum() for name in sorted(tensors)]).sum()


def loaded(model: Any, tensors: dict[str, Tensor], embedding: Tensor, head: Tensor) -> list[Tensor]:
    """Load a model of speculators; returns a list to which each call of its head adds its rows."""
    _, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected, unexpected
    if "embed_tokens.weight" not in tensors:
        model.embed_tokens.weight.data.copy_(embedding)
    if "lm_head.weight" not in tensors:
        model.lm_head.weight.data.copy_(head)
    seen: list[Tensor] = []
    model.lm_head.register_forward_hook(lambda module, given, result: seen.append(result[0]))
    return seen


def of_eagle3(name: str, tensors: dict[str, Tensor], config: dict[str, Any]) -> Tensor:
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    settings = Eagle3SpeculatorConfig(**config)
    settings.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel(settings).eval()
    features, embedding, head = inputs(name)
    seen = loaded(model, tensors, embedding, head)
    tokens = torch.tensor([TOKENS[1:] + DRAFTED])
    ahead = torch.cat((features, torch.zeros(len(DRAFTED), *features.shape[1:])))
    documents = torch.zeros_like(tokens)
    model(
        ahead.flatten(1)[None],
        tokens,
        documents,
        ttt_steps=1 + len(DRAFTED),
        ttt_step_loss_decay=1.0,
    )
    last = len(TOKENS) - 2
    return torch.cat((seen[0][: last + 1], torch.stack([rows[last] for rows in seen[1:]])))


def of_dflash(name: str, tensors: dict[str, Tensor], config: dict[str, Any]) -> Tensor:
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig

    settings = DFlashSpeculatorConfig(**config)
    settings.transformer_layer_config._attn_implementation = "eager"
    model = DFlashDraftModel(settings).eval()
    features, embedding, head = inputs(name)
    seen = loaded(model, tensors, embedding, head)
    before, length = len(features), len(features) + 2 * config["block_size"]
    mask, tokens = torch.zeros(2, 1, length, dtype=torch.long)
    mask[0, before], tokens[0, before] = 1, ANCHOR
    ahead = torch.ones(1, length, features[0].numel())
    ahead[0, :before] = features.flatten(1)
    state, documents = torch.zeros(1, length, HIDDEN), torch.zeros_like(mask)
    model._backbone_forward(ahead, tokens, mask, state, documents, max_anchors=1)
    (rows,) = (rows for rows in seen if len(rows) == config["block_size"])
    return rows if config["sample_from_anchor"] else rows[1:]


def of_mtp(name: str, tensors: dict[str, Tensor], config: dict[str, Any]) -> Tensor:
    """The rows of the text only: speculators trains deeper rows on keys of their own depth."""
    from speculators.models.mtp import MTPDraftModel, MTPSpeculatorConfig

    settings = MTPSpeculatorConfig(**config)
    settings.transformer_layer_config._attn_implementation = "eager"
    model = MTPDraftModel(settings).eval()
    features, embedding, head = inputs(name)
    seen = loaded(model, tensors, embedding, head)
    steps = model.config.num_speculative_steps
    tokens = torch.tensor([TOKENS + [0] * steps])
    ahead = torch.cat((features[:, 0], torch.zeros(1 + steps, HIDDEN)))
    model(tokens, ahead[None])
    return seen[0][: len(TOKENS) - 1]


def of_eagle(name: str, tensors: dict[str, Tensor], config: dict[str, Any]) -> Tensor:
    """The rows of the text only."""
    from speculators.models.eagle import EagleSpeculator, EagleSpeculatorConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    settings = EagleSpeculatorConfig(**config)
    model = EagleSpeculator(settings, verifier=None, verifier_attachment_mode="detached").eval()
    layer = settings.transformer_layer_config
    layer._attn_implementation = "eager"
    model.embed_tokens, model.lm_head = (
        torch.nn.Embedding(VOCAB, HIDDEN),
        torch.nn.Linear(HIDDEN, VOCAB, False),
    )
    model.rotary_emb = LlamaRotaryEmbedding(layer)
    features, embedding, head = inputs(name)
    loaded(model, tensors, embedding, head)
    tokens = torch.tensor([TOKENS[1:]])
    rows = model(tokens, features[:, 0][None], torch.ones_like(tokens), return_dict=False)
    return rows.reshape(len(features), VOCAB)


def main(version: str, file: str) -> None:
    from safetensors.torch import load_file, save_file

    results = load_file(file) if Path(file).exists() else {}
    makers = {eagle: of_eagle, eagle3: of_eagle3, block: of_dflash, mtp: of_mtp}
    for name, (module, _) in CASES.items():
        if (module is eagle) == (version == "0.4"):
            with TemporaryDirectory() as folder, torch.no_grad():
                tensors, config = written(name, Path(folder))
                results[f"{name}: rows"] = (
                    makers[module](name, tensors, config).contiguous().clone()
                )
                results[f"{name}: total"] = total(tensors)
    save_file(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
