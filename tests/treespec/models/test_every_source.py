"""Greedy text equals that of `generate` with every draft source, on several architectures."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import treespec.experiments.config.build  # noqa: F401  (registers all sources)
from treespec import Law, Sampling, TorchCoins, TreeShape, decode, load_pair, plugins, verify
from treespec.draft import (
    Cascade,
    Datastore,
    Documents,
    EarlyExit,
    Jacobi,
    LayerSkip,
    Lookahead,
    Merge,
    ModelDrafter,
    PromptLookup,
    Retrieval,
    SuffixAutomaton,
    SuffixTree,
    TokenRecycling,
)
from treespec.experiments.config.schema import EmbeddedPrompts
from treespec.experiments.run.prompts import read_prompts
from treespec.models.transformers_model import TransformersModel
from treespec.protocols import Drafter
from treespec.target import ModelTarget
from treespec.verify import greedy

COLD = Sampling(temperature=0.0)
BUSHY, BEST = TreeShape.expansion([3, 2, 1]), Law.DETERMINISTIC
ARCHITECTURES = ("llama", "qwen3", "gpt_neox")
NEW = 96
"""Tokens per text; texts are added until there are enough steps."""


def drafters(
    target: TransformersModel, draft: TransformersModel, ids: list[int], folder: Path
) -> dict[str, Drafter]:
    """One drafter of each source, by its name in configs; documents and datastore hold `ids`."""
    vocab, layers = target.vocab_size, target.layer_count
    tree = {"size": 16, "branching": 3}
    store = Datastore.build(folder / "store", [ids], vocab_size=vocab)
    lookup = PromptLookup(3, **tree)
    parts = {
        "table": TokenRecycling(),
        "layers": EarlyExit(target, 1, TreeShape.chain(3), BEST, COLD),
        "lookup": PromptLookup(6, **tree),
    }
    return {
        "model": ModelDrafter(draft, BUSHY, BEST, COLD),
        "early_exit": EarlyExit(target, 1, BUSHY, BEST, COLD),
        "layer_skip": LayerSkip(target, [f"mlp.{layers - 1}"], BUSHY, BEST, COLD),
        "lookup": PromptLookup(6, **tree),
        "documents": Documents([ids], 6, vocab_size=vocab, **tree),
        "suffix_tree": SuffixTree(6, **tree),
        "suffix_automaton": SuffixAutomaton(6),
        "retrieval": Retrieval(store, 6, **tree),
        "token_recycling": TokenRecycling(),
        "lookahead": Lookahead(),
        "jacobi": Jacobi(6),
        "cascade": Cascade(draft, lookup, verify.onehot, 6, COLD),
        "merge": Merge(parts, 24, rates=dict.fromkeys(parts, ((0.8, 0.3, 0.1),))),
    }


def generate(model: TransformersModel, prompt: torch.Tensor, new: int) -> list[int]:
    with model.as_transformers() as plain:
        ids = plain.generate(
            prompt[None], attention_mask=torch.ones_like(prompt[None]), do_sample=False,
            max_new_tokens=new, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    return ids[0, len(prompt) :].tolist()


def require_equal(
    target: TransformersModel,
    draft: TransformersModel,
    prompts: Iterator[torch.Tensor],
    folder: Path,
    steps: int,
    new: int = NEW,
) -> None:
    """Check that texts of every source equal those of `generate`, over at least `steps` steps each."""
    texts = [(prompt, generate(target, prompt, new)) for prompt in islice(prompts, 2)]
    ids = [token for prompt, text in texts[:1] for token in (*prompt.tolist(), *text)]
    scores = ModelTarget(target)
    for name, drafter in drafters(target, draft, ids, folder).items():
        taken, accepted, at = 0, 0, 0
        while taken < steps:
            if at == len(texts):
                prompt = next(prompts)
                texts.append((prompt, generate(target, prompt, new)))
            prompt, text = texts[at]
            played = decode(
                scores, drafter, greedy, prompt, sampling=COLD, coins=TorchCoins(0), max_new_tokens=new
            )  # fmt: skip
            found = []
            for step in played:
                found += step.tokens
                taken += 1
                accepted += step.verdict.accepted
            assert found == text, f"{name}, text {at}"
            at += 1
        print(f"{name}: {taken} steps, {1 + accepted / taken:.2f} tokens per step")
        assert accepted or name == "jacobi", name


def random_prompts(vocab: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    while True:
        yield torch.randint(1, vocab, (24,), generator=generator)


def tiny(name: str, load: Callable[..., Any]) -> tuple[TransformersModel, TransformersModel]:
    target = TransformersModel(load(name))
    return target, TransformersModel(load(name, draft_of=target.model))


def test_all_sources_are_here(load: Callable[..., Any], tmp_path: Path) -> None:
    ours = {name for name, part in plugins.parts("source").items() if not part.plugged}
    assert set(drafters(*tiny("llama", load), [1, 2, 3], tmp_path)) == ours


def test_a_text_of_every_source(
    load: Callable[..., Any], tmp_path: Path, without_shape_checks: None
) -> None:
    target, draft = tiny("qwen3", load)
    require_equal(target, draft, random_prompts(target.vocab_size), tmp_path, steps=1, new=48)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_hundreds_of_steps_of_every_source(
    name: str, load: Callable[..., Any], tmp_path: Path, without_shape_checks: None
) -> None:
    """Together with those of the embedded pair, 1,000 steps of each source."""
    target, draft = tiny(name, load)
    require_equal(target, draft, random_prompts(target.vocab_size), tmp_path, steps=250)


@pytest.mark.slow
def test_hundreds_of_steps_on_the_embedded_pair(tmp_path: Path, without_shape_checks: None) -> None:
    pair = load_pair("embedded")
    given = read_prompts(EmbeddedPrompts(kind="embedded"))
    prompts = (torch.tensor(pair.tokenizer.encode(prompt.text)[:200]) for prompt in given)
    require_equal(pair.target, pair.draft, prompts, tmp_path, steps=250)
