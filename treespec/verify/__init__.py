"""Acceptance rules, one per file: pure functions `(tree, target_probs, coins) -> Verdict`.

`RULES` lists them by name. Each rule states what it covers (`.covers(shape, law)`, `.laws`), `.lossless`,
`.scope` and `.reference`. `optimal_acceptance` is the largest acceptance of any lossless rule at one node.
"""

from importlib import import_module
from pkgutil import iter_modules

from treespec.sampling.distributions import Sampling
from treespec.tree import Law
from treespec.verify.block import block
from treespec.verify.canonical import canonical
from treespec.verify.chain import chain
from treespec.verify.engine.cpu_kernel import ByKernel, by_kernel, verifier_for
from treespec.verify.engine.fused import Fused, fused
from treespec.verify.engine.on_host import OnHost, on_host
from treespec.verify.gbv import gbv
from treespec.verify.greedy import greedy
from treespec.verify.greedy_multidraft import greedy_multidraft
from treespec.verify.kseq import kseq
from treespec.verify.lenient import lenient
from treespec.verify.naive import naive
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
    """The rules of this package: from each module, the rule named after the module."""
    rules: dict[str, Rule] = {}
    for module in iter_modules(__path__):
        if module.name.endswith("_kernel"):  # needs Triton
            continue
        rule = getattr(import_module(f"{__name__}.{module.name}"), module.name, None)
        if isinstance(rule, Rule):
            rules[module.name] = rule
    return rules


RULES = _rules()
"""Published rules by name. To add a rule, add its file."""

# Importing a submodule binds it to the name of its rule: rebind each name to the rule.
globals().update(RULES)

RULE_OF_LAW: dict[Law, Rule] = {
    Law.DETERMINISTIC: onehot,
    Law.IID: rrs,
    Law.WITHOUT_REPLACEMENT: rrsw,
    Law.TOP_THEN_SAMPLE: greedy_multidraft,
    Law.HUB: spechub,
}
"""Default rule for each law of children: cheap, and applicable to trees of any shape."""


def usual_law(sampling: Sampling) -> Law:
    """The default law of children: deterministic at temperature 0, otherwise without replacement."""
    return Law.DETERMINISTIC if sampling.greedy else Law.WITHOUT_REPLACEMENT


def usual_rule(law: Law, sampling: Sampling) -> Rule:
    """The default rule: `greedy` at temperature 0, otherwise `RULE_OF_LAW[law]`."""
    return greedy if sampling.greedy else RULE_OF_LAW[law]
