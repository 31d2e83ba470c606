"""Reading the files that searches start from."""

import numpy as np

from treespec.experiments.config.search_files import read_acceptance
from treespec.search import Trace


def test_a_trace_is_read_as_rates_by_depth(tmp_path):
    ranks = np.tile([1, 0, 2], 60)
    accepted = (ranks[:, None] == np.arange(2)).astype(float)
    trace = Trace(
        offsets=[0, 90, 180], tokens=np.zeros_like(ranks), ranks=ranks, probs=accepted,
        accepted=accepted, law="deterministic", rule="greedy", sampling={}, width=2,
    )  # fmt: skip
    path = trace.save(tmp_path / "trace.npz")
    assert read_acceptance(path).rates[1].tolist() == [0.5, 0.0]
