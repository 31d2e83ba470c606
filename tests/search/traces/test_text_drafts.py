"""Drafts at every position: their contents, their consistency checks, and invalid files."""

from dataclasses import replace

import numpy as np
import pytest

from treespec.plugins import Budget
from treespec.search import InvalidTrace, Trace
from treespec.search.traces.replay import replay_budget
from treespec.search.traces.text_drafts import TextDrafts

# Position 0: two drafts, a and its children b and c, then a alone; position 1: nothing; position 2: b.
A, B, C = 5, 6, 7
PARTS = {
    "drafts": [0, 2, 2, 3], "nodes": [0, 3, 4, 5], "seen": [4, 3, 2], "most": [3, 1, 2],
    "parents": [0, 1, 1, 0, 0], "tokens": [A, B, C, C, B], "counts": [3, 2, 1, 3, 1], "limits": [2, 4, 2],
}  # fmt: skip


def trace_of(drafts):
    return Trace(
        offsets=[0, 3], tokens=[A, C, B], ranks=[0, 2, 0], probs=np.zeros((3, 2)),
        accepted=np.zeros((3, 2)), law="deterministic", rule="greedy", sampling={"temperature": 0.0},
        width=2, text_drafts=drafts, kept=[2],
    )  # fmt: skip


def test_of_several_drafts_the_more_probable_one_within_the_limits_is_chosen():
    drafts = TextDrafts(**PARTS)
    # Whole drafts: 6/4 against 3/3. One node: 3/4 against 3/3. Without a second child: 5/4.
    for budget, chosen in (
        (Budget(4, 2, 2), [1, 1, 1, 0, 1]),
        (Budget(2, 2, 2), [0, 0, 0, 1, 1]),
        (Budget(4, 1, 2), [0, 0, 0, 1, 1]),
        (Budget(4, 2, 1), [1, 1, 0, 0, 1]),
        (Budget(3, 2, 2), [1, 1, 0, 0, 1]),
    ):
        assert drafts.drafted(budget).tolist() == [bool(one) for one in chosen], budget
    assert drafts.depths.tolist() == [1, 2, 2, 1, 1]
    assert drafts.ranks.tolist() == [0, 0, 1, 0, 0]


def test_of_equally_probable_drafts_the_first_is_chosen():
    equal = TextDrafts(**(PARTS | {"seen": [4, 4, 2], "counts": [3, 2, 1, 3, 1]}))
    assert equal.drafted(Budget(2, 1, 1)).tolist() == [True, False, False, False, True]


def test_a_draft_has_no_more_nodes_than_its_string_allows():
    two = TextDrafts(**(PARTS | {"most": [2, 1, 2]}))
    assert two.drafted(Budget(4, 2, 2)).tolist() == [True, True, False, False, True]
    one = TextDrafts(**(PARTS | {"most": [1, 1, 2]}))  # 3/4 against 3/3
    assert one.drafted(Budget(4, 2, 2)).tolist() == [False, False, False, True, True]


def test_steps():
    trace = trace_of(TextDrafts(**PARTS))
    whole, chain = (replay_budget(trace, budget) for budget in (Budget(4, 2, 2), Budget(3, 2, 1)))
    assert (whole.accepted.tolist(), whole.sizes.tolist(), whole.kept.tolist()) == ([2], [4], [2])
    assert (chain.accepted.tolist(), chain.sizes.tolist(), chain.kept.tolist()) == ([1], [3], [2])


def test_what_is_saved_is_loaded(tmp_path):
    trace = trace_of(TextDrafts(**PARTS))
    again = Trace.load(trace.save(tmp_path / "x.npz"))
    for name, values in PARTS.items():
        assert getattr(again.text_drafts, name).tolist() == values
    with np.load(tmp_path / "x.npz") as file:
        assert b'"version": 2' in file["meta"].tobytes()
    plain = replace(trace, text_drafts=None).save(tmp_path / "plain.npz")
    with np.load(plain) as file:
        assert b'"version": 1' in file["meta"].tobytes()  # as before, for older readers


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"drafts": [0, 2, 1, 3]}, "drafts"),
        ({"nodes": [0, 3, 4, 6]}, "nodes"),
        ({"seen": [4, 3]}, "seen"),
        ({"most": [3, 0, 2]}, "most"),
        ({"parents": [0, 2, 1, 0, 0]}, "parents"),
        ({"parents": [0, 1, 1, 1, 0]}, "parents"),
        ({"parents": [-1, 1, 1, 0, 0]}, "parents"),
        ({"tokens": [A, B, C, C, -1]}, "tokens"),
        ({"counts": [3, 2, 1, 4, 1]}, "counts"),
        ({"limits": [1, 4, 2]}, "limits"),
        ({"limits": [2, 4, 1]}, "limits"),
        ({"limits": [2, 4]}, "limits"),
        ({"counts": [0.5] * 5}, "counts"),
        ({"tokens": [[A]]}, "tokens"),
    ],
)
def test_what_does_not_fit_together_is_refused(change, name):
    with pytest.raises(InvalidTrace, match=rf"text_drafts\.{name}"):
        TextDrafts(**(PARTS | change))


def test_drafts_of_other_positions_are_refused():
    with pytest.raises(InvalidTrace, match="text_drafts has 2 positions, but the texts have 3"):
        trace_of(TextDrafts(**(PARTS | {"drafts": [0, 2, 3]})))
