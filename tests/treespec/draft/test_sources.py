"""Sources without a model: greedy text, and state limited to one prompt."""

from functools import partial
from itertools import zip_longest

import pytest
import torch
from proof_table import CASES, PROMPTS, Stored
from transformers import GenerationConfig

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, load_pair, verify
from treespec.draft import (
    Datastore,
    Documents,
    Jacobi,
    Lookahead,
    PromptLookup,
    Retrieval,
    SuffixAutomaton,
    SuffixTree,
    TokenRecycling,
)
from treespec.errors import InvalidTree
from treespec.protocols import Drafter
from treespec.step import Step, Verdict
from treespec.target import ModelTarget
from treespec.testing import EnumeratingCoins, TabularModel, random_table
from treespec.tree import TokenTree

V = 3
PROMPT = PROMPTS[V]
TEXT = "for i in range(10):\n    print(i)\nfor i in range(10):\n    "
SOURCES = {
    str(case): case.make
    for case in CASES
    if case.law is Law.DETERMINISTIC and case.vocab == V and not case.runs_a_model
}


@pytest.fixture(scope="session")
def stored(tmp_path_factory):
    return Stored.write(tmp_path_factory.mktemp("stores") / str(V), V)


@pytest.fixture(scope="module")
def greedy():
    """The embedded target, a prompt, and its continuation by `generate`."""
    pair = load_pair("embedded", "none")
    prompt = torch.tensor(pair.tokenizer.encode(TEXT))
    with pair.target.as_transformers() as model:
        config = GenerationConfig(do_sample=False, max_new_tokens=24, pad_token_id=0)
        whole = model.generate(prompt[None], generation_config=config)
    return pair, prompt, whole[0, len(prompt) :].tolist()


def on_the_pair(pair, ids, folder):
    size = pair.target.vocab_size
    store = Datastore.build(folder / "x", [ids], vocab_size=size)
    return {
        "lookup": PromptLookup(6, size=16, branching=3),
        "documents": Documents([ids], 6, size=16, branching=3, vocab_size=size),
        "suffix tree": SuffixTree(6, size=16, branching=3),
        "suffix automaton": SuffixAutomaton(6),
        "retrieval": Retrieval(store, 6, size=16, branching=3),
        "recycling": TokenRecycling(),
        "lookahead": Lookahead(),
        "jacobi": Jacobi(6),
    }


def test_greedy_text_is_that_of_generate(greedy, tmp_path):
    pair, prompt, text = greedy
    sampling, target = Sampling(temperature=0.0), ModelTarget(pair.target)
    for name, drafter in on_the_pair(pair, prompt.tolist() + text, tmp_path).items():
        assert isinstance(drafter, Drafter)
        steps = list(decode(
            target, drafter, verify.greedy, prompt, sampling=sampling, coins=TorchCoins(0),
            max_new_tokens=24,
        ))  # fmt: skip
        assert [token for step in steps for token in step.tokens] == text, name
        assert any(step.verdict.accepted for step in steps) or name == "jacobi", name
        assert max(step.tree.shape.depth for step in steps) <= drafter.max_depth


@pytest.mark.parametrize("name", SOURCES)
def test_each_prompt_begins_anew_and_drafters_share_nothing(name, stored):
    """A drafter's proposal depends on its prompt alone, whatever it or another drafter read before."""
    target, sampling = TabularModel(random_table(V, 1), V), Sampling(temperature=0.0)

    def trees(drafter, prompt):
        steps = decode(
            ModelTarget(target), drafter, verify.greedy, torch.tensor(prompt), sampling=sampling,
            coins=TorchCoins(0), max_new_tokens=6,
        )  # fmt: skip
        return [(step.tree.shape, step.tree.token_ids) for step in steps]

    make = partial(SOURCES[name], stored)
    alone, used, other = trees(make(), PROMPT), make(), make()
    trees(used, (2, 2, 1, 0, 0, 2))
    trees(other, (1, 0, 2))
    assert trees(used, PROMPT) == alone
    assert any(shape.depth for shape, _ in alone)


@pytest.mark.parametrize("name", SOURCES)
def test_drafters_that_are_open_at_once_share_nothing(name, stored):
    """As in a run, where methods take turns step by step. A prompt that begins resets nothing elsewhere."""
    target, prompts = TabularModel(random_table(V, 1), V), (PROMPT, (2, 2, 1, 0, 0, 2))

    def trees(prompt):
        steps = decode(
            ModelTarget(target), SOURCES[name](stored), verify.greedy, torch.tensor(prompt),
            sampling=Sampling(temperature=0.0), coins=TorchCoins(0), max_new_tokens=8,
        )  # fmt: skip
        return ((step.tree.shape, step.tree.token_ids) for step in steps)

    in_turns = zip_longest(*map(trees, prompts))
    together = [[tree for tree in column if tree] for column in zip(*in_turns, strict=True)]
    assert together == [list(trees(prompt)) for prompt in prompts]


