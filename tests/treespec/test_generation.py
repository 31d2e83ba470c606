"""`generate` on the embedded pair, compared with transformers' `generate`."""

from dataclasses import replace

import pytest
import torch
from transformers import GenerationConfig, RepetitionPenaltyLogitsProcessor

import treespec
from treespec import Failed, Generation, Law, Sampling, TorchCoins, TreeShape, generate, verify
from treespec.draft import ModelDrafter, NoDrafter
from treespec.errors import (
    ContextOverflow,
    EmptyPrompt,
    InvalidArgument,
    InvalidPrompt,
    InvalidStop,
    TreespecError,
)
from treespec.sampling.processors import Processors

PROMPT = "import os\nimport sys\n\n\ndef main(argv=None):\n    "
SHAPE = TreeShape.expansion([2, 2, 1])


@pytest.fixture(scope="module")
def pair():
    return treespec.load_pair("embedded")


def plain(pair, **settings):
    """The new ids of `generate` under neutral settings."""
    ids = torch.tensor([pair.tokenizer.encode(PROMPT)])
    neutral = {"do_sample": False, "max_new_tokens": 40, "pad_token_id": 0} | settings
    with pair.target.as_transformers() as model:
        config = GenerationConfig(**neutral)
        return model.generate(ids, generation_config=config, tokenizer=pair.tokenizer)[
            0, ids.shape[1] :
        ]


def test_the_summary_adds_up(pair):
    found = treespec.generate(pair, PROMPT, growth=SHAPE, max_new_tokens=40)
    assert list(found.tokens) == plain(pair).tolist()
    assert found.text == pair.tokenizer.decode(found.tokens, skip_special_tokens=True)
    assert found.steps == len(found.accepted_per_step) < 40
    assert found.emitted == sum(found.accepted_per_step) + found.steps >= len(found.tokens)
    assert found.drafted == found.steps * (SHAPE.size - 1)
    assert found.tokens_per_step == found.emitted / found.steps
    assert any(found.accepted_per_step)


def test_text_and_ids_are_the_same_prompt(pair):
    ids = pair.tokenizer.encode(PROMPT)
    assert treespec.generate(pair, ids, max_new_tokens=8) == treespec.generate(
        pair, PROMPT, max_new_tokens=8
    )


def test_ends_at_end_tokens_as_generate_does(pair, monkeypatch):
    whole = plain(pair).tolist()
    inside = 0
    for token in dict.fromkeys(whole):
        monkeypatch.setattr(pair.target.model.generation_config, "eos_token_id", token)
        pair.__dict__.pop("end_tokens", None)
        found = treespec.generate(pair, PROMPT, growth=SHAPE, max_new_tokens=40)
        assert list(found.tokens) == plain(pair, eos_token_id=token).tolist()
        inside += found.emitted > len(found.tokens)
    monkeypatch.undo()
    pair.__dict__.pop("end_tokens", None)
    assert inside, "no end fell inside an accepted path: the test would prove nothing"


@pytest.mark.slow
def test_ends_at_stop_strings_as_generate_does(pair):
    text = pair.tokenizer.decode(plain(pair))
    inside = 0
    for start in range(1, len(text) - 4, 5):
        string = text[start : start + 3]
        found = treespec.generate(
            pair, PROMPT, growth=SHAPE, max_new_tokens=40, stop_strings=string
        )
        assert list(found.tokens) == plain(pair, stop_strings=[string]).tolist()
        inside += found.emitted > len(found.tokens)
    assert inside, "no stop fell inside an accepted path: the test would prove nothing"


