"""Sources without a model: mistakes that bias the output, greedy text, and state limited to one prompt."""

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
from treespec.testing import EnumeratingCoins, TabularModel, output_law, random_table
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


def law_of_one_token(row, play):
    """The exact distribution of the next token, for a target whose rows are all equal."""
    target = TabularModel(lambda context: torch.tensor(row, dtype=torch.float64).log(), V)
    return output_law(
        play, TreeShape.chain(1), Law.DETERMINISTIC, target=target, draft=target, tokens=1, prompt=(0,),
        draft_with=lambda *_: Fixed(),
    ).probs  # fmt: skip


class Fixed(Jacobi):
    """Drafts the first two tokens of the vocabulary, each as a separate path."""

    def __init__(self, tokens=(0, 1)):
        super().__init__(1)
        self.tokens = tokens

    def _continuations(self):
        return [-1, *(0 for _ in self.tokens)], self.tokens


def test_one_draw_of_the_target_for_each_path_is_no_rule():
    """As in REST and Medusa: one draw per path gives .675, .255, .07 instead of the target's .5, .3, .2."""

    def by_path(tree, probs, coins):
        for node in tree.shape.children[0]:
            if coins.draw(probs[0]) == tree.token_ids[node]:
                return Verdict((0, node), coins.draw(probs[node]))
        return Verdict((0,), coins.draw(probs[0]))

    row = (0.5, 0.3, 0.2)
    assert law_of_one_token(row, verify.onehot).tolist() == pytest.approx(row, abs=1e-12)
    wrong = law_of_one_token(row, by_path).tolist()
    assert wrong == pytest.approx((0.675, 0.255, 0.07), abs=1e-12)


def test_a_deterministic_child_tested_by_a_ratio_is_biased():
    """The argmax of q = (.6, .3, .1), tested against p = (.3, .4, .3) by p/q: .5, .167, .333."""
    p, q = (torch.tensor(row, dtype=torch.float64) for row in ((0.3, 0.4, 0.3), (0.6, 0.3, 0.1)))

    def by_ratio(tree, probs, coins):
        (node,) = tree.shape.children[0]
        token = tree.token_ids[node]
        if coins.accept(probs[0][token] / q[token]):
            return Verdict((0, node), coins.draw(probs[node]))
        return Verdict((0,), coins.draw((probs[0] - q).clamp(min=0)))

    target = TabularModel(lambda context: p.log(), V)
    law = partial(
        output_law, shape=TreeShape.chain(1), law=Law.DETERMINISTIC, target=target, draft=target,
        tokens=1, prompt=(0,), draft_with=lambda *_: Fixed((0,)),
    )  # fmt: skip
    assert law(by_ratio).probs.tolist() == pytest.approx((0.5, 1 / 6, 1 / 3), abs=1e-12)
    assert law(verify.onehot).probs.tolist() == pytest.approx(p.tolist(), abs=1e-12)


def toy(row):
    """A table whose rows are all equal."""
    logits = torch.tensor(row, dtype=torch.float64).log()
    return TabularModel(lambda context: logits, V)


TARGET, DRAFT = (0.3, 0.4, 0.3), (0.6, 0.3, 0.1)


def test_equal_siblings_united_and_tested_once_are_biased():
    """Two equal draws need separate tests and residuals; a single test for both gives .3, .45, .25."""
    q = torch.tensor(DRAFT, dtype=torch.float64)

    def united(tree, probs, coins):
        left, seen = probs[0], set()
        for node in tree.shape.children[0]:
            token = tree.token_ids[node]
            if token in seen:
                continue
            seen.add(token)
            if coins.accept((left[token] / q[token]).clamp(max=1)):
                return Verdict((0, node), coins.draw(probs[node]))
            left = (left - q).clamp(min=0)
            left = left / left.sum()
        return Verdict((0,), coins.draw(left))

    law = partial(
        output_law, shape=TreeShape.expansion([2]), law=Law.IID, target=toy(TARGET), draft=toy(DRAFT),
        tokens=1,
    )  # fmt: skip
    assert law(united).probs.tolist() == pytest.approx((0.3, 0.45, 0.25), abs=1e-12)
    assert law(verify.rrs).probs.tolist() == pytest.approx(TARGET, abs=1e-12)


def test_a_drawn_token_that_is_dropped_for_its_confidence_biases():
    """Stopping before a token of q < .2 after it was drawn gives .33, .44, .23."""
    q = torch.tensor(DRAFT, dtype=torch.float64)

    class Stopping(Fixed):
        def __init__(self, drop):
            super().__init__()
            self.drop = drop

        def propose(self, coins):
            token = coins.draw(q)
            root = torch.tensor([0])
            if self.drop and q[token] < 0.2:
                return TokenTree(TreeShape.chain(0), root, None, Law.IID)
            tokens = torch.cat([root, torch.tensor([token])])
            return TokenTree(TreeShape.chain(1), tokens, q[None], Law.IID)

        def commit(self, step):
            pass

    def law(drop):
        return output_law(
            verify.rrs, TreeShape.chain(1), Law.IID, target=toy(TARGET), draft=toy(DRAFT), tokens=1,
            draft_with=lambda *_: Stopping(drop),
        ).probs.tolist()  # fmt: skip

    assert law(True) == pytest.approx((0.33, 0.44, 0.23), abs=1e-12)
    assert law(False) == pytest.approx(TARGET, abs=1e-12)


def test_a_draft_of_another_vocabulary_has_the_row_of_the_tokens_that_both_have():
    """Tokens 0 and 1 are shared; the draft's unchanged row gives .333, .444, .222 (TLI, 2502.05202)."""
    q = torch.tensor(DRAFT, dtype=torch.float64)
    shared = q.index_fill(0, torch.tensor(2), 0.0) / q[:2].sum()

    class Translated(Fixed):
        def __init__(self, said):
            super().__init__()
            self.said = said

        def propose(self, coins):
            tokens = torch.tensor([0, coins.draw(shared)])
            return TokenTree(TreeShape.chain(1), tokens, self.said[None], Law.IID)

        def commit(self, step):
            pass

    def law(said):
        return output_law(
            verify.rrs, TreeShape.chain(1), Law.IID, target=toy(TARGET), draft=toy(DRAFT), tokens=1,
            draft_with=lambda *_: Translated(said),
        ).probs.tolist()  # fmt: skip

    assert law(q) == pytest.approx((1 / 3, 4 / 9, 2 / 9), abs=1e-12)
    assert law(shared) == pytest.approx(TARGET, abs=1e-12)


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
