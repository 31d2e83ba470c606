"""Encoder-decoders: greedy texts over trees equal `generate`'s, with positions by depth."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoder_decoders import ENCODER_DECODERS, VOCAB, encoder_decoder
from tiny_models import build, perturbed
from torch import Tensor
from transformers import LEDConfig, WhisperConfig, WhisperForConditionalGeneration

from treespec import Law, Sampling, TorchCoins, TreeShape, decode
from treespec.draft import PromptLookup
from treespec.draft.model import ModelDrafter
from treespec.errors import InvalidPrompt, UnsupportedModel
from treespec.models import encoder_decoder as ours
from treespec.models.encoder_decoder import encoded
from treespec.models.passes.choosing_passes import choose_passes
from treespec.models.source import find, read_config
from treespec.models.support import context_length, source_length
from treespec.models.transformers_model import TransformersModel
from treespec.protocols import Drafter
from treespec.sampling.processors import Processors
from treespec.target.model_target import ModelTarget
from treespec.verify import greedy

NEW = 100
COLD = Sampling(temperature=0.0)
NOISE = {name: 0.3 if name.endswith("t5") else 0.6 for name in ENCODER_DECODERS}
BY_INDEX = ("t5", "umt5", "bart", "pegasus", "m2m_100")
"""One of each way to compute positions."""


class RandomTrees:
    """Another random tree of 30 nodes at every step."""

    max_depth = 8

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def next(self, shape: TreeShape, probs: object) -> list[tuple[int, int]]:
        left, places = 30 - shape.size, []
        nodes = [node for node in range(shape.size) if shape.depths[node] == shape.depth]
        for node in self._rng.permutation(nodes).tolist():
            count = min(left, int(self._rng.integers(0, 4)))
            if count:
                places.append((node, count))
                left -= count
        last = left and (not places or shape.depth == self.max_depth - 1)
        return [(nodes[0], left)] if last else places


def source_of(length: int) -> Tensor:
    return torch.randint(3, 90, (length,), generator=torch.Generator().manual_seed(length))


def start(model: TransformersModel) -> Tensor:
    return torch.tensor(model.start_tokens)


def generated(model: TransformersModel, source: Tensor, **settings: Any) -> list[int]:
    with model.as_transformers() as plain, torch.inference_mode():
        ids = plain.generate(
            source[None], attention_mask=torch.ones_like(source[None]), do_sample=False,
            max_new_tokens=NEW, **settings,
        )  # fmt: skip
    return ids[0, 1:].tolist()


def decoded(
    target: TransformersModel, drafter: Drafter, sampling: Sampling = COLD
) -> tuple[list[int], list[int]]:
    """The text of our loop, and the tokens accepted per step."""
    steps = decode(
        ModelTarget(target), drafter, greedy, start(target), sampling=sampling, coins=TorchCoins(0),
        max_new_tokens=NEW,
    )  # fmt: skip
    tokens, accepted = [], []
    for step in steps:
        tokens += step.tokens
        accepted.append(step.verdict.accepted)
    return tokens, accepted


@contextmanager
def by_index(modules: Sequence[Any], rows: Tensor, keys: Tensor) -> Iterator[None]:
    """The mutant: positions in the order of rows."""
    yield


@pytest.fixture
def models() -> Any:
    """A wrapped model and a noisy copy that drafts for it."""

    def made(name: str) -> tuple[TransformersModel, TransformersModel]:
        model = encoder_decoder(name)
        noisy = perturbed(model, NOISE[name])
        noisy.generation_config = model.generation_config
        return TransformersModel(model), TransformersModel(noisy)

    return made


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_greedy_text_equals_generate(name: str, models: Any) -> None:
    target, draft = models(name)
    seen, steps = 0, 0
    for length in (1, 17, 60):
        source = source_of(length)
        expected = generated(target, source)
        behind, trees = target.condition(source), RandomTrees(seed=length)
        drafter = ModelDrafter(draft.condition(source), trees, Law.DETERMINISTIC, COLD)
        tokens, accepted = decoded(behind, drafter)
        assert tokens == expected, length
        assert sum(accepted) > 3, "hardly a draft was accepted: this proves little"
        seen, steps = max(seen, len(set(expected))), steps + len(accepted)
    assert steps >= 3 * 40
    assert seen >= 8, "the texts vary too little to prove much"


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_tree_rows_equal_sequential_decoding(
    name: str, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits of a tree that is run level by level, committed, and run again; a mutant's differ."""
    model, source = models(name)[0], source_of(9)
    text = torch.tensor([*model.start_tokens, 7, 11, 5, 40, 8])
    tokens = torch.arange(10, 20)
    shape = TreeShape.expansion([3, 2])

    def after(*texts: list[int]) -> Tensor:
        with torch.inference_mode():
            rows = [
                model.model(input_ids=source[None], decoder_input_ids=torch.tensor([ids])).logits
                for ids in texts
            ]
        return torch.stack([row[0, -1] for row in rows])

    paths = [[*text.tolist(), *tokens[list(shape.path(node))].tolist()] for node in range(10)]
    expected = after(*paths)
    behind = model.condition(source)
    behind.prefill(text)
    whole = behind.run(tokens, shape.parents).logits
    levels = [(0, 1), (1, 4), (4, 10)]
    parts = [behind.run(tokens[a:b], shape.parents[:b], a).logits for a, b in levels]
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-4, atol=1e-4)
    behind.keep([0, 2, 7])
    again = behind.run(tokens[:1], (-1,)).logits
    torch.testing.assert_close(again, after([*paths[7], 10]), rtol=1e-4, atol=1e-4)

    monkeypatch.setattr(ours, "positions_by_depth", by_index)
    behind.prefill(text)
    assert (behind.run(tokens, shape.parents).logits - expected).abs().max() > 1e-2


