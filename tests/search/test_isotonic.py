"""Isotonic regression, compared with SciPy's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treespec.search.isotonic import non_increasing


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 50)), min_size=1, max_size=9))
def test_isotonic_regression_is_scipys(pairs):
    from scipy.optimize import isotonic_regression

    values, weights = (np.array(x, dtype=float) for x in zip(*pairs, strict=True))
    found = non_increasing(values, weights)
    assert (np.diff(found) <= 1e-12).all()
    if (weights > 0).all():
        right = isotonic_regression(values, weights=weights, increasing=False).x
        np.testing.assert_allclose(found, right, atol=1e-9)
        np.testing.assert_allclose(
            non_increasing(np.stack([values, values]), weights)[1], right, atol=1e-9
        )
