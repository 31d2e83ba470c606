"""Functions of `search` called with values of the wrong type raise our errors, never internal ones."""

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
    best_trees,
    calibration,
    calibration_data,
    estimate_acceptance,
    expected_tokens,
    fit_calibration,
    formats,
    growth,
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
    np.array(["a"]), lambda: 1, set(), 1j, 10**5000, (1,), int, np.array([[1.0]]),
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
DATA = calibration_data(TRACE)
REPLAY = replay(TRACE, TREE)
CALLS |= {
    growth.CostAware: {"latency": TIMES, "size": 8, "depth": 3, "branching": 2, "rate": None},
    growth.EqualGrowth: {"width": 4, "depth": 3, "latency": TIMES, "prefix": None, "fixed_s": 0.0},
    growth.DySpec: {"size": 8, "depth": 3},
    growth.Eagle2: {"k": 2, "depth": 3, "size": 8, "calibration": None},
    growth.OptTree: {"size": 8, "delta": 0.1, "depth": 3, "branching": 2},
    growth.SpecExec: {"size": 8, "branching": 2, "depth": 3},
    best_trees: {"acceptance": RATES, "latency": TIMES, "prefixes": None, "batches": None, "max_size": 6},
    best_tree: CALLS[best_tree] | {"level": 0.95, "laws": None, "sizes": None},
    fit_calibration: {"predicted": DATA.predicted, "accepted": DATA.accepted, "method": "isotonic"},
    calibration.reliability: {
        "predicted": DATA.predicted, "accepted": DATA.accepted, "spacing": "count", "by": None,
        "level": 0.9,
    },
    fit_calibration(DATA.predicted, DATA.accepted).__call__: {"probs": 0.5},
    REPLAY.interval: {"level": 0.9, "seed": 0},
    REPLAY.of_text: {"text": 0},
    RATES.resample: {"rng": np.random.default_rng(0)},
    best_tree(RATES, TIMES, max_size=6).regret: {"shape": TREE, "law": None},
    TIMES.at: {"prefix": None, "law": None, "batch": 1},
    TIMES.law_times: {"law": None, "batch": 1},
    TIMES.prefix_at: {"prefix": None, "batch": 1},
    Trace: {name: getattr(TRACE, name) for name in ("offsets", "tokens", "ranks", "probs", "accepted")}
    | {"law": "deterministic", "rule": "greedy", "sampling": {}, "width": 4},
}  # fmt: skip
"""Each function with the valid arguments beside the wrong one."""

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
