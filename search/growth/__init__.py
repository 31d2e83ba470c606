"""Growth policies: trees that grow by the draft's probabilities on each text, one policy per file.

Each is a stateless `treespec.protocols.Growth`: where a tree grows is a function of the tree and of the
draft's probabilities, so drafters can share a policy, and decoding can stop and resume anywhere.

    policy         children                        keeps
    Eagle2         k best of the k best            the best nodes of the pool
    OptTree        all that can matter             the best nodes, once a level adds too little
    SpecExec       all that can matter             the best nodes, exactly
    EqualGrowth    the best `width` of all         the best nodes, or those that pay
    CostAware      of the nodes that pay           the nodes that pay
    DySpec         drawn one by one                all that were drawn
    DDTree         of the row of each position     the most probable continuations
    Top2Gap        the same                        the same, fewer where the draft is sure

DySpec draws without replacement and keeps the order of draws (rule `rrsw`). The others select children by
their probabilities, which would bias randomly drawn ones: their law is DETERMINISTIC (rules `naive`,
`onehot`, at temperature 0 `greedy`), and drafters refuse any other.

The settings of a policy in configs stand in its file, which registers both (`treespec.plugins.growth`).
"""

from importlib import import_module
from pkgutil import iter_modules

from treespec.search.growth.cost_aware import CostAware
from treespec.search.growth.ddtree import DDTree
from treespec.search.growth.dyspec import DySpec
from treespec.search.growth.eagle2 import Eagle2
from treespec.search.growth.equal_growth import EqualGrowth
from treespec.search.growth.margin import Margin
from treespec.search.growth.opt_tree import OptTree
from treespec.search.growth.shared_budget import EqualShares, SharedBudget
from treespec.search.growth.specexec import SpecExec
from treespec.search.growth.top2gap import Top2Gap
from treespec.search.growth.values import CalibrationMap
from treespec.tree import TreeShape

__all__ = [
    "CalibrationMap",
    "CostAware",
    "DDTree",
    "DySpec",
    "Eagle2",
    "EqualGrowth",
    "EqualShares",
    "Margin",
    "OptTree",
    "SharedBudget",
    "SpecExec",
    "Spine",
    "Top2Gap",
]

Spine = TreeShape.spine
"""All first ranks, and n siblings at each depth: a fixed shape, drafted as a growth is."""

for _module in iter_modules(__path__):  # each registers its growth
    import_module(f"{__name__}.{_module.name}")
