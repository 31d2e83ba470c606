"""Token recycling: the template, which row wins, and missing rows."""

import pytest
import torch

from treespec import Law, TokenTree, TorchCoins, TreeShape
from treespec.draft import TokenRecycling
from treespec.draft.recycling import TEMPLATE, template
from treespec.draft.text.best_first import Limits
from treespec.errors import InvalidArgument, Unreadable
from treespec.step import Scores, Step, Verdict


def test_the_template_has_80_draft_nodes():
    assert TEMPLATE.level_sizes == (1, 8, 21, 25, 15, 8, 3)
    assert [len(TEMPLATE.children[node]) for node in TEMPLATE.children[0]] == [
        8,
        4,
        3,
        2,
        1,
        1,
        1,
        1,
    ]


def test_parts_of_the_template_are_trees_within_limits():
    whole = {TEMPLATE.rank_path(node) for node in range(81)}
    before = {()}
    for size in range(2, 82):
        part = template(Limits(6, size, 8))
        paths = {part.rank_path(node) for node in range(size)}
        assert part.size == size
        assert before < paths <= whole
        before = paths
    assert template(Limits(9, 99, 8)).size == 81
    assert template(Limits(4)).is_chain
    assert template(Limits(9)).depth == 6
    assert template(Limits(2, 40, 3)).level_sizes == (1, 3, 9)
    assert template(Limits(6, 8, 8)).parents == (-1, 0, 0, 0, 1, 1, 2, 4)
    shallower = template(Limits(6, 50, 8))  # (0, 7) and (0, 0, 4) have one product
    assert {(0, 7), (0, 0, 4)} & {*map(shallower.rank_path, range(50))} == {(0, 7)}


def table(*rows):
    return {token: list(row) for token, *row in rows}


def drafted(drafter, *prompt):
    drafter.prefill(torch.tensor(prompt))
    tree = drafter.propose(TorchCoins(0))
    return tree.shape.parents, tree.token_ids


def test_nodes_get_successors_by_rank_and_cold_rows_have_no_children():
    shape = TreeShape.expansion([2, 2])
    assert drafted(TokenRecycling(shape), 5) == ((-1,), (5,))
    rows = table((5, 6, 7, 8), (6, 5))
    assert drafted(TokenRecycling(shape, table=rows), 5) == ((-1, 0, 0, 1), (5, 6, 7, 5))


def commit(drafter, parents, tokens, path, logits):
    tree = TokenTree(TreeShape(parents), torch.tensor(tokens), None, Law.DETERMINISTIC)
    verdict = Verdict(path, 0)
    emitted = (*(tokens[node] for node in path[1:]), 0)
    drafter.commit(Step(tree, verdict, Scores(torch.tensor(logits)), emitted))


def test_every_verified_node_writes_its_row():
    drafter = TokenRecycling(TreeShape.chain(1), successors=2)
    drafter.prefill(torch.tensor([4]))
    rows = [[0.1, 0.9, 0.5, 0, 0], [3.0, 2.0, 1.0, 0, 0], [0, 0, 0, 1.0, 2.0]]
    commit(drafter, (-1, 0, 0), (4, 1, 2), (0, 2), rows)  # node 1 is rejected
    assert drafter.table == {4: [1, 2], 1: [0, 1], 2: [4, 3]}


@pytest.mark.parametrize(("path", "row"), [((0, 1), 1), ((0, 2, 3), 3), ((0,), 3)])
def test_of_equal_tokens_the_accepted_path_wins_then_the_later_node(path, row):
    """Token 7 stands at nodes 1 and 3."""
    drafter = TokenRecycling(TreeShape.chain(1), successors=1)
    drafter.prefill(torch.tensor([4]))
    logits = torch.eye(8)[:4].tolist()
    commit(drafter, (-1, 0, 0, 2), (4, 7, 2, 7), path, logits)
    assert drafter.table[7] == [row]


def test_rows_of_equal_successors_are_refused():
    """The rows of zeros that the original begins with would give a node eight equal children."""
    with pytest.raises(InvalidArgument, match="holds a token twice"):
        TokenRecycling(table=table((1, 0, 0)))


def test_a_prompt_begins_with_the_table_it_was_given():
    rows = table((5, 6))
    drafter = TokenRecycling(TreeShape.chain(2), table=rows, successors=1)
    drafter.prefill(torch.tensor([5]))
    commit(drafter, (-1, 0), (5, 6), (0, 1), torch.eye(8)[:2].tolist())
    assert drafter.table == {5: [0], 6: [1]}
    drafter.prefill(torch.tensor([5]))
    assert drafter.table == rows == {5: [6]}


def test_saved_and_loaded(tmp_path):
    drafter = TokenRecycling(table=table((5, 70_000, 7), (6,), (8, 1)))
    drafter.prefill(torch.tensor([5]))
    drafter.save(tmp_path / "t", vocab_size=70_001)
    assert TokenRecycling.load(tmp_path / "t") == table((5, 70_000, 7), (6,), (8, 1))
    with pytest.raises(Unreadable, match="vocabulary of 70001"):
        TokenRecycling.load(tmp_path / "t", vocab_size=9)


WRONG = {
    "3 children, but successors = 2": {"shape": TreeShape.expansion([3]), "successors": 2},
    r"table\[1\]\[0\] = 9 is not a token id: ids are 0..8": {"table": {1: [9]}, "vocab_size": 9},
}


@pytest.mark.parametrize("said", WRONG)
def test_wrong_settings(said):
    with pytest.raises(InvalidArgument, match=said):
        TokenRecycling(**WRONG[said])
