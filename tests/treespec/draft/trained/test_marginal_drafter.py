"""Trees over one row for each depth: what they are made of, and what follows a text of steps."""

import pytest
import torch
from marginal_heads import FORMATS, states_of, table_block, table_medusa, target
from torch import nn

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, verify
from treespec.draft import BlockDraft, Medusa, Merge, PromptLookup
from treespec.draft.ranks_next import best_next
from treespec.draft.trained.medusa import MedusaHeads, ResidualBlock
from treespec.errors import InvalidArgument, InvalidTree
from treespec.experiments.run.right_marks import next_right
from treespec.sampling.processing.text import ProcessedText
from treespec.sampling.processors import Processors
from treespec.search import DDTree, marginal_tree
from treespec.search.growth import Eagle2, Margin, SpecExec
from treespec.target import ModelTarget
from treespec.testing import TabularModel, random_table

COLD, WARM = Sampling(temperature=0.0), Sampling()
IID, SURE = Law.IID, Law.DETERMINISTIC
PROMPT = torch.tensor([0, 1, 2, 0, 1])
A, B, C = range(3)


def table(seed=3):
    return TabularModel(random_table(3, seed), 3)


def begun(drafter, prompt=PROMPT, model=None):
    model = model or table()
    model.lend(drafter.reads)
    drafter.prefill(prompt, model.prefill(prompt[:-1]))
    return drafter


def rows_of(drafter):
    return drafter.rows_after((), drafter.depth)


def cyclic():
    """A table that writes abcabc..., and heads that read its state as they should."""

    def row(context):
        return 20.0 * nn.functional.one_hot(torch.tensor((context[-1] + 1) % 3), 3).double()

    heads = []
    for k in (1, 2):
        block, last = ResidualBlock(3).double(), nn.Linear(3, 3, bias=False).double()
        for weight in block.parameters():
            nn.init.zeros_(weight)
        # The state says the root, x_{t+1}; head k says x_{t+1+k}.
        last.weight.data = torch.eye(3, dtype=torch.float64).roll(k, 0)
        heads.append(nn.Sequential(block, last))
    return TabularModel(row, 3), MedusaHeads(heads, 3)


def test_heads_read_the_state_of_the_last_accepted_token():
    model, heads = cyclic()
    drafter = begun(Medusa(heads, TreeShape.chain(2), SURE, COLD), torch.tensor([C, A, B]), model)
    assert drafter.propose(TorchCoins(0)).token_ids == (B, C, A)
    steps = decode(
        ModelTarget(model), drafter, verify.greedy, torch.tensor([A]), sampling=COLD,
        coins=TorchCoins(0), max_new_tokens=20,
    )  # fmt: skip
    # A prompt of one token has no state: its first tree is the root alone.
    assert [step.verdict.accepted for step in steps] == [0, *[2] * 7]


@pytest.mark.parametrize("make", [table_medusa, table_block])
def test_growths_over_marginals_get_the_rows(make):
    head = make(3)
    drafter = begun(
        (Medusa if make is table_medusa else BlockDraft)(head, DDTree(7, 2), SURE, WARM)
    )
    tree = drafter.propose(TorchCoins(0))
    right = marginal_tree(rows_of(drafter).softmax(-1), 1, 7)
    assert tree.shape == right.shape
    assert tree.token_ids == right.token_ids


@pytest.mark.parametrize("growth", [Eagle2(2, 2, 6), Margin(5, 2), SpecExec(6, 3, 2)], ids=str)
def test_growths_that_choose_get_the_probability_in_the_row_of_the_depth(growth):
    drafter = begun(BlockDraft(table_block(3), growth, SURE, WARM))
    tree, probs = drafter.propose(TorchCoins(0)), rows_of(drafter).softmax(-1)
    assert tree.shape.depth == 2
    for node in tree.shape.internal:
        children = [tree.token_ids[child] for child in tree.shape.children[node]]
        best = probs[tree.shape.depths[node]].argsort(descending=True).tolist()
        assert children == best[: len(children)]


@pytest.mark.usefixtures("without_shape_checks")
def test_drawn_children_are_not_chosen_by_their_tokens():
    for growth in (Eagle2(2, 2, 3), DDTree(3, 2)):
        with pytest.raises(InvalidTree, match="is not made for children of law iid"):
            Medusa(table_medusa(3), growth, IID, WARM)


def test_every_node_of_a_depth_draws_from_its_row():
    shape = TreeShape.expansion([3, 2])
    drafter = begun(Medusa(table_medusa(3), shape, IID, WARM))
    tree, probs = drafter.propose(TorchCoins(0)), rows_of(drafter).softmax(-1)
    for node in shape.internal:
        assert torch.equal(tree.draft_probs_of(node), probs[shape.depths[node]])


