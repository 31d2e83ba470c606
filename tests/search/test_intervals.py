"""Wilson's interval against SciPy's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treespec.search.intervals import wilson


@given(st.integers(0, 400), st.integers(1, 400), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_wilson_is_scipys(hits, trials, level):
    from scipy.stats import binomtest

    hits = min(hits, trials)
    right = binomtest(hits, trials).proportion_ci(level, method="wilson")
    low, high = wilson(np.array([float(hits)]), np.array([float(trials)]), level)
    np.testing.assert_allclose([low[0], high[0]], [right.low, right.high], atol=1e-9)
