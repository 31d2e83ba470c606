"""Acceptance rules, one a file. Each is `(tree, target_probs, coins) -> Verdict`, pure.

`RULES` lists them by name. Each has `.laws`, `.lossless` and `.reference`.
"""

from treespec.verify.chain import chain
from treespec.verify.greedy import greedy
from treespec.verify.naive import naive
from treespec.verify.onehot import onehot
from treespec.verify.rrs import rrs
from treespec.verify.rrsw import rrsw
from treespec.verify.rule import NodeChoice, NodeRule, Rule, rule, top_down

__all__ = [
    "RULES",
    "NodeChoice",
    "NodeRule",
    "Rule",
    "chain",
    "greedy",
    "naive",
    "onehot",
    "rrs",
    "rrsw",
    "rule",
    "top_down",
]

RULES: dict[str, Rule] = {str(r): r for r in (greedy, naive, onehot, chain, rrs, rrsw)}
