"""An estimate of acceptance as a whole: taken for its rates, its source, its settings."""

import numpy as np
import pytest

from search import AcceptanceEstimate, estimate_acceptance, expected_tokens, optimal_tree
from treespec import TreeShape

pytestmark = pytest.mark.filterwarnings("ignore::search.errors.SmallSample")


def test_an_estimate_is_taken_for_its_rates(make_trace):
    found = estimate_acceptance(make_trace(texts=30))
    assert expected_tokens(TreeShape.chain(1), found) == 1 + found.rates[0]
    assert optimal_tree(found, 9).size == 9
    levels = estimate_acceptance(make_trace(texts=30), by="depth", depth=3)
    assert np.asarray(levels).shape == (3, 3)
    assert optimal_tree(levels, 9).depth <= 3


def test_sources_are_told_apart(make_trace):
    assert estimate_acceptance(make_trace()).source == "on-policy"
    assert estimate_acceptance(make_trace(forced=True)).source == "teacher-forced"


def test_numbers_of_numpy_are_numbers(make_trace):
    found = estimate_acceptance(
        make_trace(), by="depth", depth=np.int64(2), ranks=np.int64(3), seed=np.int64(1)
    )
    assert found.rates.shape == (2, 3)
    assert AcceptanceEstimate.from_json(found.to_json()).seed == 1
