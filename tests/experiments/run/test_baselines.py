import shutil
from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from treespec import load_pair
from treespec.errors import NonFiniteLogits
from treespec.experiments.run import baselines
from treespec.experiments.run.baselines import generate_assisted, generate_plain, preference
from treespec.experiments.run.unit import finish
from treespec.sampling.distributions import Sampling
from treespec.stopping import any_of, stop_at_strings, stop_at_tokens

GREEDY = Sampling(temperature=0.0)


def plainly(*arguments, **more):
    return finish(generate_plain(*arguments, **more))


def assistedly(*arguments, **more):
    return finish(generate_assisted(*arguments, **more))


@pytest.fixture(scope="module")
def prompt():
    return torch.tensor([17, 60, 23, 99, 100, 41])


def arguments(pair, **more):
    return {"max_new_tokens": 24, "stop": stop_at_tokens(pair.end_tokens), "seed": 3} | more


def by_hand(pair, prompt, new):
    """Greedy decoding without any cache."""
    ids = prompt.tolist()
    with pair.target.as_transformers() as model, torch.inference_mode():
        while len(ids) < len(prompt) + new:
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] in pair.end_tokens:
                break
    return tuple(ids[len(prompt) :])


def test_generate_is_plain_decoding(loaded_pair, prompt):
    outcome = plainly(loaded_pair, prompt, GREEDY, **arguments(loaded_pair))
    assert outcome.tokens == by_hand(loaded_pair, prompt, 24)
    assert len(set(outcome.tokens)) >= 8
    assert outcome.target_passes == len(outcome.tokens)
    assert (outcome.accepted, outcome.drafted) == (0, 0)
    assert 0 < outcome.prefill_s < outcome.total_s


def test_drafted_tokens_are_no_step_before_a_pass_has_verified_them(
    loaded_pair, prompt, monkeypatch
):
    """transformers 5.17 asks the stopping criteria about them, and 5.23 does not."""
    settings = arguments(loaded_pair, length=3, threshold=0.0)
    expected = assistedly(loaded_pair, prompt, GREEDY, **settings)
    asked = []
    call = baselines._Turns.__call__

    def asking_twice(self, ids, scores, **more):
        over = call(self, ids, scores, **more)
        if not over:
            asked.append(call(self, torch.cat([ids, ids[:, -1:]], dim=1), None))
        return over

    monkeypatch.setattr(baselines._Turns, "__call__", asking_twice)
    outcome = assistedly(loaded_pair, prompt, GREEDY, **settings)
    assert (outcome.tokens, outcome.accepted) == (expected.tokens, expected.accepted)
    assert len(asked) == outcome.target_passes - 1 > 3
    assert not any(asked)


@pytest.mark.parametrize("length", [1, 3, 8])
@pytest.mark.parametrize("threshold", [0.0, 0.4])
def test_assisted_gives_the_same_text_in_fewer_passes(loaded_pair, prompt, length, threshold):
    outcome = assistedly(
        loaded_pair,
        prompt,
        GREEDY,
        length=length,
        threshold=threshold,
        **arguments(loaded_pair),
    )
    assert outcome.tokens == by_hand(loaded_pair, prompt, 24)
    assert 0 < outcome.target_passes < len(outcome.tokens)
    assert outcome.accepted == len(outcome.tokens) - outcome.target_passes


@pytest.mark.parametrize("prompt_length", [1, 2, 6])
def test_short_prompts(loaded_pair, prompt, prompt_length):
    short = prompt[:prompt_length]
    expected = by_hand(loaded_pair, short, 24)
    more = arguments(loaded_pair)
    assert plainly(loaded_pair, short, GREEDY, **more).tokens == expected
    assisted = assistedly(loaded_pair, short, GREEDY, length=4, threshold=0.0, **more)
    assert assisted.tokens == expected


def test_a_model_folders_own_settings_change_nothing(loaded_pair, prompt):
    model = loaded_pair.target.model
    before = model.generation_config
    expected = plainly(loaded_pair, prompt, GREEDY, **arguments(loaded_pair)).tokens
    sampled = plainly(loaded_pair, prompt, Sampling(), **arguments(loaded_pair)).tokens
    try:
        model.generation_config = GenerationConfig(
            repetition_penalty=1.7, do_sample=True, top_k=2, temperature=0.1, max_length=9
        )
        kept = model.generation_config
        plain = plainly(loaded_pair, prompt, GREEDY, **arguments(loaded_pair))
        assert plain.tokens == expected
        hot = plainly(loaded_pair, prompt, Sampling(), **arguments(loaded_pair))
        assert hot.tokens == sampled
        assert model.generation_config is kept
    finally:
        model.generation_config = before


