"""The cost of a level's further children, and the lower bound of a step's time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treespec import TreeShape
from treespec.search import LatencyModel, NotMeasured
from treespec.search.latency.step_parts import further_draws, levels_of
from treespec.testing import plane_trees

MIXED = TreeShape((-1, 0, 0, 0, 0, 1, 2, 3, 3, 4, 4, 4))
"""The root has four children, which have 1, 1, 2 and 3."""


def test_drawn_children_of_one_number_are_drawn_together():
    drawn = further_draws(levels_of(MIXED))
    # The root 3 more; one node 1 more, one 2 more; 2 for the groups after the first.
    assert drawn == {1: 3 + 1 + 2 + 2}
    assert further_draws(levels_of(TreeShape.kary(3, 3))) == {1: 2, 3: 2, 9: 2}
    assert further_draws(levels_of(TreeShape.chain(4))) == {}


def test_deterministic_children_are_chosen_for_the_whole_level():
    chosen = further_draws(levels_of(MIXED), together=True)
    # The root 3 more; the second children of two nodes, the third of one.
    assert chosen == {1: 3 + 1, 2: 1}
    assert further_draws(levels_of(TreeShape.kary(3, 3)), together=True) == {1: 2, 3: 2, 9: 2}


def test_the_law_says_how_children_are_chosen():
    draw = {1: 0.001, 2: 0.002}
    for law, seconds in (("deterministic", 0.006), ("iid", 0.008)):
        model = LatencyModel.from_tables(verify=0.02, draft=0.0, draw=draw, law=law)
        for named in (law, None):
            assert model.step_s(MIXED, law=named) == pytest.approx(0.02 + seconds)
    anything = LatencyModel.from_tables(verify=0.02, draft=0.0, draw=draw)
    assert anything.step_s(MIXED, law="deterministic") == pytest.approx(0.026)
    assert anything.step_s(MIXED) == pytest.approx(0.028)


tables = st.lists(st.floats(0, 1), min_size=12, max_size=12).map(
    lambda steps: dict(enumerate(np.cumsum(steps).tolist(), start=1))
)


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=11),
    tables,
    tables,
    st.booleans(),
    st.sampled_from(["deterministic", "iid", "without_replacement"]),
)
def test_no_step_is_below_its_floor(numbers, draw, draft, first, law):
    """For any non-decreasing times: drawing for all nodes may cost more than drawing in groups."""
    shape = TreeShape((-1, *(number % (node + 1) for node, number in enumerate(numbers))))
    model = LatencyModel.from_tables(
        verify={1: 0.02, 16: 0.03}, draft=draft, draw=draw, first=0.1 if first else None, law=law
    )
    floor = model.at().floor_s(np.array([shape.size]), shape.depth)[0]
    assert model.step_s(shape) >= floor - 1e-12


def test_drawing_for_four_may_be_dear():
    """By hand: two groups of two take no time to draw, all four together take a second."""
    shape = TreeShape((-1, 0, 0, 0, 0, 1, 2, 3, 3, 4, 4))
    draw = {1: 0.0, 2: 0.0, 3: 0.0, 4: 1.0}
    model = LatencyModel.from_tables(verify=0.02, draft=0.001, draw=draw, law="iid")
    assert model.step_s(shape) == pytest.approx(0.022)
    assert model.at().floor_s(np.array([11]), 2)[0] == pytest.approx(0.022)


def test_no_more_nodes_draw_than_have_two_children():
    for size in range(2, 9):
        for shape in plane_trees(size):
            for together in (False, True):
                draws = further_draws(levels_of(shape), together)
                assert all(n == 1 or 3 * n < size for n in draws)  # with a level above, or the root


def test_what_is_not_known_of_draws_says_what_to_profile():
    """As in profiles without a tree of 5 to 8 nodes: nothing is known for a single node."""
    model = LatencyModel.from_tables(verify={1: 0.02, 16: 0.03}, draft=0.001, draw={3: 0.001})
    with pytest.raises(NotMeasured, match=r"draw: number of nodes 1, .* profile again") as caught:
        model.step_s(TreeShape.kary(2, 1))
    assert "always times the further children of one node" in str(caught.value)
    assert "larger trees" not in str(caught.value)