@pytest.mark.parametrize("name", BY_INDEX)
def test_the_probe_finds_positions_by_index(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "positions_by_depth", by_index)
    with pytest.raises(UnsupportedModel, match="differ from sequential decoding"):
        TransformersModel(encoder_decoder(name))


def test_a_source_is_encoded_once(models: Any) -> None:
    target, _ = models("t5")
    calls: list[str] = []
    target.model.get_encoder().register_forward_hook(lambda *_: calls.append("encoder"))
    keys = target.model.get_decoder().block[0].layer[1].EncDecAttention.k
    keys.register_forward_hook(lambda *_: calls.append("keys"))
    behind = target.condition(source_of(5))
    for model in (behind, behind.fresh(), behind.fresh()):
        model.prefill(torch.tensor([0, 4]))
        model.run(torch.tensor([9]), (-1,))
    assert calls == ["encoder", "keys"]
    other = behind.condition(source_of(6))
    with pytest.raises(InvalidPrompt, match=r"need a source.*condition"):
        target.run(torch.tensor([0]), (-1,))
    other.run(torch.tensor([0]), (-1,))
    assert calls == ["encoder", "keys", "encoder", "keys"]


@pytest.mark.parametrize("name", ["bart", "mbart", "m2m_100"])
def test_forced_tokens_are_those_of_generate(name: str, models: Any) -> None:
    """Such as the language of a translation, which mBART and M2M100 force as the first token."""
    target, draft = models(name)
    source = source_of(17)
    forced = {"forced_bos_token_id": 33, "forced_eos_token_id": 44}
    expected = generated(target, source, **forced)
    sampling = Sampling(temperature=0.0, processors=Processors(**forced)).ending((), NEW)
    shape = TreeShape.expansion([3, 2, 1])
    drafter = ModelDrafter(draft.condition(source), shape, Law.DETERMINISTIC, sampling)
    tokens, _ = decoded(target.condition(source), drafter, sampling)
    assert tokens == expected
    assert (tokens[0], tokens[-1]) == (33, 44)


def test_lookup_in_the_source_drafts_what_is_copied(models: Any) -> None:
    target, _ = models("t5")
    behind = target.condition(source_of(60))
    expected = generated(target, source_of(60))
    without = decoded(behind, PromptLookup(4))
    copied = decoded(behind, PromptLookup(4, source=expected[:30]))
    assert without[0] == copied[0] == expected
    assert sum(copied[1]) >= sum(without[1]) + 10


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_a_source_is_as_long_as_the_encoder_takes(name: str) -> None:
    """Relative positions end nowhere, whatever the config states; others do where it says."""
    model = TransformersModel(encoder_decoder(name, n_positions=16))
    relative = name.endswith("t5")
    assert source_length(model.model.config) == (1 << 20 if relative else 128)
    assert model.max_length == source_length(model.model.config)
    longest = 300 if relative else 128
    for length in (longest - 1, longest):
        behind = model.condition(source_of(length))
        behind.prefill(start(model))
        assert behind.run(torch.tensor([7]), (-1,)).logits.isfinite().all()
    if relative:
        return
    with pytest.raises(InvalidPrompt, match="the source has 129 tokens, but the encoder takes 128"):
        model.condition(source_of(129))
    if name != "m2m_100":  # whose sinusoids go on beyond the length that it was trained on
        with pytest.raises((IndexError, RuntimeError)):
            encoded(model.model, source_of(129))


def test_two_halves_may_have_limits_of_their_own() -> None:
    config = LEDConfig(max_encoder_position_embeddings=300, max_decoder_position_embeddings=20)
    assert (source_length(config), context_length(config)) == (300, 20)


def test_an_encoder_of_sound_is_refused(tmp_path: Path) -> None:
    """By its config, before weights are read; and as a model that is loaded already."""
    config = WhisperConfig(
        vocab_size=VOCAB, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, num_mel_bins=8,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    with pytest.raises(
        UnsupportedModel,
        match=r"is a 'whisper' model.*a decoder alone or behind an encoder of text$",
    ):
        read_config(find(tmp_path))
    with pytest.raises(
        UnsupportedModel, match=r"^whisper models .*its encoder reads input_features"
    ):
        TransformersModel(WhisperForConditionalGeneration(config))


def test_what_cannot_be_is_refused_in_one_sentence(models: Any) -> None:
    target, _ = models("bart")
    for source, reason in (
        (torch.tensor([], dtype=torch.long), "the source has no tokens"),
        (torch.tensor([4, VOCAB]), f"token id {VOCAB}"),
    ):
        with pytest.raises(InvalidPrompt, match=reason):
            target.condition(source)
    with pytest.raises(UnsupportedModel, match="bart models are encoder-decoders"):
        target.without(["attention.0"])
    with pytest.raises(UnsupportedModel, match=r"passes='compiled'.*operation by operation"):
        choose_passes(target, "compiled")
    with pytest.raises(UnsupportedModel, match="attention='sdpa'"):
        TransformersModel(target.model, attention="sdpa")
    with pytest.raises(UnsupportedModel, match="llama models have no encoder"):
        TransformersModel(build("llama")).condition(source_of(3))
