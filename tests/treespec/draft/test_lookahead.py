"""Lookahead: the window as a tree, what its rows become, and the pool."""

import pytest
import torch

from treespec import Sampling, TorchCoins, decode, verify
from treespec.draft import Lookahead
from treespec.errors import InvalidArgument, Unreadable
from treespec.step import Scores, Step, Verdict
from treespec.target import ModelTarget
from treespec.testing import TabularModel, random_table

V = 3000


def walk(drafter, prompt, steps, follow):
    """Trees of steps that accept nothing, over a target whose best token is a function of the context."""
    drafter.prefill(torch.tensor(prompt))
    text, trees = list(prompt), []
    for _ in range(steps):
        tree = drafter.propose(TorchCoins(0))
        trees.append(tree)
        context, best = {}, []
        for node, parent in enumerate(tree.shape.parents):
            context[node] = (
                (*context.get(parent, text), tree.token_ids[node]) if node else tuple(text)
            )
            best.append(follow(context[node]))
        logits = torch.zeros(len(best), V)
        logits[range(len(best)), best] = 1.0
        drafter.commit(Step(tree, Verdict((0,), best[0]), Scores(logits), (best[0],)))
        text.append(best[0])
    return trees


def fresh(context):
    """A different token after every context."""
    return hash(context) % 1900 + 1000


def test_window_7_ngram_5_and_7_guesses_are_56_nodes_of_depth_9():
    drafter = Lookahead(7, 5, 7)
    assert (drafter.size, drafter.max_depth) == (56, 9)
    pool = {token: [(token, i, 1, 2) for i in range(7)] for token in range(1000)}
    drafter = Lookahead(7, 5, 7, pool=pool)
    trees = walk(
        drafter, list(range(20)), 6, lambda context: (len(context) * 7 + context[-1]) % 900
    )
    assert max(tree.shape.size for tree in walk(Lookahead(), list(range(20)), 5, fresh)) == 28
    assert max(tree.shape.depth for tree in trees) == 9
    assert all(tree.shape.size <= 56 for tree in trees)
    full = Lookahead(7, 5, 7, pool={t: [(i, 3, 4, 5) for i in range(7)] for t in range(V)})
    sizes = [tree.shape.size for tree in walk(full, list(range(2000, 2020)), 6, fresh)]
    assert sizes[3:] == [56, 56, 56]


def test_column_i_of_level_l_stands_at_depth_i_plus_l():
    tree = walk(Lookahead(3, 4, 1), [1, 2, 3, 4, 5, 6, 7], 3, fresh)[-1]
    # Columns: the root and a chain of two; two more levels below each of the three.
    assert tree.shape.parents == (-1, 0, 1, 0, 1, 2, 3, 4, 5)
    assert tree.shape.depths == (0, 1, 2, 1, 2, 3, 2, 3, 4)


def test_the_window_moves_up_by_what_the_target_said():
    """Each level is the next level of the step before; the last holds the target's best tokens."""
    trees = walk(Lookahead(3, 3, 2), [1, 2, 3, 4, 5, 6, 7], 6, fresh)
    before, after = trees[3], trees[4]
    assert before.shape.parents[:6] == (-1, 0, 1, 0, 1, 2)
    levels = before.token_ids[:3], before.token_ids[3:6]
    assert after.token_ids[1:3] == levels[1][1:]
    text = (1, 2, 3, 4, 5, 6, 7)
    for _ in range(3):
        text = (*text, fresh(text))
    path = {node: (*text, *levels[0][1 : node + 1], levels[1][node]) for node in range(3)}
    assert after.token_ids[3:6] == tuple(fresh(path[node]) for node in range(3))


def test_what_a_column_says_joins_the_pool_and_the_latest_stay():
    drafter = Lookahead(1, 3, 2)
    walk(drafter, [1, 2], 8, lambda context: context[-1] % 3 + 10)
    assert drafter.pool
    assert all(len(kept) <= 2 and len(set(kept)) == len(kept) for kept in drafter.pool.values())
    drafter.prefill(torch.tensor([1]))
    for rest in ((1, 1), (2, 2), (1, 1), (3, 3)):
        drafter._learn((9, *rest))
    assert drafter.pool == {9: [(1, 1), (3, 3)]}


def test_equal_siblings_are_one_node():
    drafter = Lookahead(2, 3, 3, pool={7: [(7, 7), (7, 8), (7, 7)]})
    drafter.prefill(torch.tensor([7, 7, 7, 7]))
    tree = drafter.propose(TorchCoins(0))
    for children in tree.shape.children:
        assert len({tree.token_ids[child] for child in children}) == len(children)
    assert tree.token_ids == (7, 7, 7, 8)


def test_a_full_match_yields_n_tokens():
    """Four accepted guesses and the bonus; the reference implementation loses one."""
    after = TabularModel(lambda context: torch.eye(9, dtype=torch.float64)[context[-1] + 1] * 9, 9)
    drafter = Lookahead(1, 5, 1, pool={1: [(2, 3, 4, 5)]})
    (step,) = decode(
        ModelTarget(after), drafter, verify.greedy, torch.tensor([1]),
        sampling=Sampling(temperature=0.0), coins=TorchCoins(0), max_new_tokens=5,
    )  # fmt: skip
    assert step.tokens == (2, 3, 4, 5, 6)


def test_no_tree_is_larger_than_is_said():
    for window, ngram, guesses in ((1, 2, 1), (1, 6, 1), (4, 2, 3), (3, 3, 2)):
        drafter = Lookahead(window, ngram, guesses)
        trees = walk(drafter, list(range(9)), 9, fresh)
        assert max(tree.shape.size for tree in trees) <= drafter.size
        assert max(tree.shape.depth for tree in trees) <= drafter.max_depth


