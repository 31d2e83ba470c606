"""A rule that draws from what is left, and a growth that looks at the draft's doubt."""

from treespec import Law, plugins
from treespec.verify import NodeChoice, rule, top_down


@plugins.rule("lucky")
@rule(laws={Law.IID}, reference="arXiv:2211.17192, for the first child")
def lucky(tree, target_probs, coins):
    """Test the first child; a draw from what is left may still hit a sibling."""

    def decide(p, q, children, c):
        if c.accept(p[children[0]] / q[children[0]]):
            return NodeChoice(child=0)
        rest = (p - q).clamp(min=0)
        return NodeChoice.of(c.draw(rest if rest.sum() > 0 else p), children)

    return top_down(tree, target_probs, coins, decide)


class Doubt(plugins.Settings):
    depth: int = 4
    sure: float = 0.6


@plugins.growth("unsure", settings=Doubt)
class Unsure:
    """A chain, with two siblings more wherever its token is improbable."""

    def __init__(self, depth, sure):
        self.max_depth, self.sure = depth, sure

    def next(self, shape, probs):
        first = shape.depths.index(shape.depth)
        alone = shape.size > 1 and shape.depths.count(shape.depth) == 1
        if alone and probs()[first] < self.sure:
            return [(shape.parents[first], 2)]
        return [(first, 1)] if shape.depth < self.max_depth else []
