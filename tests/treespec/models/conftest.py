"""Tiny random models, saved and loaded through the real path."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCAB, build, perturbed
from torch._inductor import compile_fx
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from treespec import Law, Sampling, TorchCoins, TreeShape, decode
from treespec.draft.model import ModelDrafter
from treespec.models import attention
from treespec.models.transformers_model import TransformersModel
from treespec.target.model_target import ModelTarget
from treespec.verify import greedy


@pytest.fixture(scope="session")
def made() -> Callable[..., PreTrainedModel]:
    """Builds a model without saving and loading it, for fixtures that many tests share."""
    return build


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., PreTrainedModel]:
    """Build a model, save it, and load it as a user would."""

    def load(
        name: str,
        seed: int = 0,
        draft_of: PreTrainedModel | None = None,
        noise: float = 0.15,
        **changes: Any,
    ) -> Any:
        made = build(name, seed, **changes) if draft_of is None else perturbed(draft_of, noise)
        folder = tmp_path / f"{name}-{seed}-{draft_of is not None}"
        made.save_pretrained(folder)
        dtype = changes.get("dtype", torch.float32)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        model.generation_config = GenerationConfig(pad_token_id=0)
        return model

    return load


@pytest.fixture
def prompt() -> torch.Tensor:
    return torch.randint(VOCAB, (24,), generator=torch.Generator().manual_seed(3))


@pytest.fixture
def generated(prompt: torch.Tensor) -> Callable[..., list[int]]:
    """The text of transformers' own greedy search after the given or the default prompt."""

    def generated(model: TransformersModel, new: int, prompt: torch.Tensor = prompt) -> list[int]:
        with model.as_transformers() as plain:
            assert plain.config._attn_implementation != attention.NAME
            ids = plain.generate(
                prompt[None],
                attention_mask=torch.ones_like(prompt[None]),  # otherwise token 0 counts as padding
                do_sample=False,
                max_new_tokens=new,
            )
        return ids[0, len(prompt) :].tolist()

    return generated


@pytest.fixture
def decoded(prompt: torch.Tensor) -> Callable[..., tuple[list[int], list[int]]]:
    """The text of our loop (up to a difference from `until_not`), and the tokens accepted per step."""

    def decoded(
        target: TransformersModel,
        draft: TransformersModel,
        shape: TreeShape,
        new: int,
        until_not: list[int] | None = None,
    ) -> tuple[list[int], list[int]]:
        sampling = Sampling(temperature=0.0)
        drafter = ModelDrafter(draft, shape, Law.DETERMINISTIC, sampling)
        tokens, accepted = [], []
        for step in decode(
            ModelTarget(target),
            drafter,
            greedy,
            prompt,
            sampling=sampling,
            coins=TorchCoins(0),
            max_new_tokens=new,
        ):
            tokens += step.tokens
            accepted.append(step.verdict.accepted)
            if until_not is not None and tokens != until_not[: len(tokens)]:
                break
        return tokens, accepted

    return decoded


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch, without_shape_checks: None) -> None:
    """Runs traced graphs as they are, without compiling machine code."""
    monkeypatch.setattr(compile_fx, "compile_fx", lambda graph, inputs, **options: graph.forward)
