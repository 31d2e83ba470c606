"""Greedy text equals that of `generate` with every draft source, on several architectures."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from every_source import BEST, BUSHY, COLD, PROCESSORS, drafters
from transformers import LogitsProcessorList

import treespec.experiments.config.build  # noqa: F401  (registers all sources)
from treespec import Law, Sampling, TorchCoins, TreeShape, decode, load_pair, plugins, verify
from treespec.draft import EarlyExit, LayerSkip, ModelDrafter
from treespec.experiments.config.schema import EmbeddedPrompts
from treespec.experiments.run.prompts import read_prompts
from treespec.models.transformers_model import TransformersModel
from treespec.sampling.processing.built import further, generation_fields
from treespec.sampling.processors import Processors
from treespec.stopping import stop_at_tokens
from treespec.target import ModelTarget
from treespec.verify import greedy

ARCHITECTURES = ("llama", "qwen3", "gpt_neox")
NEW = 96
"""Tokens per text; texts are added until there are enough steps."""


def generate(
    model: TransformersModel, prompt: torch.Tensor, new: int, cold: Sampling = COLD
) -> list[int]:
    processors = cold.processors or Processors()
    with model.as_transformers() as plain:
        ids = plain.generate(
            prompt[None], attention_mask=torch.ones_like(prompt[None]), do_sample=False,
            max_new_tokens=new, eos_token_id=list(processors.ends or ()) or None, pad_token_id=0,
            logits_processor=LogitsProcessorList(further(processors, len(prompt))),
            **generation_fields(processors),
        )  # fmt: skip
    return ids[0, len(prompt) :].tolist()


def require_equal(
    target: TransformersModel,
    draft: TransformersModel,
    prompts: Iterator[torch.Tensor],
    folder: Path,
    steps: int,
    new: int = NEW,
    cold: Sampling = COLD,
) -> None:
    """Check that texts of every source equal those of `generate`, over at least `steps` steps each."""
    texts = [(prompt, generate(target, prompt, new, cold)) for prompt in islice(prompts, 2)]
    ids = [token for prompt, text in texts[:1] for token in (*prompt.tolist(), *text)]
    scores = ModelTarget(target)
    for name, drafter in drafters(target, draft, ids, folder, cold).items():
        taken, accepted, at = 0, 0, 0
        while taken < steps:
            if at == len(texts):
                prompt = next(prompts)
                texts.append((prompt, generate(target, prompt, new, cold)))
            prompt, text = texts[at]
            played = decode(
                scores, drafter, greedy, prompt, sampling=cold, coins=TorchCoins(0), max_new_tokens=new,
                stop=stop_at_tokens((cold.processors and cold.processors.ends) or ()),
            )  # fmt: skip
            found = []
            for step in played:
                found += step.tokens
                taken += 1
                accepted += step.verdict.accepted
            assert found == text, f"{name}, text {at}"
            at += 1
        print(f"{name}: {taken} steps, {1 + accepted / taken:.2f} tokens per step")
        # Texts under processors repeat nothing.
        assert accepted or name == "jacobi" or (cold is not COLD and name != "model"), name


def random_prompts(vocab: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    while True:
        yield torch.randint(1, vocab, (24,), generator=generator)


def tiny(name: str, load: Callable[..., Any]) -> tuple[TransformersModel, TransformersModel]:
    target = TransformersModel(load(name))
    return target, TransformersModel(load(name, draft_of=target.model))


def test_all_sources_are_here(load: Callable[..., Any], tmp_path: Path) -> None:
    ours = {name for name, part in plugins.parts("source").items() if not part.plugged}
    ours -= {"synthetic"}  # drafts by the others, and its texts equal none
    ours -= {"strings"}  # drafts by another tokenizer: see `test_other_tokenizers`
    assert set(drafters(*tiny("llama", load), [1, 2, 3], tmp_path)) == ours


def test_a_text_of_every_source(
    load: Callable[..., Any], tmp_path: Path, without_shape_checks: None
) -> None:
    target, draft = tiny("qwen3", load)
    require_equal(target, draft, random_prompts(target.vocab_size), tmp_path, steps=1, new=48)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_text_of_every_source_under_all_processors(
    name: str, load: Callable[..., Any], tmp_path: Path, without_shape_checks: None
) -> None:
    target, draft = tiny(name, load)
    prompts = random_prompts(target.vocab_size)
    cold = Sampling(0.0, processors=_processors(PROCESSORS, 24))
    require_equal(target, draft, prompts, tmp_path, steps=1, new=24, cold=cold)


def test_texts_under_each_processor(load: Callable[..., Any], without_shape_checks: None) -> None:
    target, draft = tiny("llama", load)
    prompt = next(random_prompts(target.vocab_size))
    plain, changed = generate(target, prompt, 16), set()
    for setting, value in PROCESSORS.items():
        cold = Sampling(0.0, processors=_processors({setting: value}, 16))
        text = generate(target, prompt, 16, cold)
        if text != plain:
            changed.add(setting)
        for shape in (TreeShape.chain(4), BUSHY):
            steps = decode(
                ModelTarget(target), ModelDrafter(draft, shape, BEST, cold), greedy, prompt, sampling=cold,
                coins=TorchCoins(0), max_new_tokens=16, stop=stop_at_tokens(cold.processors.ends or ()),
            )  # fmt: skip
            assert [token for step in steps for token in step.tokens] == text, (setting, shape)
    # Not each processor changes each text.
    assert {"repetition_penalty", "suppress_tokens", "forced_eos_token_id", "custom"} <= changed


def _processors(settings: dict[str, Any], new: int) -> Processors:
    return Processors(**settings).ending({1, 5}, new)


def test_a_draft_that_equals_the_target_is_accepted_under_processors(
    load: Callable[..., Any], without_shape_checks: None
) -> None:
    """Rows of target and draft are processed along the same path, whoever drafts, over many steps."""
    target, _ = tiny("llama", load)
    prompt, chain = next(random_prompts(target.vocab_size)), TreeShape.chain(3)
    path = {"repetition_penalty": 1.4, "frequency_penalty": 0.5, "no_repeat_ngram_size": 2}
    for sampling in (Sampling(t, processors=_processors(path, 32)) for t in (0.0, 1.0)):
        law = BEST if sampling.greedy else Law.IID
        same = {
            "model": ModelDrafter(target, chain, law, sampling),
            "early_exit": EarlyExit(target, target.layer_count, chain, law, sampling),
            "layer_skip": LayerSkip(target, [], chain, law, sampling),
        }
        rule = greedy if sampling.greedy else verify.chain
        for name, drafter in same.items():
            steps = list(
                decode(
                    ModelTarget(target), drafter, rule, prompt, sampling=sampling, coins=TorchCoins(0),
                    max_new_tokens=32,
                )
            )  # fmt: skip
            missed = sum(3 - step.verdict.accepted for step in steps)
            assert missed <= 1, (name, sampling)  # rounding may cost one above temperature 0


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
