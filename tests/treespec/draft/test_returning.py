"""A growth that returns to a node gets the children that it would have got at once."""

from collections import defaultdict

import pytest
import torch

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, verify
from treespec.draft import ModelDrafter
from treespec.errors import InvalidTree
from treespec.sampling.children import top_k
from treespec.target import ModelTarget
from treespec.testing import TabularModel, outcomes, output_law, random_table, target_law

TABLE = random_table(5, 1)
CAN = [Law.IID, Law.WITHOUT_REPLACEMENT, Law.DETERMINISTIC]
NEVER = -1e4
ROWS = {
    "any": TABLE,
    "flat": lambda context: torch.zeros(5, dtype=torch.float64),
    "two tokens": lambda context: torch.tensor([0.3, NEVER, NEVER, 0.1, NEVER]).double(),
    "one token": lambda context: torch.tensor([NEVER, NEVER, NEVER, 0.1, NEVER]).double(),
}


def propose(growth, law, coins, table=TABLE, sampling=None):
    drafter = ModelDrafter(TabularModel(table, 5), growth, law, sampling or Sampling())
    drafter.prefill(torch.tensor([0, 1]))
    return drafter.propose(coins)


def by_place(tree):
    """Tokens and their rows by position in the tree, independent of the numbering."""
    rows = {} if tree.draft_probs is None else tree.shape.internal
    return tuple(
        sorted((tree.shape.rank_path(n), tree.token_ids[n]) for n in range(tree.shape.size))
    ), tuple(sorted((tree.shape.rank_path(n), *tree.draft_probs_of(n).tolist()) for n in rows))


def law_of(growth, law, table):
    found = defaultdict(float)
    for weight, tree in outcomes(lambda coins: propose(growth, law, coins, table)):
        found[by_place(tree)] += weight
    return found


@pytest.mark.parametrize("law", CAN)
def test_one_by_one_with_the_same_coins_is_the_same_tree(growths, law):
    for seed in range(20):
        single = propose(growths.Scripted(*[[(0, 1)]] * 4), law, TorchCoins(seed))
        at_once = propose(TreeShape.expansion([4]), law, TorchCoins(seed))
        assert single.token_ids == at_once.token_ids
        assert single.shape == at_once.shape


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("law", CAN)
def test_the_law_of_the_tree_is_that_of_all_children_at_once(growths, law, rows):
    at_once = law_of(TreeShape.expansion([3]), law, ROWS[rows])
    for calls in ([[(0, 1)]] * 3, [[(0, 2)], [(0, 1)]], [[(0, 1)], [(0, 2)]]):
        assert law_of(growths.Scripted(*calls), law, ROWS[rows]) == pytest.approx(at_once)
    assert sum(at_once.values()) == pytest.approx(1)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("law", CAN)
def test_what_is_drawn_in_between_changes_nothing(growths, law):
    at_once = law_of(TreeShape.from_parents([-1, 0, 0, 1]), law, TABLE)
    for calls in (
        [[(0, 1)], [(1, 1)], [(0, 1)]],
        [[(0, 1)], [(0, 1), (1, 1)]],
        [[(0, 1)], [(1, 1), (0, 1)]],
    ):
        assert law_of(growths.Scripted(*calls), law, TABLE) == pytest.approx(at_once)


def test_the_law_by_enumeration_would_notice_a_wrong_row(growths, monkeypatch):
    at_once = law_of(TreeShape.expansion([2]), Law.WITHOUT_REPLACEMENT, TABLE)
    monkeypatch.setattr("treespec.draft.drawn.next_child", lambda row, elder, law: row)
    single = law_of(growths.Scripted([(0, 1)], [(0, 1)]), Law.WITHOUT_REPLACEMENT, TABLE)
    assert single != pytest.approx(at_once)


@pytest.mark.parametrize("law", CAN)
def test_a_known_row_needs_no_pass(growths, law):
    passes = []

    class Counting(TabularModel):
        def run(self, tokens, parents, first=0):
            passes.append(len(tokens))
            return super().run(tokens, parents, first)

    growth = growths.Scripted([(0, 1)], [(0, 1)], [(1, 1), (0, 1), (2, 1)], [(1, 2)])
    drafter = ModelDrafter(Counting(TABLE, 5), growth, law, Sampling())
    drafter.prefill(torch.tensor([0, 1]))
    tree = drafter.propose(TorchCoins(0))
    assert passes == [1, 2]
    assert tree.shape.parents == (-1, 0, 0, 1, 0, 2, 1, 1)


def test_deterministic_children_go_on_down_the_ranks(growths):
    tree = propose(growths.Scripted([(0, 1)], [(0, 2)], [(0, 1)]), Law.DETERMINISTIC, TorchCoins(0))
    assert list(tree.token_ids[1:]) == TABLE((0, 1)).topk(4).indices.tolist()


