"""Files that searches start from."""

import numpy as np

from treespec.experiments.config.search_files import read_acceptance, read_chains
from treespec.search import Trace, estimate_acceptance


def test_a_trace_holds_the_rates_of_chains_apart(tmp_path):
    ranks = np.tile([1, 0, 2], 60)
    accepted = (ranks[:, None] == np.arange(2)).astype(float)
    trace = Trace(
        offsets=[0, 90, 180], tokens=np.zeros_like(ranks), ranks=ranks, probs=accepted,
        accepted=accepted, law="deterministic", rule="greedy", sampling={}, width=2,
    )  # fmt: skip
    path = trace.save(tmp_path / "trace.npz")
    assert read_acceptance(path).rates[1].tolist() == [0.5, 0.0]
    chains = read_chains(path)
    assert chains.rates[:2].tolist() == [[1 / 3], [0.0]]
    assert chains.law == "deterministic"
    estimate = tmp_path / "rates.json"
    estimate.write_text(estimate_acceptance(trace, by="depth").to_json())
    assert read_chains(estimate) is None