def test_top_k_is_off_unless_asked_for(loaded_pair, prompt):
    """transformers would apply its default top_k of 50."""
    tokens = set()
    hot = Sampling(temperature=5.0)
    for seed in range(12):
        tokens.update(plainly(loaded_pair, prompt, hot, **arguments(loaded_pair, seed=seed)).tokens)
    assert len(tokens) > 100
    one = plainly(loaded_pair, prompt, Sampling(top_k=1), **arguments(loaded_pair))
    assert one.tokens == by_hand(loaded_pair, prompt, 24)


def test_the_seed_decides(loaded_pair, prompt):
    first, again, other = (
        assistedly(
            loaded_pair,
            prompt,
            Sampling(),
            length=3,
            threshold=0.0,
            **arguments(loaded_pair, seed=seed),
        ).tokens
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_stop_strings_cut_alike(loaded_pair, prompt):
    tokenizer = loaded_pair.tokenizer
    text = tokenizer.decode(by_hand(loaded_pair, prompt, 24))
    string = text[len(text) // 2 : len(text) // 2 + 2]
    stop = any_of(stop_at_tokens(loaded_pair.end_tokens), stop_at_strings([string], tokenizer))
    more = arguments(loaded_pair, stop=stop)
    plain = plainly(loaded_pair, prompt, GREEDY, **more)
    assert 0 < len(plain.tokens) < 24
    assisted = assistedly(loaded_pair, prompt, GREEDY, length=8, threshold=0.0, **more)
    assert assisted.tokens == plain.tokens


def test_preference_is_a_difference_of_logits(loaded_pair, prompt):
    with loaded_pair.target.as_transformers() as model:
        logits = model(prompt[None]).logits[0, -1]
    for token, other in ((5, 9), (9, 5), (int(logits.argmax()), 0)):
        gap = preference(loaded_pair, GREEDY, prompt.tolist(), len(prompt), token, other)
        assert gap == pytest.approx(float(logits[token] - logits[other]), rel=1e-4)


@pytest.mark.parametrize("width", [-14, 14])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_with_a_vocabulary_padded_otherwise(
    tiny_pair, tmp_path, prompt, width, temperature
):
    """Real pairs pad their vocabularies differently; transformers would assume different tokenizers."""
    shutil.copytree(tiny_pair, tmp_path / "pair")
    draft = AutoModelForCausalLM.from_pretrained(tmp_path / "pair" / "draft")
    target = AutoModelForCausalLM.from_pretrained(tmp_path / "pair" / "target")
    padded = draft if width > 0 else target
    padded.resize_token_embeddings(padded.config.vocab_size + 14, mean_resizing=False)
    with torch.no_grad():
        padded.lm_head.weight[-14:] = 0
    draft.save_pretrained(tmp_path / "pair" / "draft")
    target.save_pretrained(tmp_path / "pair" / "target")
    pair = load_pair(tmp_path / "pair")
    sampling = Sampling(temperature)
    found = assistedly(pair, prompt, sampling, length=4, threshold=0.0, **arguments(pair))
    assert found.tokens
    if sampling.greedy:
        assert found.tokens == plainly(pair, prompt, sampling, **arguments(pair)).tokens
    assert pair.draft.model.config.vocab_size != pair.target.model.config.vocab_size


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", ["target", "draft"])
def test_bad_logits_are_never_a_token(loaded_pair, prompt, broken, temperature):
    weight = getattr(loaded_pair, broken).model.lm_head.weight
    before = weight.detach().clone()
    more = arguments(loaded_pair)
    try:
        with torch.no_grad():
            weight[3] = torch.nan
        decode = {
            "target": partial(plainly, loaded_pair, prompt, Sampling(temperature), **more),
            "draft": partial(
                assistedly, loaded_pair, prompt, Sampling(temperature),
                length=3, threshold=0.0, **more,
            ),
        }  # fmt: skip
        with pytest.raises((NonFiniteLogits, RuntimeError)) as failure:
            decode[broken]()
        if temperature == 0:
            assert f"the {broken} model returned NaN" in str(failure.value)
    finally:
        with torch.no_grad():
            weight.copy_(before)