def test_end_tokens_are_those_of_generate(pair, monkeypatch):
    pair.__dict__.pop("end_tokens", None)
    monkeypatch.setattr(pair.target.model.generation_config, "eos_token_id", [3, 5])
    assert pair.end_tokens == {3, 5}
    pair.__dict__.pop("end_tokens", None)
    monkeypatch.setattr(pair.target.model.generation_config, "eos_token_id", None)
    monkeypatch.setattr(pair.target.model.config, "eos_token_id", 7)
    assert pair.end_tokens == {7}
    pair.__dict__.pop("end_tokens", None)
    monkeypatch.setattr(pair.target.model.config, "eos_token_id", None)
    assert pair.end_tokens == {pair.tokenizer.eos_token_id}
    monkeypatch.undo()
    pair.__dict__.pop("end_tokens", None)


@pytest.mark.parametrize("law", list(Law), ids=str)
def test_each_law_has_a_rule_by_default(pair, law):
    warm = Sampling(temperature=0.8, top_p=0.95)
    found = treespec.generate(pair, PROMPT, law=law, growth=SHAPE, sampling=warm, max_new_tokens=12)
    again = treespec.generate(pair, PROMPT, law=law, growth=SHAPE, sampling=warm, max_new_tokens=12)
    assert found == again
    other = treespec.generate(
        pair, PROMPT, law=law, growth=SHAPE, sampling=warm, max_new_tokens=12, coins=TorchCoins(1)
    )
    assert other.tokens != found.tokens


def test_a_drafter_of_ones_own(pair):
    warm = Sampling()
    drafter = ModelDrafter(pair.draft, SHAPE, Law.IID, warm)
    treespec.generate(
        pair, PROMPT, drafter=drafter, verifier=verify.rrs, sampling=warm, max_new_tokens=4
    )
    with pytest.raises(TypeError, match="give a verifier"):
        treespec.generate(pair, PROMPT, drafter=drafter, sampling=warm)
    with pytest.raises(TypeError, match="growth and law"):
        treespec.generate(pair, PROMPT, drafter=drafter, law=Law.IID)


def test_an_empty_stop_string_is_refused(pair):
    with pytest.raises(InvalidStop):
        treespec.generate(pair, PROMPT, stop_strings=[""])


@pytest.mark.gpu
def test_on_a_gpu_the_ids_are_those_of_generate():
    pair = treespec.load_pair("embedded", device="cuda")
    ids = torch.tensor([pair.tokenizer.encode(PROMPT)], device="cuda")
    with pair.target.as_transformers() as model:
        config = GenerationConfig(do_sample=False, max_new_tokens=40, pad_token_id=0)
        expected = model.generate(ids, generation_config=config)[0, ids.shape[1] :].tolist()
    assert list(treespec.generate(pair, PROMPT, growth=SHAPE, max_new_tokens=40).tokens) == expected
    for law in Law:
        assert treespec.generate(
            pair,
            PROMPT,
            law=law,
            growth=TreeShape.kary(2, 2),
            sampling=Sampling(),
            max_new_tokens=12,
        ).tokens


@pytest.mark.parametrize("shape", [TreeShape.chain(4), SHAPE])
def test_log_probabilities_are_those_of_a_plain_pass(shape):
    """Raw: of the model's logits. Processed: of the row that decided, 0 at temperature 0."""
    pair = treespec.load_pair("embedded", dtype="float32")
    prompt = pair.tokenizer.encode(PROMPT)
    sampling = Sampling(0.8, processors=Processors(repetition_penalty=1.2))
    for kind in ("raw", "processed"):
        made = generate(
            pair, prompt, growth=shape, sampling=sampling, max_new_tokens=11, logprobs=kind
        )
        assert len(made.logprobs) == len(made.tokens)
        ids = torch.tensor([[*prompt, *made.tokens]])
        with torch.inference_mode(), pair.target.as_transformers() as plain:
            logits = plain(ids).logits[0, len(prompt) - 1 : -1]
        for i, token in enumerate(made.tokens):
            row = logits[i]
            if kind == "processed":
                before = ids[:, : len(prompt) + i]
                row = RepetitionPenaltyLogitsProcessor(1.2)(before, row[None])[0] / 0.8
            assert made.logprobs[i] == pytest.approx(float(row.log_softmax(-1)[token]), abs=1e-3)
    cold = generate(pair, prompt, growth=shape, max_new_tokens=6, logprobs="processed")
    assert cold.logprobs == (0.0,) * 6
    assert generate(pair, prompt, growth=shape, max_new_tokens=6).logprobs is None


