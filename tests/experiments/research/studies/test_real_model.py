"""The two checks on the real model, on small ones."""

import pytest
import torch

from treespec import TorchCoins, load_pair
from treespec.experiments.config.build import build
from treespec.experiments.config.file import load_config
from treespec.experiments.research.studies import sampled_law
from treespec.experiments.research.studies.greedy_ids import gaps, reference
from treespec.experiments.research.studies.sampled_law import (
    RULES,
    SETTINGS,
    AcceptsTooOften,
    decide,
)
from treespec.verify import RULES as ALL_RULES


def contexts(count=20, vocab=30):
    generator = torch.Generator().manual_seed(1)
    made = []
    for _ in range(count):
        target = 2 * torch.randn(vocab, generator=generator)
        draft = target + torch.randn(vocab, generator=generator)
        ids = torch.randint(vocab, (9,), generator=generator).tolist()
        made.append({"ids": ids, "prompt": 4, "target": target, "draft": draft})
    return made


@pytest.mark.parametrize("name", RULES)
def test_exact_rules_pass_and_biased_coins_do_not(name, monkeypatch):
    monkeypatch.setattr(sampled_law, "BIAS", 0.5)
    _, processed = SETTINGS.values()
    rule, law = ALL_RULES[name], RULES[name]
    assert abs(decide(rule, law, processed, contexts(), TorchCoins(0), 300).z) < 3.3
    assert decide(rule, law, processed, contexts(), AcceptsTooOften(1), 300).z > 3.3


def test_a_text_that_differs_is_found_with_its_gap():
    config = load_config("smoke", ["samplings=[{temperature: 0}]", "methods=[{kind: plain}]"])
    pair, (method,) = load_pair("embedded"), build(config).methods
    prompt = pair.tokenizer.encode("def area(a, b):")
    text, logits = reference(pair, prompt, 6)
    assert gaps(pair, method, prompt, text, logits, 6) == ([], 6)
    assert gaps(pair, method, prompt, text, logits, 7) == ([float("inf")], 7)
    other = int(logits[3].argsort()[-2])
    found, _ = gaps(pair, method, prompt, [*text[:3], other], logits, 4)
    assert found == [float(logits[3, other] - logits[3, text[3]])]
