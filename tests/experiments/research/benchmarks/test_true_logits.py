"""Greedy texts and passes are judged by logits in float64."""

import pytest
import torch

from treespec import load_pair
from treespec.experiments.research.benchmarks.gpu import true_logits
from treespec.experiments.research.benchmarks.gpu.true_logits import Judgement, judge, judge_text

PARENTS = [-1, 0, 0, 1, 1, 2, 3, 3, 5, 5]
IDS = torch.arange(5, 45)


@pytest.fixture(scope="module")
def models():
    return [load_pair("embedded", dtype=dtype).target for dtype in ("bfloat16", "float64")]


def test_logits_after_a_tree_are_those_of_the_model_in_float64(models):
    narrow, wide = models
    judged = judge(narrow, IDS[:30], IDS[30:], PARENTS)
    wide.prefill(IDS[:30])
    truth = wide.run(IDS[30:], tuple(PARENTS)).logits
    torch.testing.assert_close(judged.truth, truth, rtol=0, atol=1e-9)
    narrow.prefill(IDS[:30])
    logits = narrow.run(IDS[30:], tuple(PARENTS)).logits
    assert logits.dtype == torch.bfloat16
    assert 0.1 < judged.error(logits) / judged.bound < 1
    narrow.prefill(IDS[:30])
    chain = narrow.run(IDS[30:], tuple(range(-1, 9))).logits
    assert judged.error(chain) > judged.bound, "a tree taken for a chain is noticed"


def test_tokens_of_a_greedy_text(models):
    narrow, wide = models
    prompt, tokens = IDS[:12], []
    wide.prefill(prompt[:-1])
    root = prompt[-1:]
    for _ in range(5):
        root = wide.run(root, (-1,)).logits.argmax(-1)
        wide.keep((0,))
        tokens.append(int(root))
    text = torch.tensor(tokens)
    judged = judge_text(narrow, prompt, text)
    assert judged.ties(text) == []
    assert judged.is_greedy(text)
    text[2] = (text[2] + 1) % 4096
    other = judge_text(narrow, prompt, text)
    assert next(place for place, _ in other.ties(text)) == 2
    assert not other.is_greedy(text)


def test_what_is_a_near_tie():
    judged = Judgement(torch.tensor([[1.0, 3.0, 2.5], [0.0, 5.0, 4.0]]).double(), 0.3)
    assert judged.is_greedy(torch.tensor([2, 1]))
    assert judged.ties(torch.tensor([2, 1])) == [(0, 0.5)]
    assert not judged.is_greedy(torch.tensor([2, 2]))


def test_the_model_stays_as_it_is(models):
    before = {name: weight.dtype for name, weight in models[0].model.named_parameters()}
    true_logits.judge_text(models[0], IDS[:5], IDS[5:8])
    assert set(before.values()) == {torch.bfloat16}
    assert not any("forward" in vars(module) for module in models[0].model.modules())
