"""Two defects of public code, planted: the enumeration finds both.

Sequoia (Infini-AI-Lab/Sequoia, `SpecTree.rand`) draws one set of random numbers for a prompt and uses it at
every step. A copy of greedy multi-path block verification clamps p / q at 1 when it selects a path, but not
when it computes the law of the selected path, so that the two break ties differently.
"""

import pytest
import torch

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, verify
from treespec.draft import ModelDrafter
from treespec.errors import TreespecError
from treespec.sampling.coins import inverse_cdf
from treespec.target import ModelTarget
from treespec.testing import (
    NotLossless,
    TabularModel,
    assert_lossless,
    output_law,
    step_law,
    target_law,
)
from treespec.verify.block import block_along
from treespec.verify.gbv import _Level
from treespec.verify.rule import ratio

pytestmark = pytest.mark.usefixtures("without_shape_checks")

V = 4
UNIFORM = TabularModel(lambda context: torch.zeros(V, dtype=torch.float64), V)


class OneSetOfNumbers(ModelDrafter):
    """The numbers that the first step draws with serve every step, as in Sequoia's loop."""

    def prefill(self, tokens, *arguments):
        self.numbers = []
        return super().prefill(tokens, *arguments)

    def propose(self, coins):
        return super().propose(Repeated(coins, self.numbers))


class Repeated:
    """Coins whose draws of children take the known numbers first; each is the middle of one of V cells."""

    def __init__(self, coins, numbers):
        self.coins, self.numbers, self.taken = coins, numbers, 0

    def draw_many(self, probabilities, k, law):
        rows = []
        for row in probabilities:
            if self.taken == len(self.numbers):
                cell = self.coins.draw(torch.ones(V, dtype=torch.float64))
                self.numbers.append((cell + 0.5) / V)
            number = torch.tensor([self.numbers[self.taken]], dtype=torch.float64)
            rows.append(inverse_cdf(row, number))
            self.taken += 1
        return torch.stack(rows)


def law_of_three(draft_with):
    parts = {"target": UNIFORM, "draft": UNIFORM, "tokens": 3}
    return output_law(verify.rrsw, TreeShape.chain(1), Law.WITHOUT_REPLACEMENT, draft_with=draft_with,
                      **parts).probs  # fmt: skip


def test_numbers_that_serve_a_whole_prompt():
    """p = q: every draft is accepted, so the third token, the second draft, always equals the first."""
    right = target_law(UNIFORM, (0,), 3, Sampling())
    assert torch.allclose(law_of_three(ModelDrafter), right)
    biased = law_of_three(OneSetOfNumbers)
    assert float((biased - right).abs().max()) > 0.04
    equal = sum(biased[first, :, first].sum() for first in range(V))
    assert float(equal) == pytest.approx(1)
    assert float(sum(right[first, :, first].sum() for first in range(V))) == pytest.approx(1 / V)


class ForkedByOneName(ModelDrafter):
    """The same defect by our own means: a fork of one name gives the same numbers at every step."""

    def propose(self, coins):
        return super().propose(coins.fork("draft"))


def test_one_name_for_the_numbers_of_all_steps():
    drafter = ForkedByOneName(UNIFORM, TreeShape.chain(1), Law.WITHOUT_REPLACEMENT, Sampling())
    settings = {"sampling": Sampling(), "coins": TorchCoins(3), "max_new_tokens": 12}
    target = ModelTarget(UNIFORM)
    steps = list(decode(target, drafter, verify.rrsw, torch.tensor([0]), **settings))
    assert len({step.tree.token_ids[1] for step in steps if step.tree.shape.size > 1}) == 1
    with pytest.raises(TreespecError, match="forked twice under the name 'draft'"):
        law_of_three(ForkedByOneName)


def gbv_that_clamps_when_it_selects(tree, target_probs, coins):
    """Paths of one token: among ratios of 1 and more the path drawn first is selected."""
    paths = [tree.shape.path(leaf) for leaf in tree.shape.leaves]
    level = _Level(target_probs[0], tree.draft_probs_of(0), 0, 1, len(paths))
    tokens = [tree.token_ids[path[1]] for path in paths]
    chosen = max(range(len(paths)), key=lambda i: min(1.0, level.rank(tokens[i])[0]))
    token = tokens[chosen]
    odds = ratio(target_probs[0], level.law(), token)
    return block_along(paths[chosen], [odds], target_probs, lambda i: level.law(), coins)


def table(*row):
    logits = torch.tensor(row, dtype=torch.float64).log()
    return TabularModel(lambda context: logits, len(row))


P, Q, PATHS = (0.45, 0.45, 0.1), (0.3, 0.4, 0.3), TreeShape.independent_chains(2, 1)


def test_paths_selected_by_clamped_ratios():
    """Tokens 0 and 1 tie at the clamp, but the law of the selected path holds token 0 to be the higher."""
    parts = {"target": table(*P), "draft": table(*Q)}
    found = step_law(gbv_that_clamps_when_it_selects, PATHS, Law.IID, **parts).probs.sum(1)
    accepted = [
        0.39 * 0.45 / 0.51,
        0.52,
        0.09,
    ]  # of the selected: .39, .52, .09; their law: .51, .40, .09
    left = 1 - sum(accepted)  # falls to [p - law]+ = (0, .05, .01)
    right = [accepted[0], accepted[1] + left * 5 / 6, accepted[2] + left / 6]
    assert found.tolist() == pytest.approx(right)
    assert step_law(verify.gbv, PATHS, Law.IID, **parts).probs.sum(1).tolist() == pytest.approx(P)
    with pytest.raises(NotLossless, match="gbv_that_clamps_when_it_selects"):
        assert_lossless(gbv_that_clamps_when_it_selects, laws=[Law.IID], shapes=[PATHS])
