"""Sources that continue strings seen before: below a path, and for all lower limits at once."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec import TorchCoins
from treespec.draft import (
    Datastore,
    Documents,
    PromptLookup,
    Retrieval,
    SuffixAutomaton,
    SuffixCounts,
    SuffixTree,
)
from treespec.draft.text.best_first import Limits

OTHERS = [[1, 2, 2, 0, 1, 0, 2, 1, 2, 2, 1], [0, 1, 1, 2, 0, 1, 2, 2]]
PAST = SuffixCounts(6)
for text in OTHERS:
    PAST.read(text)
    PAST.end()

HIGHEST = Limits(4, 7, 3)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Datastore.build(tmp_path_factory.mktemp("store") / "x.datastore", OTHERS, vocab_size=3)


def trees(limits):
    return {"depth": limits.depth, "size": limits.size, "branching": limits.branching}


MAKE = {
    "lookup": lambda store, limits: PromptLookup(**trees(limits), ngram=2),
    "lookup of few places": lambda store, limits: PromptLookup(**trees(limits), places=2),
    "documents": lambda store, limits: Documents(OTHERS, **trees(limits)),
    "suffix tree": lambda store, limits: SuffixTree(**trees(limits)),
    "suffix tree, small windows": lambda store, limits: SuffixTree(
        **trees(limits), window=5, factor=2.0, least=0.3
    ),
    "suffix tree, past texts": lambda store, limits: SuffixTree(
        **trees(limits), window=6, factor=0.5, offset=2.0, past=PAST
    ),
    "retrieval": lambda store, limits: Retrieval(store, **trees(limits), shortest=1),
    "automaton": lambda store, limits: SuffixAutomaton(limits.depth),
}
TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=24)


def begun(drafter, text):
    drafter.prefill(torch.tensor(text))
    return drafter


def proposed(drafter):
    tree = drafter.propose(TorchCoins(0))
    return tree.shape, tree.token_ids


@pytest.mark.parametrize("name", MAKE)
@given(text=TEXTS, aheads=st.lists(TEXTS, min_size=1, max_size=3), further=TEXTS)
@settings(max_examples=25)
def test_below_a_path_is_after_the_text_and_leaves_no_trace(name, text, aheads, further, store):
    asked, never = (begun(MAKE[name](store, HIGHEST), text) for _ in range(2))
    for ahead in aheads:
        below = asked.propose_below(ahead, TorchCoins(0))
        fresh = begun(MAKE[name](store, HIGHEST), [*text, *ahead])
        assert (below.shape, below.token_ids) == proposed(fresh)
    for _ in range(2):
        assert proposed(asked) == proposed(never)
        asked.read(further)
        never.read(further)


def chosen(drafts, limits):
    """The draft under lower limits, by the definition of `drafts`."""
    best, score = ([-1], []), 0.0
    for found, seen, most in drafts:
        place, ranks, children = {0: 0}, {0: 0}, {}
        depths, parents, tokens, counts = {0: 0}, [-1], [], 0
        room = min(most, limits.drafted)
        for node, (parent, token) in enumerate(
            zip(found.parents[1:], found.tokens, strict=True), 1
        ):
            rank = children[parent] = children.get(parent, 0) + 1
            depths[node], ranks[node] = depths[parent] + 1, max(ranks[parent], rank)
            allowed = depths[node] <= limits.depth and ranks[node] <= limits.branching
            if allowed and len(tokens) < room:
                place[node] = len(parents)
                parents.append(place[parent])
                tokens.append(token)
                counts += found.counts[node - 1]
        if counts / seen > score:
            best, score = (parents, tokens), counts / seen
    return best


@pytest.mark.parametrize("name", MAKE)
@given(text=TEXTS)
@settings(max_examples=12)
def test_drafts_are_those_of_all_lower_limits(name, text, store):
    drafts = begun(MAKE[name](store, HIGHEST), text).drafts()
    for depth, size, branching in product((1, 2, 4), (2, 4, 7), (1, 2, 3)):
        limits = Limits(depth, size, branching)
        if name == "automaton" and (branching > 1 or size != depth + 1):
            continue
        shape, tokens = proposed(begun(MAKE[name](store, limits), text))
        parents, drafted = chosen(drafts, limits)
        assert (tuple(parents), tuple(drafted)) == (shape.parents, tokens[1:])


def test_a_node_stands_in_a_draft_only_if_limits_have_room_for_it():
    """A chain of the highest depth and a tree of the highest size are both included, and little else."""
    limits = Limits(3, 4, 3)
    drafter = begun(PromptLookup(**trees(limits), ngram=1), [0, 1, 1, 0, 2, 2, 0, 1, 2, 0, 3, 3, 0])
    (draft,) = drafter.drafts()
    assert draft.most == 3
    assert len(draft.continuations.tokens) < 3 * limits.depth * limits.branching
    assert len(draft.continuations.tokens) > limits.drafted