@pytest.mark.parametrize("name", SOURCES)
def test_no_coin_is_asked_for(name, stored):
    """Not even where a source knows nothing yet, such as the first window of `Lookahead`."""
    drafter, target = SOURCES[name](stored), ModelTarget(TabularModel(random_table(V, 5), V))
    for source in (drafter, target):
        source.prefill(torch.tensor(PROMPT))
    coins = EnumeratingCoins()
    for _ in range(4):
        tree = drafter.propose(coins)
        scores = target.score(tree)
        step = Step(tree, Verdict((0,), int(scores.logits[0].argmax())), scores, ())
        target.commit(step)
        drafter.commit(step)
    assert not coins.trail


def committed(drafter, tree, path, bonus, logits):
    """Let a drafter commit a step that was not decoded."""
    from treespec.step import Scores

    tokens = tuple(tree.token_ids[node] for node in path[1:])
    drafter.commit(Step(tree, Verdict(path, bonus), Scores(logits), (*tokens, bonus)))


@pytest.mark.parametrize("make", [lambda: Jacobi(2), lambda: Lookahead(2, 3, 2)])
def test_rows_of_another_tree_are_refused(make):
    """Their nodes differ: read by index, they would be guesses after other tokens."""
    drafter, logits = make(), torch.eye(9)[:3]
    drafter.prefill(torch.tensor([4, 5, 6]))
    own = drafter.propose(TorchCoins(0))
    shape = TreeShape.expansion([2])
    others = (
        TokenTree(shape, torch.tensor([6, 1, 2]), None, Law.DETERMINISTIC),
        TokenTree(own.shape, (own.tokens + 1) % 9, None, Law.DETERMINISTIC),
    )
    for tree in others:
        with pytest.raises(InvalidTree, match="did not propose last"):
            committed(drafter, tree, (0,), 8, logits)
    committed(drafter, own, (0,), 8, torch.eye(9)[[0] * own.shape.size])
    drafter.prefill(torch.tensor([4, 5, 6]))
    with pytest.raises(InvalidTree):  # nothing was proposed for this text
        committed(drafter, own, (0,), 8, logits)


def test_settings_that_are_not_given_are_those_of_the_papers(stored):
    """Windows, bounds and widths of the definitions; other tests give their own."""
    counts = SuffixTree(4)
    assert (counts.window, counts.factor, counts.offset, counts.least) == (64, 1.0, 0.0, 0.1)
    store = Retrieval(stored.datastore)
    assert (store.longest, store.shortest, store.hits, store.max_depth) == (16, 2, 5000, 10)
    lookahead = Lookahead()
    assert (lookahead.window, lookahead.ngram, lookahead.guesses) == (7, 5, 7)
    assert TokenRecycling().shape.size == 81
    table = TokenRecycling()
    table.prefill(torch.tensor([4]))
    root = TokenTree(TreeShape.chain(0), torch.tensor([4]), None, Law.DETERMINISTIC)
    committed(table, root, (0,), 8, torch.arange(20.0)[None])
    assert table.table == {4: [19, 18, 17, 16, 15, 14, 13, 12]}


def test_state_before_a_prompt_is_what_was_given(tmp_path):
    table, pool = TokenRecycling(table={1: [2, 3]}), Lookahead(1, 2, 1, pool={1: [(2,)]})
    assert (table.table, pool.pool) == ({1: [2, 3]}, {1: [(2,)]})
    assert (TokenRecycling().table, Lookahead().pool) == ({}, {})
    for drafter, state in ((table, table.table), (pool, pool.pool)):
        drafter.save(tmp_path / "state", vocab_size=9)
        assert type(drafter).load(tmp_path / "state") == state


def test_window_nodes_are_verified_nodes_of_every_table():
    """A table reads any verified tree, its own or another source's."""
    lookahead, table = Lookahead(2, 3, 2), TokenRecycling()
    prompt = torch.tensor([4, 5, 6, 7])
    lookahead.prefill(prompt)
    table.prefill(prompt)
    tree: TokenTree = lookahead.propose(TorchCoins(0))
    logits = torch.eye(9)[[t + 1 for t in tree.token_ids]]
    committed(table, tree, (0,), 8, logits)
    assert set(table.table) == set(tree.token_ids)
    assert all(row[0] == token + 1 for token, row in table.table.items())
