"""Sampling settings in configs: names, processors of plug-ins, and what a model's own file asks for."""

import json
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

from treespec import plugins
from treespec.experiments.config.build import build
from treespec.experiments.config.file import validated
from treespec.experiments.config.generation import asked_for, unnamed, unnamed_in_words
from treespec.experiments.config.samplings import SamplingConfig, sampling_of, settings_of
from treespec.experiments.errors import ConfigError
from treespec.search.traces.sampling_names import name_of

BASE = {
    "name": "x",
    "prompts": {"kind": "embedded", "count": 1},
    "max_new_tokens": 8,
    "methods": [{"kind": "plain"}],
}
EVERY = {
    "temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.95, "epsilon_cutoff": 1e-4,
    "eta_cutoff": 1e-3, "repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1,
    "no_repeat_ngram_size": 3, "min_length": 4, "min_new_tokens": 2, "suppress_tokens": [1, 2],
    "begin_suppress_tokens": [3], "bad_words_ids": [[4], [5, 6]], "sequence_bias": [[[7, 8], -1.0]],
    "forced_bos_token_id": 9, "forced_eos_token_id": 10, "exponential_decay_length_penalty": [5, 1.1],
}  # fmt: skip


def config(*samplings, **more):
    return validated(Path("x.yaml"), {**BASE, "samplings": list(samplings), **more})


@pytest.fixture
def odd():
    kept = plugins.kept()

    class Settings(plugins.Settings):
        by: float = 1.0

    @plugins.processor("odd", settings=Settings)
    def make(settings):
        return lambda ids, scores: scores + settings.by

    yield
    plugins.restore(kept)


def test_every_setting_reaches_the_sampling_and_the_name():
    setting = config(EVERY).samplings[0]
    sampling = sampling_of(setting)
    assert sampling.processors is not None
    assert sampling.typical_p == 0.95
    for name, value in EVERY.items():
        here = getattr(sampling, name, None)
        here = getattr(sampling.processors, name, None) if here is None else here
        assert json.loads(json.dumps(here)) == value, name
        assert f"{'T' if name == 'temperature' else name}=" in setting.name
    assert name_of(settings_of(sampling)) == setting.name
    assert name_of(json.loads(json.dumps(settings_of(sampling)))) == setting.name
    plain = SamplingConfig(temperature=0.0)
    assert SamplingConfig(temperature=0.0, repetition_penalty=1.0).name == "T=0"
    lists = [SamplingConfig(suppress_tokens=(*range(40), last)) for last in (50, 51)]
    assert lists[0].name != lists[1].name
    assert plain.name == name_of(settings_of(sampling_of(plain))) == "T=0"


def test_a_processor_of_a_plug_in_is_made_and_named(odd):
    experiment = build(config({"temperature": 0, "custom": [{"processor": "odd", "by": 2}]}))
    (name, sampling) = next(iter(experiment.samplings.items()))
    assert name == "T=0, custom=odd(by=2)" == name_of(settings_of(sampling))
    (processor,) = sampling.processors.custom
    assert processor(None, torch.zeros(1)) == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"custom": [{"processor": "od"}]}, "did you mean 'odd'"),
        ({"custom": [{"processor": "odd", "bye": 1}]}, r"custom\[0\]: bye: unknown key"),
        ({"custom": [{"by": 1}]}, "must name a processor"),
        (
            {"forced_eos_token_id": 3, "suppress_tokens": [3]},
            r"samplings\[0\]: forced_eos_token_id = 3",
        ),
        ({"from": "file"}, r"samplings\[0\].from = 'file'"),
        ({"repetition_penalty": 0}, "repetition_penalty = 0"),
        ({"no_repeat_ngrams": 3}, "did you mean 'no_repeat_ngram_size'"),
    ],
)
def test_mistakes_name_the_key(odd, wrong, said):
    with pytest.raises(ConfigError, match=said):
        build(config(wrong))


