"""Tree shapes: the value of a tree, and the best tree for a pair of models on given hardware.

`expected_tokens` is the value of a tree under acceptance rates by rank, or by depth and rank.
`optimal_tree` finds the tree of highest value within a size, depth and branching, `optimal_frontier` those
of all sizes and depths at once, and `marginal_tree` the one for a distribution at each position (`DDTree`
as a growth). `estimate_acceptance` estimates the rates from a recorded `Trace`; `replay` evaluates any tree
on a trace; `calibration` compares the draft's own probabilities with acceptance. A `LatencyModel` holds
measured times. `best_tree` ranks trees, chains and plain decoding by the speed predicted from these times
and from replay or rates, and says which to use or what would decide (`Advice`); `best_tree_among` ranks
several drafts or laws together. `growth` has the policies of dynamic trees, and `formats` reads and writes
the tree formats of other tools.
"""

from treespec.search import formats, growth
from treespec.search.choice.advice import Advice
from treespec.search.choice.best import best_tree, best_tree_among
from treespec.search.choice.ranking import Ranking
from treespec.search.choice.rows import Choice
from treespec.search.errors import (
    InfeasibleTree,
    InvalidAcceptance,
    InvalidCalibration,
    InvalidGrowth,
    InvalidLatency,
    InvalidLimit,
    InvalidTrace,
    NotMeasured,
    SearchError,
    SmallSample,
)
from treespec.search.growth.ddtree import DDTree
from treespec.search.growth.top2gap import Top2Gap
from treespec.search.latency.latency import LatencyModel
from treespec.search.traces import calibration, replay
from treespec.search.traces.calibration import (
    Calibration,
    CalibrationData,
    calibration_data,
    fit_calibration,
)
from treespec.search.traces.estimate import AcceptanceEstimate, estimate_acceptance
from treespec.search.traces.replay import Replay
from treespec.search.traces.trace import Trace
from treespec.search.value.expected import expected_tokens
from treespec.search.value.frontier import Frontier, optimal_frontier
from treespec.search.value.marginals import marginal_tree
from treespec.search.value.optimal import optimal_tree

__all__ = [
    "AcceptanceEstimate",
    "Advice",
    "Calibration",
    "CalibrationData",
    "Choice",
    "DDTree",
    "Frontier",
    "InfeasibleTree",
    "InvalidAcceptance",
    "InvalidCalibration",
    "InvalidGrowth",
    "InvalidLatency",
    "InvalidLimit",
    "InvalidTrace",
    "LatencyModel",
    "NotMeasured",
    "Ranking",
    "Replay",
    "SearchError",
    "SmallSample",
    "Top2Gap",
    "Trace",
    "best_tree",
    "best_tree_among",
    "calibration",
    "calibration_data",
    "estimate_acceptance",
    "expected_tokens",
    "fit_calibration",
    "formats",
    "growth",
    "marginal_tree",
    "optimal_frontier",
    "optimal_tree",
    "replay",
]
