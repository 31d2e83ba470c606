import pytest
import torch
from transformers import StopStringCriteria

from treespec.errors import InvalidStop
from treespec.stopping import stop_at_strings


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "b"), ("ab", "c"), ("d", "Ġ"), ("c", "d")]
    vocab = {token: i for i, token in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core)


@pytest.mark.parametrize("strings", [["cd"], ["abc"], ["b"], ["d a", "zz"], ["bcd"]])
def test_stops_at_the_token_at_which_transformers_stops(tokenizer, strings):
    ids = tokenizer.encode("xx abcd abcd ab cd a zz")
    ours = stop_at_strings(strings, tokenizer)
    theirs = StopStringCriteria(tokenizer, strings)
    decisions = [ours(ids[:n]) for n in range(1, len(ids) + 1)]
    assert decisions == [
        bool(theirs(torch.tensor([ids[:n]]), None)) for n in range(1, len(ids) + 1)
    ]
    assert any(decisions)


@pytest.mark.parametrize("strings", [[], [""], ["a", ""], ""])
def test_strings_that_would_end_every_text(tokenizer, strings):
    with pytest.raises(InvalidStop, match="stop strings"):
        stop_at_strings(strings, tokenizer)


def test_a_single_string_is_one_string(tokenizer):
    ids = tokenizer.encode("xx a d b ab")
    assert not any(stop_at_strings("ba", tokenizer)(ids[:n]) for n in range(1, len(ids)))


def test_a_string_completed_inside_a_token_counts(tokenizer):
    ids = tokenizer.encode("xab")
    assert stop_at_strings(["xa"], tokenizer)(ids), tokenizer.convert_ids_to_tokens(ids)