def test_a_minimum_above_the_budget_is_told_when_ends_are_known():
    experiment = build(config({"min_new_tokens": 9}))
    with pytest.raises(ConfigError, match="min_new_tokens = 9, but max_new_tokens = 8"):
        experiment.ending({0})
    ended = build(config({"min_new_tokens": 7})).ending({0})
    assert ended.samplings["T=1, min_new_tokens=7"].processors.ends == (0,)
    assert ended.methods[0].choices["T=1, min_new_tokens=7"].sampling.processors.ends == (0,)


def test_from_model_takes_what_generate_would_use():
    file = GenerationConfig(do_sample=True, temperature=0.6, top_p=0.8, repetition_penalty=1.05)
    taken = asked_for(file, "the file")
    assert taken == {"temperature": 0.6, "top_k": 50, "top_p": 0.8, "repetition_penalty": 1.05}
    file = GenerationConfig(do_sample=False, temperature=0.6, no_repeat_ngram_size=4)
    assert asked_for(file, "the file") == {"temperature": 0.0, "no_repeat_ngram_size": 4}
    assert asked_for(GenerationConfig(do_sample=True, top_k=0), "the file") == {"temperature": 1.0}
    for refused in (
        {"num_beams": 3}, {"guidance_scale": 1.5}, {"penalty_alpha": 0.6, "top_k": 4}, {"max_time": 3.0},
        {"force_words_ids": [[3]]}, {"token_healing": True},
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=next(iter(refused))):
            asked_for(GenerationConfig(**refused), "the file")


def test_from_model_reads_the_target_and_keeps_further_keys(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    bias = [[[3, 4], -1.0]]
    file = GenerationConfig(do_sample=True, temperature=0.6, sequence_bias=bias)
    file.save_pretrained(tmp_path)
    both = config(
        {"from": "model", "top_k": 7}, {"temperature": 0}, models={"target": str(tmp_path)}
    )
    first, second = both.samplings
    assert first.given == {
        "temperature": 0.6, "top_k": 7, "sequence_bias": (((3, 4), -1.0),)
    }  # fmt: skip
    assert second.name == "T=0"
    with pytest.raises(ConfigError, match=r"models\.target"):
        config({"from": "model"}, models={"target": str(tmp_path / "none")})


def test_what_a_config_does_not_name_is_told():
    file = GenerationConfig(temperature=0.6, top_k=20, repetition_penalty=1.05, num_beams=2)
    cold, named = SamplingConfig(temperature=0.0), SamplingConfig(temperature=1.0, top_k=5)
    assert unnamed(file, [cold]) == {"repetition_penalty": 1.05, "num_beams": 2}
    assert unnamed(file, [named]) == {"repetition_penalty": 1.05, "num_beams": 2}
    assert unnamed(file, [SamplingConfig()])["temperature"] == 0.6
    assert "repetition_penalty = 1.05, num_beams = 2" in unnamed_in_words(
        unnamed(file, [cold, named])
    )
    assert unnamed_in_words(unnamed(GenerationConfig(), [cold])) is None


def test_stop_strings_are_named_outside_samplings():
    file, cold = GenerationConfig(stop_strings=["END"]), [SamplingConfig(temperature=0.0)]
    assert asked_for(file, "the file") == {"temperature": 0.0}
    assert unnamed(file, cold) == {"stop_strings": ["END"]}
    assert unnamed(file, cold, ["END"]) == {}
    words = unnamed_in_words({"stop_strings": ["END"]})
    assert words.endswith("uses it. stop_strings stands beside samplings in a config")


def test_zeros_of_a_file_mean_what_they_mean_to_generate():
    file = GenerationConfig(forced_eos_token_id=0, guidance_scale=1.0, top_k=0)
    assert asked_for(file, "the file") == {"temperature": 0.0, "forced_eos_token_id": 0}
    with pytest.raises(ConfigError, match="guidance_scale = 0"):
        asked_for(GenerationConfig(guidance_scale=0.0), "the file")
    file = GenerationConfig(do_sample=True, temperature=0.0)
    with pytest.raises(ConfigError, match="do_sample = true and temperature = 0"):
        asked_for(file, "the file")
    file = GenerationConfig(min_new_tokens=0, min_length=50)  # the first takes the second's place
    assert asked_for(file, "the file") == {"temperature": 0.0}
