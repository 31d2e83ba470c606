"""A trace with easy and hard stretches, as in real texts."""

import numpy as np
import pytest


@pytest.fixture(scope="module")
def stretchy(stretches):
    """Easy and hard stretches, as in real texts."""
    return stretches(np.random.default_rng(5), texts=24, positions=120, stay=0.95)
