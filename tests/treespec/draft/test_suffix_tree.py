"""Suffix decoding: scores, budgets and ties, checked against all matches by definition."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec import TorchCoins
from treespec.draft import SuffixCounts, SuffixTree
from treespec.errors import InvalidArgument

A, B = 0, 1


def tree(text, depth=8, **options):
    drafter = SuffixTree(depth, **options)
    drafter.prefill(torch.tensor(text))
    found = drafter.propose(TorchCoins(0))
    return found.shape.parents, found.token_ids[1:]


def counted(*texts, window=64):
    counts = SuffixCounts(window)
    for text in texts:
        counts.read(text)
        counts.end()
    return counts


def by_definition(text, past, *, size, branching, window, factor, offset, least):
    """All matches of both trees, shortest first, each draft grown by counting strings in texts."""

    def drafts(texts, own):
        for m in range(1, min(len(text), window) + 1):
            match = tuple(text[len(text) - m :])
            full = [
                tuple(t[i : i + n]) for t in texts for i in range(len(t)) for n in range(1, window + 1)
                if i + n <= len(t)
            ]  # fmt: skip
            often = Counter(full)
            seen = often[match]
            if seen <= own:
                return
            budget = min(int(factor * m + offset + 1e-6), size - 1)
            order = list(dict.fromkeys(full))
            first = {s: i for i, s in enumerate(order)}
            waiting, nodes, ticks = [], [], 0

            def look(parent, string, often=often, first=first, seen=seen, waiting=waiting):
                nonlocal ticks
                near = [s for s in first if len(s) == len(string) + 1 and s[:-1] == string]
                near = [s for s in near if often[s] / seen >= least]
                near.sort(key=lambda s: (-often[s], first[s]))
                for s in near[:branching]:
                    waiting.append((-often[s], ticks, parent, s))
                    ticks += 1

            look(0, match)
            while waiting and len(nodes) < budget:
                chosen = min(waiting)
                waiting.remove(chosen)
                nodes.append((chosen[2], chosen[3][-1], -chosen[0]))
                look(len(nodes), chosen[3])
            yield sum(n[2] for n in nodes) / seen, nodes

    best = (0.0, [])
    for score, nodes in reversed([*drafts([text], 1)]):
        best = (score, nodes) if score > best[0] else best
    for score, nodes in reversed([*drafts(past, 0)] if past else []):
        best = (score, nodes) if score > best[0] else best
    return (-1, *(n[0] for n in best[1])), tuple(n[1] for n in best[1])


def test_the_own_ending_counts():
    """`ababa`: b follows two of three a; aba occurred once before, so b and a have 1/2 each: score 1.0."""
    assert tree([A, B, A, B, A]) == ((-1, 0, 1), (B, A))
    drafter = SuffixTree(8)
    drafter.prefill(torch.tensor([A, B, A, B, A]))
    # Matches of 3, 2 and 1 tokens, each with a budget of as many; of 3 and 2 the longer one wins.
    scores = [sum(draft.continuations.counts) / draft.seen for draft in drafter.drafts()]
    assert scores == [1.0, 1.0, pytest.approx(2 / 3)]
    assert [draft.most for draft in drafter.drafts()] == [3, 2, 1]
    # At match 1 the probability is 2/3, not 1: below a bound of 0.7 nothing is left of it.
    assert tree([A, B, A, B, A], window=2, least=0.7)[1] == ()
    assert tree([A, B, A, B, A], window=2, least=0.6)[1] == (B,)


def test_of_equal_scores_the_longer_match_then_this_text():
    past = counted([7, A, 5, 5])
    assert tree([A, 6, A], past=past) == ((-1, 0), (5,))  # 1.0 against 1/2
    # Past texts say the same as this one, with the same score: this one wins.
    assert tree([A, 6, A, 6, A], past=counted([A, 6, A, 8]))[1] == (6, A)
    # Two matches with score 1.0, of one token and of two: what followed both is drafted.
    assert tree([9, 3], past=counted([9, 3, 4, 1], [2, 3, 4, 5], [9, 3, 4, 2]))[1] == (4, 1)


def test_what_is_rare_in_full_windows_may_be_frequent_with_the_open_end():
    """B follows A once in complete windows and twice in the last seven tokens: 3 of 6."""
    head, end = [A, B, 7, A, 2, 7, A, 2, 7], [5, A, B, A, B, 9, A]
    assert tree([*head, *end], window=8, least=0.5)[1] == (B,)
    assert tree([*head, *end], window=8, least=0.51)[1] == ()


def test_budgets_follow_the_match():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    assert tree(text, least=0.0)[1] == (4, 5, 6)
    assert tree(text, factor=2.0, least=0.0)[1] == (4, 5, 6, 7, 8, 1)
    assert tree(text, factor=0.0, offset=2.0, least=0.0)[1] == (4, 5)
    assert tree(text, depth=1, least=0.0)[1] == (4,)
    assert tree(text, factor=0.0)[1] == ()
    assert tree(text, factor=0.29 / 3, offset=0.71, least=0.0)[1] == (
        4,
    )  # one, though floats say less


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=16),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=10), max_size=2),
    st.sampled_from([0.0, 0.1, 0.34]), st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([0.0, 2.0]),
    st.integers(1, 3), st.integers(3, 6),
)  # fmt: skip
def test_it_is_what_the_definition_says(text, past, least, factor, offset, branching, window):
    options = {
        "size": 7, "branching": branching, "window": window, "factor": factor, "offset": offset,
        "least": least,
    }  # fmt: skip
    expected = by_definition(text, past, **options)
    counts = counted(*past, window=window) if past else None
    assert tree(text, depth=8, past=counts, **options) == expected


WRONG = {
    "depth": {"depth": 0},
    "needs a size": {"branching": 2},
    "window": {"window": 1},
    "factor = -1": {"factor": -1.0},
    "factor = nan": {"factor": float("nan")},
    "least = 2": {"least": 2.0},
    "token id 9, but the target's ids are 0..4": {"past": counted([9, 1]), "vocab_size": 5},
}


@pytest.mark.parametrize("said", WRONG)
def test_wrong_settings(said):
    with pytest.raises(InvalidArgument, match=said):
        SuffixTree(**{"depth": 2} | WRONG[said])


def test_past_texts_must_be_over():
    counts = counted([1, 2])
    counts.read([3])
    with pytest.raises(InvalidArgument, match="not ended"):
        SuffixTree(2, past=counts)
