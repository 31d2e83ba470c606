"""The library of `search` called with values of the wrong type: an error of ours, never one from inside."""

import re
import warnings

import numpy as np
import pytest

from treespec.errors import TreespecError
from treespec.search import (
    AcceptanceEstimate,
    Calibration,
    LatencyModel,
    Trace,
    best_tree,
    calibration_data,
    estimate_acceptance,
    expected_tokens,
    formats,
    optimal_tree,
)
from treespec.search.rates.replay import replay
from treespec.tree import TreeShape

FOREIGN = re.compile(
    r"\b[A-Z]\w*(?:Error|Exception|Warning)\b|has no attribute|object is not|not supported between|"
    r"could not convert|inhomogeneous|argument must be|<class|Expecting"
)
WRONG = [
    "x", -1, 1.5, float("nan"), 10**30, [], {}, [1, [2]], [None], ["x"], object(), b"x", np.zeros(0),
    np.array(["a"]), lambda: 1, set(), 1j,
]  # fmt: skip

_RANKS = np.arange(40) % 5
_PROBS = np.full((40, 4), 0.2)
TRACE = Trace(
    np.array([0, 20, 40]), np.arange(40), _RANKS, _PROBS, _PROBS * 0.9, "deterministic", "greedy",
    {"temperature": 0.0}, 4,
)  # fmt: skip
TREE = TreeShape.kary(2, 2)
TIMES = LatencyModel.from_tables(verify={1: 0.02, 16: 0.03}, draft={1: 0.001, 8: 0.002})
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    RATES = estimate_acceptance(TRACE, by="depth", depth=2)

CALLS = {
    expected_tokens: {"shape": TREE, "acceptance": [0.6, 0.2]},
    optimal_tree: {"acceptance": [0.6, 0.2], "size": 4, "depth": 2, "branching": 2},
    best_tree: {"acceptance": RATES, "latency": TIMES, "max_size": 6},
    replay: {"trace": TRACE, "shape": TREE},
    calibration_data: {"trace": TRACE},
    estimate_acceptance: {
        "source": TRACE,
        "by": "rank",
        "level": 0.9,
        "tree": None,
        "starts": None,
    },
    TIMES.step_s: {"shape": TREE, "prefix": None, "law": None, "batch": 1},
    TIMES.verify_s: {"size": 3, "prefix": None, "batch": 1},
    TIMES.draft_level_s: {"width": 1, "prefix": None},
    LatencyModel.from_tables: {
        "verify": 0.02,
        "draft": 0.01,
        "law": "any",
        "batch": 1,
        "about": {},
    },
    LatencyModel.from_json: {"text": TIMES.to_json()},
    LatencyModel.load: {"path": "times.json"},
    Trace.load: {"path": "trace.npz"},
    AcceptanceEstimate.from_json: {"text": RATES.to_json()},
    Calibration.from_json: {"text": "{}"},
    Calibration: {"method": "isotonic", "xs": (0.0, 1.0), "ys": (0.0, 1.0)},
    formats.dump: {"shape": TREE, "format": "medusa"},
    formats.load: {"source": "[[0]]", "format": "medusa"},
}
CASES = [(call, name) for call, arguments in CALLS.items() for name in arguments]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("call", "name"), CASES, ids=[f"{call.__qualname__}-{name}" for call, name in CASES]
)
def test_values_of_the_wrong_type(call, name):
    told, foreign = 0, []
    for value in WRONG:
        try:
            call(**CALLS[call] | {name: value})
        except TreespecError as error:
            told += 1
            said = str(error)
            foreign += [said] if FOREIGN.search(said) else []
    assert not foreign
    assert told >= len(WRONG) // 2
