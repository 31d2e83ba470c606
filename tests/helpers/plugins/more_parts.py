"""A rule that draws from what is left, a growth that looks at the draft's doubt, and a processor."""

import torch
from transformers import LogitsProcessor

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


class Settings(plugins.Settings):
    by: float = 1.0


class OddAfterOdd(LogitsProcessor):
    """Favours odd token ids after an odd number of tokens."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, input_ids, scores):
        odd = torch.arange(scores.shape[-1], device=scores.device) % 2
        return scores + self.by * (odd == input_ids.shape[-1] % 2)


@plugins.processor("odd_after_odd", settings=Settings)
def make(settings):
    return OddAfterOdd(settings.by)
