"""Acceptance rules, one a file. Each is `(tree, target_probs, coins) -> Verdict`, pure.

`RULES` lists them by name. Each says what it covers (`.covers(shape, law)`), `.laws`, `.lossless`, `.scope`
and `.reference`. `optimal_acceptance` is the ceiling of what any lossless rule accepts at one node.
"""

from importlib import import_module
from pkgutil import iter_modules

from treespec.distributions import Sampling
from treespec.tree import Law
from treespec.verify.block import block
from treespec.verify.by_kernel import ByKernel, by_kernel, verifier_for
from treespec.verify.canonical import canonical
from treespec.verify.chain import chain
from treespec.verify.fused import Fused, fused
from treespec.verify.gbv import gbv
from treespec.verify.greedy import greedy
from treespec.verify.greedy_multidraft import greedy_multidraft
from treespec.verify.kseq import kseq
from treespec.verify.lenient import lenient
from treespec.verify.naive import naive
from treespec.verify.on_host import OnHost, on_host
from treespec.verify.onehot import onehot
from treespec.verify.optimal_acceptance import optimal_acceptance
from treespec.verify.optimal_transport import optimal_transport
from treespec.verify.rrs import rrs
from treespec.verify.rrsw import rrsw
from treespec.verify.rule import NodeChoice, NodeRule, Rule, Scope, rule, top_down
from treespec.verify.spechub import spechub
from treespec.verify.traversal import traversal
from treespec.verify.typical import typical

__all__ = [
    "RULES",
    "RULE_OF_LAW",
    "ByKernel",
    "Fused",
    "NodeChoice",
    "NodeRule",
    "OnHost",
    "Rule",
    "Scope",
    "block",
    "by_kernel",
    "canonical",
    "chain",
    "fused",
    "gbv",
    "greedy",
    "greedy_multidraft",
    "kseq",
    "lenient",
    "naive",
    "on_host",
    "onehot",
    "optimal_acceptance",
    "optimal_transport",
    "rrs",
    "rrsw",
    "rule",
    "spechub",
    "top_down",
    "traversal",
    "typical",
    "usual_law",
    "usual_rule",
    "verifier_for",
]


def _rules() -> dict[str, Rule]:
    """The rules of this package: of each module the rule that has the module's name."""
    rules: dict[str, Rule] = {}
    for module in iter_modules(__path__):
        if module.name.endswith("_kernel"):  # needs Triton
            continue
        rule = getattr(import_module(f"{__name__}.{module.name}"), module.name, None)
        if isinstance(rule, Rule):
            rules[module.name] = rule
    return rules


RULES = _rules()
"""The field's rules by name. A new one takes no more than its file."""

# A module takes the name of its rule when it is first imported.
globals().update(RULES)

RULE_OF_LAW: dict[Law, Rule] = {
    Law.DETERMINISTIC: onehot,
    Law.IID: rrs,
    Law.WITHOUT_REPLACEMENT: rrsw,
    Law.TOP_THEN_SAMPLE: greedy_multidraft,
    Law.HUB: spechub,
}
"""The rule for children drawn by a law, where none is asked for: cheap, and made for trees of any shape."""


def usual_law(sampling: Sampling) -> Law:
    """How children of a tree are chosen where nobody says: without chance only at temperature 0."""
    return Law.DETERMINISTIC if sampling.greedy else Law.WITHOUT_REPLACEMENT


def usual_rule(law: Law, sampling: Sampling) -> Rule:
    """`greedy` at temperature 0, else the rule of the law in `RULE_OF_LAW`."""
    return greedy if sampling.greedy else RULE_OF_LAW[law]
