"""Prompt lookup: what it copies, as a chain and as a tree, and that it reads committed tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig

from treespec import Law, Sampling, TorchCoins, decode, load_pair, verify
from treespec.draft import PromptLookup
from treespec.errors import EmptyPrompt, InvalidArgument
from treespec.target import ModelTarget

TEXT = "for i in range(10):\n    print(i)\nfor i in range(10):\n    "


def chain(text, depth=8, **options):
    drafter = PromptLookup(depth, **options)
    drafter.prefill(torch.tensor(text))
    tree = drafter.propose(TorchCoins(0))
    assert tree.laws <= {Law.DETERMINISTIC}
    assert tree.token_ids[0] == text[-1]
    return list(tree.token_ids[1:])


def by_definition(text, depth, ngram):
    """The same, by examining every place of the text for every token."""
    for n in range(ngram, 0, -1):
        places = [i + n for i in range(len(text) - n) if text[i : i + n] == text[-n:]]
        if places and n <= len(text):
            break
    else:
        return []
    drafted = []
    for _ in range(depth):
        going_on = [
            text[at + len(drafted)]
            for at in places
            if text[at : at + len(drafted)] == drafted and at + len(drafted) < len(text)
        ]
        if not going_on:
            break
        latest = {token: i for i, token in enumerate(going_on)}
        drafted.append(max(latest, key=lambda token: (going_on.count(token), latest[token])))
    return drafted


@pytest.mark.parametrize(
    ("text", "drafted"),
    [
        ([1, 2, 3, 4], []),  # nothing stood before
        ([1, 2, 3, 9, 1, 2, 3], [9, 1, 2, 3]),  # up to the end of the text
        ([5, 7, 6, 7], [6, 7]),  # three and two tokens are new, one is not
        ([1, 8, 2, 1, 9, 2, 1, 9, 2, 1], [9, 2, 1]),  # 2, 1 was never followed by 8
        ([1, 8, 0, 1, 9, 0, 7, 1], [9, 0, 7, 1]),  # a vote each: the later one
        ([1, 8, 0, 1, 8, 0, 1, 9, 7, 1], [8, 0, 1, 9, 7, 1]),  # two votes against one, then a tie
        ([4, 4, 4, 4], [4]),  # the longest match comes first, though shorter ones go on
        ([4], []),
    ],
)
def test_what_is_copied(text, drafted):
    assert chain(text) == drafted


def test_depth_and_ngram_bound_it():
    text = [1, 2, 3, 9, 1, 2, 3]
    assert chain(text, depth=2) == [9, 1]
    assert chain([2, 3, 5, 8, 3, 7, 2, 3], ngram=1) == [7, 2, 3]
    assert chain([2, 3, 5, 8, 3, 7, 2, 3], ngram=2) == [5, 8, 3, 7, 2, 3]


def test_the_latest_places_vote():
    text = [1, 8, 1, 8, 1, 9, 1]
    assert chain(text, 1, ngram=1) == [8]
    assert chain(text, 1, ngram=1, places=1) == [9]


def tree_by_definition(text, ngram, depth, size, branching):
    """Counts all prefixes of all continuations, and takes the best ones one by one."""
    for n in range(min(ngram, len(text)), 0, -1):
        places = [i + n for i in range(len(text) - n) if text[i : i + n] == text[-n:]]
        if places:
            break
    else:
        return ()
    counts, latest = {}, {}
    for at in places:
        for length in range(1, depth + 1):
            if at + length <= len(text):
                prefix = tuple(text[at : at + length])
                counts[prefix], latest[prefix] = counts.get(prefix, 0) + 1, at + length
    ranked = sorted(counts, key=lambda p: (-counts[p], len(p), -latest[p]))
    kept = {()}
    for prefix in ranked:
        elder = [p for p in kept if len(p) == len(prefix) and p[:-1] == prefix[:-1]]
        if prefix[:-1] in kept and len(elder) < branching and len(kept) < size:
            kept.add(prefix)
    return kept - {()}


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=24), st.integers(1, 3), st.integers(1, 4),
    st.integers(2, 9), st.integers(1, 3),
)  # fmt: skip
def test_the_tree_holds_the_most_frequent_continuations(text, ngram, depth, size, branching):
    drafter = PromptLookup(depth, ngram=ngram, size=size, branching=branching)
    drafter.prefill(torch.tensor(text))
    tree = drafter.propose(TorchCoins(0))
    paths = {0: ()}
    for node, parent in enumerate(tree.shape.parents[1:], start=1):
        paths[node] = (*paths[parent], tree.token_ids[node])
    assert set(paths.values()) - {()} == set(
        tree_by_definition(text, ngram, depth, size, branching)
    )
    assert len(set(paths.values())) == tree.shape.size  # siblings are distinct


def test_a_tree_by_counts():
    """8 0 follows at two places and 9 7 at one: shares 2/3 and 1/3, shorter ones first in case of ties."""
    drafter = PromptLookup(3, size=5, branching=2)
    drafter.prefill(torch.tensor([1, 8, 0, 1, 8, 0, 1, 9, 7, 1]))
    tree = drafter.propose(TorchCoins(0))
    assert (tree.shape.parents, tree.token_ids) == ((-1, 0, 1, 2, 0), (1, 8, 0, 1, 9))


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=24), st.integers(1, 6), st.integers(1, 4),
    st.integers(1, 24),
)  # fmt: skip
def test_it_is_what_the_definition_says_however_the_text_came(text, depth, ngram, cut):
    """Read at once, or partly through committed steps."""
    expected = by_definition(text, depth, ngram)
    assert chain(text, depth, ngram=ngram) == expected
    drafter = PromptLookup(depth, ngram=ngram)
    drafter.prefill(torch.tensor([0, 1, 2, 0, 1]))  # forgotten
    drafter.prefill(torch.tensor(text[:cut]))
    drafter._read(text[cut:])
    assert list(drafter.propose(TorchCoins(0)).token_ids[1:]) == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_on_the_embedded_pair(temperature):
    """Greedy text equals that of `generate`; a source without a model uses only the pair's target."""
    pair = load_pair("embedded")
    prompt = torch.tensor(pair.tokenizer.encode(TEXT))
    sampling = Sampling(temperature=temperature)
    steps = list(decode(
        ModelTarget(pair.target), PromptLookup(6), verify.usual_rule(Law.DETERMINISTIC, sampling), prompt,
        sampling=sampling, coins=TorchCoins(0), max_new_tokens=24,
    ))  # fmt: skip
    text = [token for step in steps for token in step.tokens]
    assert len(text) == 24
    assert any(step.tree.shape.depth for step in steps)
    if not temperature:
        assert any(step.verdict.accepted for step in steps)
        with pair.target.as_transformers() as model:
            config = GenerationConfig(do_sample=False, max_new_tokens=24, pad_token_id=0)
            whole = model.generate(prompt[None], generation_config=config)
        assert text == whole[0, len(prompt) :].tolist()


WRONG = [
    {"depth": 0}, {"depth": 2, "ngram": 0}, {"depth": 2, "places": -1}, {"depth": 2, "size": 1},
    {"depth": 2, "branching": 2},
]  # fmt: skip


@pytest.mark.parametrize("bad", WRONG, ids=str)
def test_wrong_settings(bad):
    with pytest.raises(InvalidArgument, match=list(bad)[-1]):
        PromptLookup(**bad)


def test_no_prompt():
    with pytest.raises(EmptyPrompt):
        PromptLookup(2).prefill(torch.tensor([], dtype=torch.long))
