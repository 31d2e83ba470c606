"""The compiled searches against their reference in Python, on random texts with many ties."""

import copy
import random
from contextlib import contextmanager, suppress

import pytest
import torch

from treespec import TorchCoins
from treespec.draft import (
    Datastore,
    Documents,
    PromptLookup,
    Retrieval,
    SuffixAutomaton,
    SuffixCounts,
    SuffixTree,
    retrieval,
)
from treespec.draft.text import best_first, compiled, datastore, ngrams, suffix_counts
from treespec.errors import InvalidArgument, Unreadable

if compiled.library() is None:
    pytest.skip("no compiler here", allow_module_level=True)


@contextmanager
def in_python():
    """No source searches by compiled code."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (datastore, ngrams, retrieval, suffix_counts):
            patch.setattr(module, "library", lambda: None)
        patch.setattr(SuffixAutomaton, "_chain", best_first_chain)
        yield


def best_first_chain(automaton, begin):
    found = best_first.best_first(
        begin, automaton._follower, automaton.limits, lambda f, depth: depth
    )
    return found.parents, found.tokens


def text(rng, letters, length):
    """A text that repeats itself, with ties and rare letters."""
    ids = [rng.randrange(letters) for _ in range(length)]
    for _ in range(length // 20):
        begin, to = rng.randrange(length), rng.randrange(length)
        copied = ids[begin : begin + rng.randrange(2, 30)]
        ids[to : to + len(copied)] = copied
    return ids[:length]


def past_of(rng, letters, window):
    counts = SuffixCounts(window, rng.choice([None, 60]))
    for _ in range(rng.randrange(1, 6)):
        counts.read(text(rng, letters, rng.randrange(1, 60)))
        counts.end()
    return counts


def source_of(name, seed, folder):
    """A source with random settings, the same for the same seed."""
    rng = random.Random(seed)
    depth, letters = rng.randrange(1, 9), rng.choice([2, 4, 20])
    tree = rng.choice([{}, {"size": rng.randrange(2, 40), "branching": rng.randrange(1, 5)}])
    ngram = {"ngram": rng.randrange(1, 4), "places": rng.choice([2, 7, 256])}
    match name:
        case "lookup":
            return PromptLookup(depth, **tree, **ngram), letters, rng
        case "documents":
            documents = [text(rng, letters, rng.randrange(1, 80)) for _ in range(3)]
            return Documents(documents, depth, **tree, **ngram), letters, rng
        case "retrieval":
            texts = [text(rng, letters, rng.randrange(1, 80)) for _ in range(3)]
            store = Datastore.build(folder / f"store-{seed}", texts, vocab_size=letters)
            hits = rng.choice([3, 5000])
            shortest = rng.randrange(1, 3)
            return Retrieval(store, depth, **tree, shortest=shortest, hits=hits), letters, rng
        case "automaton":
            return SuffixAutomaton(depth, shortest=rng.randrange(1, 4)), letters, rng
    past = past_of(rng, letters, rng.randrange(2, 12)) if name == "suffix tree, past" else None
    settings = {
        "window": rng.randrange(2, 20),
        "factor": rng.choice([0.0, 0.5, 1.0, 3.0]),
        "offset": rng.choice([-1.0, 0.0, 2.0]),
        "least": rng.choice([0.0, 0.1, 0.5, 1.0]),
    }
    return SuffixTree(depth, **tree, **settings, past=past), letters, rng


def proposals(name, seed, folder):
    """The trees of a source along a random text, some of them after tokens that are not committed."""
    source, letters, rng = source_of(name, seed, folder)
    ids = text(rng, letters, 45)
    source.prefill(torch.tensor(ids[:20]))
    coins = TorchCoins(0)
    for token in ids[20:]:
        tree = source.propose(coins)
        yield tree.shape.parents, tree.token_ids
        ahead = text(rng, letters, rng.randrange(1, 5))
        tree = source.propose_below(ahead, coins)
        yield tree.shape.parents, tree.token_ids
        source.read([token])


NAMES = ["lookup", "documents", "retrieval", "automaton", "suffix tree", "suffix tree, past"]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_trees_as_in_python(name, tmp_path):
    sizes = set()
    for seed in range(10):
        found = list(proposals(name, seed, tmp_path))
        with in_python():
            assert found == list(proposals(name, seed, tmp_path))
        sizes |= {len(parents) for parents, _ in found}
    assert max(sizes) > 3


def test_the_compiled_search_is_what_runs(monkeypatch, tmp_path):
    """Otherwise the comparison above would compare Python with itself."""

    def fail(*arguments):
        raise AssertionError

    monkeypatch.setattr(best_first, "best_first", fail)
    monkeypatch.setattr("treespec.draft.text.text_source.best_first", fail)
    for name in NAMES:
        assert list(proposals(name, 0, tmp_path))


def test_places_outside_the_text_are_refused_and_never_read(tmp_path):
    path = tmp_path / "store"
    Datastore.build(path, [[1, 2, 3, 1, 2]], vocab_size=10)
    whole = path.read_bytes()
    for wrong in (2**31 - 1, -5):
        for place in range(6):
            end = len(whole) - 4 * place
            path.write_bytes(
                whole[: end - 4] + wrong.to_bytes(4, "little", signed=True) + whole[end:]
            )
            source = Retrieval(Datastore(path), 4, shortest=1)
            source.prefill(torch.tensor([1, 2]))
            with suppress(Unreadable):
                assert set(source.propose(TorchCoins(0)).token_ids) <= {1, 2, 3}


def test_ids_beyond_32_bits_are_refused():
    for make in (lambda: Documents([[2**31]], 4), lambda: SuffixCounts(4).read([2**31])):
        with pytest.raises(InvalidArgument, match="2\\^31"):
            make()


def test_a_compiled_trie_is_not_copied():
    """Both copies would free the same memory."""
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(compiled.CompiledTrie(4))


def test_limits_far_beyond_the_text_take_no_memory(tmp_path):
    store = Datastore.build(tmp_path / "store", [[1, 2, 1, 2]], vocab_size=3)
    far = {"size": 2**40, "branching": 2}
    for source in (
        PromptLookup(2**39, **far),
        SuffixTree(2**39, **far, factor=1e12),
        Retrieval(store, 16, **far),
    ):
        source.prefill(torch.tensor([1, 2, 1]))
        assert 1 < source.propose(TorchCoins(0)).shape.size < 20