PENALTY = Sampling(0.8, processors=Processors(repetition_penalty=1.2))
MANY = ["def main(", PROMPT, "x", "class Tree:\n    def __init__(self", "", "import "]


def alone(pair, prompts, **settings):
    """What `generate` gives for each prompt, or the error that it raises."""
    found = []
    for prompt in prompts:
        try:
            found.append(generate(pair, prompt, **settings))
        except TreespecError as error:
            found.append((type(error), str(error)))
    return found


def named(found):
    return [(type(x.error), str(x.error)) if isinstance(x, Failed) else x for x in found]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"growth": SHAPE, "stop_strings": ["(", "\n"]},
        {"growth": TreeShape.chain(4), "sampling": PENALTY},
    ],
    ids=["usual", "stop strings", "sampled and processed"],
)  # fmt: skip
def test_several_prompts_give_what_each_gives_alone(settings):
    """In float64, where rounding decides nothing; log-probabilities but for the norms in float32."""
    pair = treespec.load_pair("embedded", dtype="float64")
    settings = {"max_new_tokens": 14, "logprobs": "raw"} | settings
    found, own = named(generate(pair, MANY, **settings)), alone(pair, MANY, **settings)
    lengths = set()
    for mine, expected in zip(found, own, strict=True):
        if isinstance(expected, tuple):
            assert mine == expected
            continue
        assert replace(mine, logprobs=None) == replace(expected, logprobs=None)
        assert mine.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
        lengths.add(len(mine.tokens))
    if "stop_strings" in settings:
        assert len(lengths) > 1


def test_an_empty_or_long_prompt_among_others_fails_alone(pair):
    long = [5] * (pair.target.max_length + 1)
    found = generate(pair, [[7, 8], [], long, [9]], max_new_tokens=4)
    assert [type(x) for x in found] == [Generation, Failed, Failed, Generation]
    assert [type(x.error) for x in found[1:3]] == [EmptyPrompt, ContextOverflow]
    assert named(found) == alone(pair, [[7, 8], [], long, [9]], max_new_tokens=4)
    assert generate(pair, [[7, 8]], max_new_tokens=4) == [found[0]]
    with pytest.raises(EmptyPrompt):
        generate(pair, [])


def test_each_prompt_has_coins_and_a_drafter_of_its_own(pair):
    warm, prompts = Sampling(), ["def main(", "def main("]
    coins = [TorchCoins(1), TorchCoins(2)]
    first, second = generate(pair, prompts, sampling=warm, coins=coins, max_new_tokens=12)
    assert first.tokens != second.tokens
    same = generate(pair, prompts, sampling=warm, max_new_tokens=12)
    assert same[0] == same[1]

    def mine():
        return ModelDrafter(pair.draft, SHAPE, Law.DETERMINISTIC, Sampling(0.0))

    found = generate(pair, prompts, drafter=[mine(), NoDrafter()], max_new_tokens=12)
    assert found[0].tokens == found[1].tokens
    assert found[1].drafted == 0 < found[0].drafted
    for wrong, message in (
        ({"coins": TorchCoins(0)}, "coins = .* would serve 2 prompts"),
        ({"drafter": mine()}, "drafter = .* would serve 2 prompts"),
        ({"coins": [TorchCoins(0)]}, "1 coins for 2 prompts"),
        ({"drafter": [mine()] * 2}, r"texts\[0\] and texts\[1\] have the same drafter"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            generate(pair, prompts, **wrong)
    with pytest.raises(InvalidPrompt, match=r"prompt\[1\]\[0\] = -1"):
        generate(pair, [[1, 2], [-1]])
