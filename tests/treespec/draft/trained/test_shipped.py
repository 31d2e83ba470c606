"""Heads that come with treespec: they load by name, draft, and keep the target's greedy text."""

import pytest
import torch

from treespec import Law, Sampling, TorchCoins, decode, load_pair, verify
from treespec.draft import Eagle3
from treespec.draft.trained.checkpoint import read_checkpoint
from treespec.draft.trained.eagle3_files import load_eagle3
from treespec.draft.trained.shipped import FOLDER, place_of_head, shipped_heads
from treespec.errors import LoadError
from treespec.experiments.run.prompts import embedded_prompts
from treespec.experiments.run.transformers_hooks import plain_twin
from treespec.target import ModelTarget
from treespec.tree import TreeShape

TOKENS = 32


@pytest.mark.parametrize("name", shipped_heads())
def test_shipped_heads_are_lean_and_documented(name: str) -> None:
    tensors = read_checkpoint(name)
    assert "lm_head.weight" not in tensors.names
    assert "embed_tokens.weight" not in tensors.names
    assert {str(path.name) for path in (FOLDER / name).iterdir()} == {
        *("config.json", "model.safetensors", "README.md")
    }
    card = (FOLDER / name / "README.md").read_text()
    for said in (
        f"model: {name}}}",
        "seed 0",
        "## Data",
        "## Vocabulary",
        "chain of 4",
        "at T = 1",
    ):
        assert said in " ".join(card.split())
    assert (FOLDER / name / "model.safetensors").stat().st_size < 15e6


def test_those_of_the_real_model_are_small_together() -> None:
    sizes = [path.stat().st_size for path in FOLDER.glob("smollm2-*/*")]
    assert sum(sizes) <= 16e6


@pytest.fixture(scope="module")
def embedded():
    return load_pair("embedded")


def test_the_head_of_the_embedded_target_drafts_its_greedy_text(embedded) -> None:
    target = embedded.target
    head = load_eagle3("embedded-eagle3", target)
    cold, kept, steps = Sampling(temperature=0.0), 0, 0
    for prompt in embedded_prompts(embedded.tokenizer, 2, 64):
        ids = torch.tensor(list(prompt.ids))
        drafter = Eagle3(head, TreeShape.expansion((2, 2, 1)), Law.DETERMINISTIC, cold)
        made = [
            *decode(
                ModelTarget(target), drafter, verify.greedy, ids,
                sampling=cold, coins=TorchCoins(0), max_new_tokens=TOKENS,
            )
        ]  # fmt: skip
        text = [token for step in made for token in step.tokens]
        twin = plain_twin(target)
        said = twin.generate(
            ids[None], attention_mask=torch.ones_like(ids)[None], do_sample=False,
            max_new_tokens=TOKENS, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        assert text[:TOKENS] == said[0, len(ids) :].tolist()
        kept, steps = kept + len(text), steps + len(made)
    assert kept / steps > 1.4


def test_what_is_no_shipped_head_stays_a_path(embedded) -> None:
    assert place_of_head("runs/mine") == "runs/mine"
    with pytest.raises(LoadError, match=r"one of treespec's \(.*embedded-eagle3"):
        load_eagle3("embedded-eagle9", embedded.target)
