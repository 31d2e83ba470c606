"""Settings of processors: ranges, contradictions, and processors that cannot be used on trees."""

import math

import pytest
import torch
from transformers import LogitsProcessor, WatermarkLogitsProcessor
from transformers.generation import logits_process as theirs

from treespec import Sampling
from treespec.errors import InvalidSampling
from treespec.sampling.processors import WITH_MEMORY, Processors


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty = 0.0, but must be above 0"),
        ({"repetition_penalty": math.inf}, "finite"),
        ({"frequency_penalty": math.nan}, "frequency_penalty = nan"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size = -1"),
        ({"min_new_tokens": 1.5}, "min_new_tokens = 1.5"),
        ({"suppress_tokens": (1, -2)}, r"suppress_tokens\[1\] = -2"),
        ({"suppress_tokens": "12"}, "suppress_tokens = '12', but must be a list"),
        ({"bad_words_ids": ((),)}, "bad_words_ids holds an empty sequence"),
        ({"sequence_bias": ((1, 2.0),)}, r"sequence_bias = 1, but must be a list"),
        ({"sequence_bias": (((1,), math.inf),)}, "bias inf"),
        ({"exponential_decay_length_penalty": (1,)}, r"must be \[start, factor\]"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens = 9, but max_new_tokens = 8"),
        ({"forced_eos_token_id": 3, "suppress_tokens": (3,)}, "suppress_tokens holds it too"),
        ({"custom": (3,)}, "custom holds 3"),
    ],
)
def test_wrong_values_are_refused_by_name(wrong, said):
    with pytest.raises(InvalidSampling, match=said):
        Processors(**wrong)


def test_processors_with_memory_are_refused_by_name():
    for name in WITH_MEMORY:
        kind = getattr(theirs, name, None) or type(name, (LogitsProcessor,), {})
        heir = type("Mine", (kind,), {})
        with pytest.raises(InvalidSampling, match=name):
            Processors(custom=(heir.__new__(heir),))
    Processors(custom=(WatermarkLogitsProcessor(32, "cpu"),))


def test_only_what_depends_on_the_text_reads_the_path():
    assert not Processors(
        suppress_tokens=(1,), bad_words_ids=((2,),), sequence_bias=(((3,), 1.0),)
    ).reads_path
    for path in (
        {"repetition_penalty": 1.1}, {"bad_words_ids": ((1, 2),)}, {"min_length": 3},
        {"sequence_bias": (((1, 2), 1.0),)}, {"custom": (print,)}, {"begin_suppress_tokens": (1,)},
    ):  # fmt: skip
        assert Processors(**path).reads_path, path


def test_settings_without_effect_are_none():
    assert Sampling(processors=Processors(repetition_penalty=1.0)).processors is None
    assert Sampling(processors=Processors(min_length=1)).processors is not None


@pytest.mark.parametrize("truncation", ["typical_p", "epsilon_cutoff", "eta_cutoff"])
def test_cut_offs_are_those_of_transformers(truncation):
    warper = {
        "typical_p": lambda: theirs.TypicalLogitsWarper(0.6),
        "epsilon_cutoff": lambda: theirs.EpsilonLogitsWarper(0.05),
        "eta_cutoff": lambda: theirs.EtaLogitsWarper(0.1),
    }[truncation]()
    value = {"typical_p": 0.6, "epsilon_cutoff": 0.05, "eta_cutoff": 0.1}[truncation]
    logits = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([warper(None, rows / 0.8) for rows in logits]).softmax(-1)
    sampling = Sampling(0.8, **{truncation: value})
    assert torch.equal(sampling(logits), expected)
    assert torch.equal(sampling(logits[0, 0]), expected[0, 0])
    assert (expected == 0).any()
    assert sampling.truncates(32)
    assert torch.equal(Sampling(0.0, **{truncation: value})(logits), Sampling(0.0)(logits))
    with pytest.raises(InvalidSampling, match=truncation):
        Sampling(**{truncation: 1.5})


def test_rows_of_a_text_need_the_text():
    sampling = Sampling(processors=Processors(repetition_penalty=1.2))
    with pytest.raises(InvalidSampling, match="rows_of_text"):
        sampling.rows(torch.zeros(1, 4))