@pytest.mark.parametrize(("window", "ngram", "guesses"), [(1, 6, 7), (4, 2, 3), (3, 5, 2)])
def test_the_size_counts_a_given_pool_while_the_window_fills(window, ngram, guesses):
    pool = {t: [tuple(range(i, i + ngram - 1)) for i in range(guesses)] for t in range(V)}
    drafter = Lookahead(window, ngram, guesses, pool=pool)
    trees = walk(drafter, list(range(2000, 2012)), 9, fresh)
    assert max(tree.shape.size for tree in trees) == drafter.size


def test_saved_and_loaded(tmp_path):
    drafter = Lookahead(2, 3, 2, pool={5: [(70_000, 1), (2, 3)]})
    drafter.prefill(torch.tensor([1]))
    drafter.save(tmp_path / "pool", vocab_size=70_001)
    pool = Lookahead.load(tmp_path / "pool")
    assert pool == {5: [(70_000, 1), (2, 3)]}
    with pytest.raises(InvalidArgument, match="n-grams of 3 tokens, but ngram = 4"):
        Lookahead(2, 4, 2, pool=pool)
    with pytest.raises(InvalidArgument, match="70000 is not a token id"):
        Lookahead(2, 3, 2, pool=pool, vocab_size=9)
    with pytest.raises(Unreadable, match="vocabulary"):
        Lookahead.load(tmp_path / "pool", vocab_size=9)


def test_a_pool_of_longer_ngrams_serves_smaller_trees(tmp_path):
    """A pool found with 56 nodes serves trees of 8; n-grams that are equal once cut count as the latest."""
    large = Lookahead(7, 5, 7)
    walk(large, list(range(20)), 60, lambda context: (len(context) * 7 + context[-1]) % 9)
    large.save(tmp_path / "pool", vocab_size=V)
    pool = Lookahead.load(tmp_path / "pool")
    assert {len(rest) for kept in pool.values() for rest in kept} == {4}
    small = Lookahead(2, 3, 1, pool=pool)
    small.prefill(torch.tensor([*range(20), next(iter(pool))]))
    assert small.pool == {first: [kept[-1][:2]] for first, kept in pool.items()}
    tree = small.propose(TorchCoins(0))
    assert tree.shape.size <= small.size <= 8
    (rest,) = small.pool[tree.token_ids[0]]
    assert rest in {
        tuple(tree.token_ids[n] for n in tree.shape.path(i)[1:]) for i in range(tree.shape.size)
    }
    cut = Lookahead(1, 2, 2, pool={5: [(1, 1), (2, 2), (3, 3), (2, 9)]})
    assert cut.pool == {5: [(3,), (2,)]}
    same = Lookahead(1, 3, 2, pool={5: [(1, 1), (2, 2), (3, 3), (2, 2)]})
    assert same.pool == {5: [(3, 3), (2, 2)]}


@pytest.mark.parametrize("bad", [{"window": 0}, {"ngram": 1}, {"guesses": 0}], ids=str)
def test_wrong_settings(bad):
    with pytest.raises(InvalidArgument, match=next(iter(bad))):
        Lookahead(**bad)


def test_a_prompt_begins_with_the_pool_it_was_given():
    given = {1: [(2, 3)], 2: [(4, 4)]}
    drafter = Lookahead(2, 3, 2, pool=given)
    for _ in range(2):
        walk(drafter, [2, 1], 6, lambda context: context[-1] % 3 + 1)
        assert drafter.pool != given
        drafter.prefill(torch.tensor([1]))
        assert drafter.pool == given == {1: [(2, 3)], 2: [(4, 4)]}


def test_ngrams_of_the_first_column_begin_with_the_root():
    """Above temperature 0 the root may differ from the token that the window had at its position."""
    drafter = Lookahead(1, 2, 1)
    drafter.prefill(torch.tensor([5]))
    for best, bonus in ((7, 3), (8, 4)):
        tree = drafter.propose(TorchCoins(0))
        logits = torch.eye(9)[[best] * tree.shape.size]
        drafter.commit(Step(tree, Verdict((0,), bonus), Scores(logits), (bonus,)))
    assert drafter.pool == {5: [(7,)], 3: [(8,)]}


def test_while_the_window_fills_every_level_loses_its_first_column():
    """The guess one position after the old root is at the position of the new root, which is known."""
    first, second = walk(Lookahead(3, 4, 1), [1, 2, 3, 4, 5, 6, 7], 2, fresh)
    assert first.shape.is_chain
    assert first.shape.size == 5
    assert second.token_ids[1:4] == first.token_ids[2:5]
    text = (1, 2, 3, 4, 5, 6, 7)
    after = [fresh((*text, *first.token_ids[1 : node + 1])) for node in range(5)]
    assert second.token_ids[0] == after[0]
    assert second.token_ids[4:8] == tuple(after[1:])


def test_a_node_has_a_child_of_each_level_of_the_window():
    """If their columns coincide in one node: it has more children than two of the window and the pool's."""
    model, drafter = TabularModel(random_table(5, 0), 5), Lookahead(7, 5, 1)
    steps = decode(
        ModelTarget(model), drafter, verify.onehot, torch.tensor((0, 1, 0, 0, 1)),
        sampling=Sampling(temperature=0.0), coins=TorchCoins(0), max_new_tokens=80,
    )  # fmt: skip
    most = max(max(map(len, step.tree.shape.children)) for step in steps)
    assert drafter.guesses + 2 < most <= drafter.branching == 5
