"""A table behind a source: decoding keeps its law, which is not that of another source."""

import pytest
import torch

from treespec import Law, Sampling, TreeShape
from treespec.draft import PromptLookup
from treespec.models.tabular import TabularModel, random_table
from treespec.testing import output_law, target_law
from treespec.verify import naive, rrs, rrsw

PAIRED = TreeShape.expansion([2])
WARM = Sampling(temperature=0.8)


@pytest.mark.parametrize(
    ("rule", "law"), [(rrsw, Law.WITHOUT_REPLACEMENT), (rrs, Law.IID), (naive, Law.DETERMINISTIC)]
)
def test_the_law_behind_a_source_is_kept(rule, law):
    """A drafter behind another source drafts worse, and changes nothing."""
    tables = [TabularModel(random_table(3, seed), 3) for seed in (0, 1)]
    target = tables[0].condition(torch.tensor([2, 1]))
    expected = target_law(target, (0,), 3, WARM)
    for source in ([2, 1], [1]):
        draft = tables[1].condition(torch.tensor(source))
        found = output_law(
            rule, PAIRED, law, target=target, draft=draft, tokens=3, sampling=WARM
        ).probs
        assert (found - expected).abs().max() < 1e-12
    for other in (tables[0], tables[0].condition(torch.tensor([1, 2]))):
        assert (target_law(other, (0,), 3, WARM) - expected).abs().max() > 0.01


def test_lookup_in_the_source_keeps_the_law():
    source = torch.tensor([2, 1, 0, 2])
    target = TabularModel(random_table(3, 0), 3).condition(source)
    found = output_law(
        naive,
        TreeShape.chain(2),
        Law.DETERMINISTIC,
        target=target,
        draft=target,
        tokens=3,
        sampling=WARM,
        draft_with=lambda *_: PromptLookup(2, source=source.tolist()),
    ).probs
    assert (found - target_law(target, (0,), 3, WARM)).abs().max() < 1e-12