def test_tied_deterministic_children_never_repeat(growths, monkeypatch):
    """With a larger k, a search may find other ones of several tied tokens."""

    def fickle(scores, k):
        return top_k(scores, k) if k % 2 else scores.shape[-1] - 1 - top_k(scores.flip(-1), k)

    for search in (top_k, fickle):
        monkeypatch.setattr("treespec.draft.drawn.top_k", search)
        for rows in ROWS.values():
            growth = growths.Scripted(*[[(0, 1)]] * 5)
            tree = propose(growth, Law.DETERMINISTIC, TorchCoins(0), table=rows)
            assert sorted(tree.token_ids[1:]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("law", [Law.TOP_THEN_SAMPLE, Law.HUB])
def test_laws_that_choose_children_together_refuse(growths, law):
    growth = growths.Scripted([(0, 1)], [(0, 1)])
    with pytest.raises(InvalidTree, match=rf"node 0 already has .* would get .*'{law}'"):
        propose(growth, law, TorchCoins(0))


@pytest.mark.parametrize("law", [Law.WITHOUT_REPLACEMENT, Law.DETERMINISTIC])
def test_more_children_than_tokens_are_refused(growths, law):
    with pytest.raises(InvalidTree, match="6 distinct children"):
        propose(growths.Scripted([(0, 3)], [(0, 3)]), law, TorchCoins(0))
    assert propose(growths.Scripted([(0, 3)], [(0, 3)]), Law.IID, TorchCoins(0)).shape.size == 7


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([(0, 1), (0, 1)], r"twice at once: \[0, 0\]"),
        ([(1, 1)], "1 children to node 1 of a tree of 1 nodes"),
        ([(-1, 1)], "children to node -1"),
        ([(0, 0)], "0 children to node 0"),
    ],
)
def test_places_that_make_no_sense_are_refused(growths, places, message):
    with pytest.raises(InvalidTree, match=message):
        propose(growths.Scripted(places), Law.IID, TorchCoins(0))


@pytest.mark.parametrize("law", CAN)
def test_probabilities_are_those_before_any_sibling_was_drawn(growths, law):
    seen = []

    class Asking(growths.Random):
        def next(self, shape, probs):
            seen.append(probs().clone())
            assert len(seen[-1]) == shape.size
            return super().next(shape, probs)

    for seed in range(10):
        seen.clear()
        sampling = Sampling(temperature=0.8, top_k=4)
        tree = propose(Asking(seed), law, TorchCoins(seed), sampling=sampling)
        for node in range(1, tree.shape.size):
            context = (0, *(tree.token_ids[n] for n in tree.shape.path(tree.shape.parents[node])))
            expected = float(sampling(TABLE(context))[tree.token_ids[node]])
            assert float(seen[-1][node]) == pytest.approx(expected)
        assert seen[-1][0] == 1
        for before in seen:  # what was once told stands
            assert torch.equal(before, seen[-1][: len(before)])


@pytest.mark.parametrize("law", CAN)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_cache_of_any_growth_stays_the_text(growths, law, temperature):
    sampling = Sampling(temperature)
    for seed in range(5):
        target = TabularModel(lambda c: TABLE(c) + 0.5 * random_table(5, 7)(c), 5)
        drafter = growths.Watched(TabularModel(TABLE, 5), growths.Random(seed), law, sampling)
        rule = verify.greedy if sampling.greedy else verify.naive
        steps = decode(
            ModelTarget(target), drafter, rule, torch.tensor([0, 1]), sampling=sampling,
            coins=TorchCoins(seed), max_new_tokens=12,
        )  # fmt: skip
        text = [token for step in steps for token in step.tokens]
        assert drafter.text[2:][:12] == tuple(text)


@pytest.mark.parametrize("law", CAN)
@pytest.mark.parametrize("idle", [1, 2, 5])
def test_tokens_wait_while_nothing_is_drafted(growths, law, idle):
    """For a growth that drafts only now and then, committed tokens are pending until it does."""

    class NowAndThen(growths.Random):
        step = 0

        def next(self, shape, probs):
            self.step += shape.size == 1
            return () if self.step % (idle + 1) else super().next(shape, probs)

    waited, sampling = [], Sampling()
    for seed in range(3):
        target = TabularModel(lambda c: 3 * TABLE(c), 5)
        drafter = growths.Watched(TabularModel(TABLE, 5), NowAndThen(seed), law, sampling)
        steps = decode(
            ModelTarget(target), drafter, verify.naive, torch.tensor([0, 1]), sampling=sampling,
            coins=TorchCoins(seed), max_new_tokens=20,
        )  # fmt: skip
        text = []
        for step in steps:
            waited.append(len(drafter._pending))
            text += step.tokens
            for node in step.tree.shape.internal if step.tree.draft_probs is not None else ():
                path = [step.tree.token_ids[n] for n in step.tree.shape.path(node)]
                end = len(text) - len(step.tokens)
                context = (0, 1, *text[:end])[:-1] + tuple(path)
                assert torch.equal(step.tree.draft_probs_of(node), sampling(TABLE(context)))
        assert drafter.text[2:][:20] == tuple(text)
    assert max(waited) >= idle  # the last accepted leaf may wait, too


def test_after_a_whole_path_two_tokens_are_not_in_the_cache(growths):
    """The leaf, which was never run, and the bonus, which is the next root."""
    sampling = Sampling(temperature=0.0)
    drafter = growths.Watched(
        TabularModel(TABLE, 5), TreeShape.chain(3), Law.DETERMINISTIC, sampling
    )
    steps = decode(
        ModelTarget(TabularModel(TABLE, 5)), drafter, verify.greedy, torch.tensor([0, 1]),
        sampling=sampling, coins=TorchCoins(0), max_new_tokens=12,
    )  # fmt: skip
    text = [0, 1]
    for step in steps:
        assert step.verdict.accepted == 3
        text += step.tokens
        assert drafter.model.length == len(text) - 2
        assert [*drafter._pending, drafter._root] == text[-2:]


@pytest.mark.usefixtures("without_shape_checks")
def test_through_the_loop_the_target_is_kept(growths):
    """Children added one by one, over several steps, with every outcome of every coin."""
    target, draft = (TabularModel(random_table(2, i), 2) for i in (3, 4))
    growth = growths.Scripted([(0, 1)], [(1, 1)], [(0, 1)], max_depth=2)
    found = output_law(
        verify.rrsw, growth, Law.WITHOUT_REPLACEMENT, target=target, draft=draft, tokens=3,
        draft_with=growths.Watched,
    )  # fmt: skip
    right = target_law(target, (0,), 3, Sampling())
    assert float((found.probs - right).abs().max()) < 1e-12