def test_deeper_trees_than_rows_are_refused():
    with pytest.raises(
        InvalidTree, match=r"trees are 3 levels deep .* the head predicts 2 positions"
    ):
        Medusa(table_medusa(3), TreeShape.chain(3), IID, WARM)

    class Lying:
        max_depth = 2

        def next(self, shape, probs):
            return [(shape.size - 1, 1)]

    with pytest.raises(InvalidTree, match="node at depth 2, but there are rows for 2 depths"):
        begun(BlockDraft(table_block(3), Lying(), SURE, WARM)).propose(TorchCoins(0))


@pytest.mark.usefixtures("without_shape_checks")
def test_features_are_asked_for():
    with pytest.raises(InvalidArgument, match=r"reads features \('post',\)"):
        Medusa(table_medusa(3), TreeShape.chain(2), IID, WARM).prefill(PROMPT)


def test_the_best_token_of_each_row_is_told_after_the_step_too():
    drafter = Medusa(table_medusa(3), TreeShape.expansion([2]), IID, WARM)
    assert drafter.best_next() == []
    steps = decode(
        ModelTarget(table()), drafter, verify.rrs, PROMPT, sampling=WARM, coins=TorchCoins(0),
        max_new_tokens=3,
    )  # fmt: skip
    propose, wanted = drafter.propose, []

    def noted(coins):
        tree = propose(coins)
        best = rows_of(drafter).argmax(-1).tolist()
        wanted[:] = [best[0], best[1], best[1]]
        return tree

    drafter.propose = noted
    for step in steps:
        assert drafter.best_next() == wanted
        assert best_next(drafter, step.tree, [2, 0]) == [wanted[2], wanted[0]]


@pytest.mark.parametrize("name", ["medusa", "dflash"])
def test_under_a_penalty_a_chain_never_leaves_the_spine(name, tmp_path):
    """The best token of a node is that of its processed row, from which its child comes."""
    heads = FORMATS[name].read(tmp_path / "head")
    sampling = Sampling(temperature=0.0, processors=Processors(repetition_penalty=3.0))
    drafter = FORMATS[name].drafter(heads, TreeShape.chain(2), SURE, sampling)
    steps, other = 0, 0
    for step in decode(
        ModelTarget(target()), drafter, verify.greedy, torch.tensor([5, 17, 80, 2, 41]),
        sampling=sampling, coins=TorchCoins(0), max_new_tokens=30,
    ):  # fmt: skip
        if step.tree.shape.size == 1:
            continue
        assert next_right(drafter, step).spine == step.verdict.accepted
        assert drafter.best_next() == [*step.tree.token_ids[1:], None]
        raw = drafter.model.rows.argmax(-1).tolist()
        steps, other = steps + 1, other + (raw[:2] != step.tree.token_ids[1:])
    assert steps > 5
    assert other  # else raw rows would do


def test_the_best_tokens_below_a_path_are_those_of_deeper_rows():
    drafter = begun(Medusa(table_medusa(3, heads=3), TreeShape.chain(1), SURE, COLD))
    tree = drafter.propose_below([0], TorchCoins(0))
    best = rows_of(drafter).argmax(-1).tolist()
    assert drafter.best_next() == [tree.token_ids[1], best[2]] == best[1:]


def test_rows_are_processed_along_the_path_of_each_node():
    processors = Processors(repetition_penalty=1.7, presence_penalty=0.4)
    sampling = Sampling(processors=processors)
    drafter = begun(Medusa(table_medusa(3), TreeShape.expansion([2, 1]), IID, sampling))
    tree, rows = drafter.propose(TorchCoins(1)), rows_of(drafter)
    text = ProcessedText(processors, len(PROMPT), PROMPT.device)
    text.extend(PROMPT[:-1].tolist())
    for node in tree.shape.internal:
        path = [tree.token_ids[above] for above in tree.shape.path(node)]
        right = text.row(rows[tree.shape.depths[node]], path, node).softmax(-1)
        torch.testing.assert_close(tree.draft_probs_of(node), right)
    assert not torch.equal(tree.draft_probs_of(1), tree.draft_probs_of(2))


@pytest.mark.parametrize("make", [table_medusa, table_block])
def test_below_a_path(make):
    kind = Medusa if make is table_medusa else BlockDraft
    drafter = begun(kind(make(3), TreeShape.chain(1), IID, WARM))
    before = drafter.propose(TorchCoins(0))
    trees = [drafter.propose_below([token], TorchCoins(0)) for token in (0, 2)]
    assert [tree.token_ids[0] for tree in trees] == [0, 2]
    same = torch.equal(trees[0].draft_probs, trees[1].draft_probs)
    assert same == (make is table_medusa)  # a block's rows depend on the tokens in it
    if same:
        assert torch.equal(trees[0].draft_probs[0], rows_of(drafter)[1].softmax(-1))
    assert drafter.propose_below([0, 1], TorchCoins(0)).shape.size == 1  # no row so deep
    assert drafter.propose_below([0, 1, 2, 0, 1], TorchCoins(0)).shape.size == 1
    after = drafter.propose(TorchCoins(0))
    assert after.token_ids == before.token_ids
    assert torch.equal(after.draft_probs, before.draft_probs)


