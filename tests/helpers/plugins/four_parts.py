"""A draft source, a rule, a growth and a metric of one's own, each as short as it can be."""

import torch

from treespec import Law, TokenTree, TreeShape, plugins
from treespec.verify import NodeChoice, rule, top_down


class Settings(plugins.Settings):
    n: int = 3


@plugins.drafter("repeat", settings=Settings, laws={Law.DETERMINISTIC}, trees="budget")
class Repeat:
    """Drafts the last token again, at most n times."""

    max_length = 2**31

    def __init__(self, wanted, settings):
        self.max_depth = min(wanted.tree.depth, settings.n)

    def prefill(self, tokens):
        self.root = tokens[-1:]

    def propose(self, coins):
        tokens = self.root.repeat(self.max_depth + 1)
        return TokenTree(TreeShape.chain(self.max_depth), tokens, None, Law.DETERMINISTIC)

    def commit(self, step):
        self.root = torch.full_like(self.root, step.verdict.bonus)


@plugins.rule("mine")
@rule(laws={Law.DETERMINISTIC}, reference="this file")
def mine(tree, target_probs, coins):
    """Draw from the target; go on where the draw was drafted."""
    return top_down(
        tree, target_probs, coins, lambda p, q, children, c: NodeChoice.of(c.draw(p), children)
    )


class Limits(plugins.Settings):
    depth: int = 2


@plugins.growth("twins", settings=Limits)
class Twins:
    """Two children of the root, then one child of each."""

    def __init__(self, depth):
        self.max_depth = depth

    def next(self, shape, probs):
        if shape.depth == self.max_depth:
            return []
        last = [node for node in range(shape.size) if shape.depths[node] == shape.depth]
        return [(node, 2 if shape.size == 1 else 1) for node in last]


@plugins.metric("distinct", "distinct draft tokens per step")
def distinct(steps):
    """Mean over the steps of a prompt."""
    return sum(len(set(step.tokens[1:])) for step in steps) / len(steps)
