"""Notes on rules whose rates depend on the number of children or on the whole tree."""

from itertools import combinations

import pytest

from treespec import Law, TreeShape
from treespec.models.tabular import TabularModel
from treespec.sampling.distributions import Sampling
from treespec.search import estimate_acceptance
from treespec.search.traces.rule_notes import accepts_alike, by_member
from treespec.testing import random_table
from treespec.testing.acceptance import acceptance
from treespec.verify import RULES

pytestmark = pytest.mark.filterwarnings("ignore::treespec.search.errors.SmallSample")


def test_rules_whose_rates_depend_on_the_number_of_children_say_so(make_trace):
    for rule, said in (("kseq", True), ("rrs", False)):
        found = estimate_acceptance(make_trace(rule=rule))
        assert any(f"'{rule}'" in text for text in found.warnings) == said


def accepted_by(rule, shape, law, sampling=None):
    target, draft = (TabularModel(random_table(3, seed), 3) for seed in (3, 4))
    return acceptance(
        RULES[rule], shape, law, target=target, draft=draft, sampling=sampling
    ).reached


@pytest.mark.parametrize("law", [Law.IID, Law.WITHOUT_REPLACEMENT, Law.DETERMINISTIC])
@pytest.mark.parametrize("shape", [TreeShape.chain(2), TreeShape.expansion([2, 1])])
def test_rules_that_are_said_to_accept_alike_do(shape, law):
    """By enumeration, for all rules of a law. Rules that judge from the end mostly accept differently."""
    names = [n for n, one in RULES.items() if not one.one_hot and one.covers(shape, law) is None]
    found = {name: accepted_by(name, shape, law) for name in names}
    alike = 0
    for one, other in combinations(names, 2):
        if accepts_alike(one, other, shape, greedy=False):
            alike += 1
            assert found[one] == pytest.approx(found[other], abs=1e-12), (one, other)
    assert alike or not shape.is_chain
    assert not accepts_alike("a rule of a plug-in", names[0], shape, greedy=False)


def test_a_rule_that_looks_further_accepts_otherwise():
    shape, law = TreeShape.expansion([2, 1]), Law.WITHOUT_REPLACEMENT
    found = [accepted_by(name, shape, law) for name in ("rrsw", "traversal")]
    assert found[0] != pytest.approx(found[1], abs=1e-3)
    assert not accepts_alike("traversal", "rrsw", shape, greedy=False)


def test_at_temperature_0_lossless_rules_accept_alike():
    shape, cold = TreeShape.expansion([2, 1]), Sampling(temperature=0.0)
    found = [accepted_by(n, shape, Law.DETERMINISTIC, cold) for n in ("greedy", "naive", "onehot")]
    assert found[0] == found[1] == found[2]
    assert accepts_alike("traversal", "greedy", shape, greedy=True)
    assert not accepts_alike("typical", "greedy", shape, greedy=True)


@pytest.mark.parametrize("name", RULES)
def test_the_rules_that_follow_the_text_say_so(name):
    """A deterministic node is accepted as often as the target's own text passes through it."""
    shape, law = TreeShape.expansion([2, 1]), Law.DETERMINISTIC
    if RULES[name].covers(shape, law) is not None:
        return
    cold = Sampling(temperature=0.0) if RULES[name].one_hot else None
    reached = accepted_by(name, shape, law, cold)
    assert (reached == pytest.approx(accepted_by("naive", shape, law, cold))) == by_member(name)