def test_a_merge_draws_single_nodes_even_before_there_is_a_state():
    heads = Medusa(table_medusa(3), TreeShape.chain(2), IID, WARM)
    merge = Merge(
        {"heads": heads, "lookup": PromptLookup(2, ngram=1)}, 5,
        rates=dict.fromkeys(["heads", "lookup"], ((0.6, 0.4),)),
    )  # fmt: skip
    steps = list(decode(
        ModelTarget(table()), merge, verify.rrs, torch.tensor([1]), sampling=WARM, coins=TorchCoins(0),
        max_new_tokens=30,
    ))  # fmt: skip
    first, later = steps[0].tree, steps[3].tree
    assert torch.equal(first.draft_probs, torch.full_like(first.draft_probs, 1 / 3))
    assert not torch.equal(later.draft_probs, torch.full_like(later.draft_probs, 1 / 3))
    assert len({len(step.tree.groups_of(0)) for step in steps}) == 2


@pytest.mark.parametrize("law", [IID, Law.WITHOUT_REPLACEMENT])
def test_a_reduced_vocabulary_draws_only_what_it_keeps(law):
    drafter = begun(BlockDraft(table_block(3, kept=(0, 2)), TreeShape.expansion([2, 2]), law, WARM))
    tree = drafter.propose(TorchCoins(0))
    assert set(tree.token_ids[1:]) <= {0, 2}
    assert (tree.draft_probs[:, 1] == 0).all()
    torch.testing.assert_close(tree.draft_probs.sum(-1), torch.ones(3, dtype=torch.float64))


def test_a_vocabulary_without_any_right_token_still_gives_the_right_text(tmp_path):
    model, form = target(), FORMATS["speculators, small"]
    head = form.read(tmp_path, model)
    ids, prompt = [], torch.tensor([5, 17, 80])
    for _ in range(12):
        at = model.fresh()
        at.prefill(torch.tensor([*prompt.tolist(), *ids][:-1]))
        last = torch.tensor([[*prompt.tolist(), *ids][-1]])
        ids.append(int(at.run(last, (-1,)).logits[0].argmax()))
    others = [token for token in range(96) if token not in ids]
    head.kept = torch.tensor(others[: len(head.kept)])
    for law, rule in ((SURE, verify.greedy), (IID, verify.rrs)):
        drafter = BlockDraft(head, TreeShape.expansion([2, 1]), law, COLD)
        steps = list(decode(
            ModelTarget(model), drafter, rule, prompt, sampling=COLD, coins=TorchCoins(0),
            max_new_tokens=12,
        ))  # fmt: skip
        assert [token for step in steps for token in step.tokens] == ids
        assert not any(step.verdict.accepted for step in steps)


def test_a_second_text_begins_anew(tmp_path):
    form = FORMATS["dflash"]
    head = form.read(tmp_path)
    used = form.drafter(head, TreeShape.chain(3), IID, WARM)
    for prompt in ([3, 4, 5, 6, 7, 8], [9, 10]):
        used.prefill(torch.tensor(prompt), states_of(target(), used.reads, prompt[:-1]))
        tree = used.propose(TorchCoins(0))
    fresh = form.drafter(head, TreeShape.chain(3), IID, WARM)
    fresh.prefill(torch.tensor(prompt), states_of(target(), used.reads, prompt[:-1]))
    assert torch.equal(fresh.propose(TorchCoins(0)).draft_probs, tree.draft_probs)


def test_caches_grow_with_the_text(tmp_path):
    """Beyond the rows that are reserved at first."""
    form = FORMATS["jetspec"]
    head, text = form.read(tmp_path), [(7 * i) % 90 for i in range(249)]
    drafters = [form.drafter(head, TreeShape.chain(4), IID, WARM) for _ in range(2)]
    states = torch.cat([states_of(target(), drafters[0].reads, text)] * 3)
    whole, parts = drafters
    whole.prefill(torch.tensor([*text * 3, 3]), states)
    parts.prefill(torch.tensor([*text[:5], 3]), states[:5])
    parts.follow(states[5:260])
    parts.propose(TorchCoins(0))
    parts.follow(states[260:])
    rows = [one.propose(TorchCoins(0)).draft_probs for one in drafters]
    torch.testing.assert_close(rows[0], rows[1], rtol=0, atol=1e-5)
