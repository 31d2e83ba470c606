"""The exact law of several steps, for every source under every rule that covers it, without exception."""

from importlib import import_module
from pkgutil import iter_modules
from types import SimpleNamespace

import pytest
import torch
from proof_table import CASES, PROMPTS, TEXTS, Stored, lossless_rules

import treespec.draft
import treespec.draft.trained
import treespec.experiments.config.build
from treespec import Sampling, TorchCoins, TreeShape, plugins
from treespec.features import lend, prefill, reads_of
from treespec.protocols import ReadsTarget
from treespec.target import ModelTarget
from treespec.testing import output_law, target_law
from treespec.testing.states import state_of

TOKENS, GREEDY_TOKENS = 3, 6
"""New tokens: three over several steps; more for the greedy branch, whose first step may emit three."""


def _proofs():
    """All proofs. The fast gate runs those without a model, and the first of every source with a model."""
    seen = set()
    for case in CASES:
        for rule in case.rules:
            quick = not case.runs_a_model or (case.source not in seen and not rule.one_hot)
            if quick:
                seen.add(case.source)
            yield pytest.param(
                case, rule, id=f"{case}-{rule}", marks=() if quick else pytest.mark.slow
            )


@pytest.fixture(scope="session")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    return {vocab: Stored.write(folder / str(vocab), vocab) for vocab in TEXTS}


LATER = SimpleNamespace(shapes=set(), mixed=set())
"""Trees proposed after the first step of a proof; global, so as not to be part of a drafter's state."""


def watched(drafter):
    """The drafter, with the trees that it proposes after the first step collected."""
    propose, calls = drafter.propose, []

    def collected(coins):
        tree = propose(coins)
        if calls:
            several = [node for node in tree.shape.internal if len(tree.groups_of(node)) > 1]
            LATER.shapes.add(tree.shape)
            LATER.mixed |= {tree.shape.depths[node] for node in several}
        else:
            calls.append(1)
        return tree

    drafter.propose = collected
    return drafter


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(("case", "rule"), list(_proofs()))
def test_several_steps_keep_the_law(case, rule, stores):
    """Every outcome of every coin, through `decode`, each branch with its own sources."""
    LATER.shapes, LATER.mixed = set(), set()
    target, prompt = case.target, PROMPTS[case.vocab]
    sampling = Sampling(temperature=0.0) if rule.one_hot else Sampling()
    tokens = GREEDY_TOKENS if rule.one_hot else TOKENS
    found = output_law(
        rule, TreeShape.chain(2), case.law, target=target, draft=target, tokens=tokens, prompt=prompt,
        sampling=sampling, draft_with=lambda *_: watched(case.make(stores[case.vocab])),
    )  # fmt: skip
    right = target_law(target, prompt, tokens, sampling)
    assert float((found.probs - right).abs().max()) <= 1e-12
    # Trees in later steps, of the kind that is to be proved, not roots alone.
    deepest = max(shape.depth for shape in LATER.shapes)
    assert deepest
    if not rule.one_hot:
        assert all(shape.is_chain for shape in LATER.shapes) == (case.trees == "chain")
        assert bool(LATER.mixed) == (case.trees == "mixed")
        if case.source not in ("cascade", "merge"):
            assert deepest == case.make(stores[case.vocab]).max_depth
        if case.label == "model two deep, lookup":
            assert max(LATER.mixed) > 0  # below the root too


@pytest.mark.usefixtures("without_shape_checks")
def test_states_of_sources_can_be_compared(stores):
    """Otherwise a proof would walk the same futures once for each branch."""
    of_text = [
        case for case in CASES if "another tokenizer" not in case.label
    ]  # codecs are functions
    for case in of_text:
        drafters = [watched(case.make(stores[case.vocab])) for _ in range(2)]
        for drafter in drafters:
            target, prompt = ModelTarget(case.target), torch.tensor(PROMPTS[case.vocab])
            lend(target, reads := reads_of(drafter))
            if isinstance(drafter, ReadsTarget):
                drafter.bind_target(target)
            prefill(drafter, prompt, target.prefill(prompt), reads)
        assert state_of(drafters[0]) == state_of(drafters[1]) is not None, str(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.warm], ids=str)
def test_warm_sources_draft_more_from_the_first_step_on(case, stores):
    """Otherwise their proofs would not cover what was learned before."""
    label = case.label.removeprefix("warm ")
    (cold,) = (one for one in CASES if (one.source, one.label) == (case.source, label))
    sizes = []
    for one in (case, cold):
        drafter = one.make(stores[one.vocab])
        drafter.prefill(torch.tensor(PROMPTS[one.vocab]))
        sizes.append(drafter.propose(TorchCoins(0)).shape.size)
    assert sizes[0] > sizes[1]


def test_no_source_is_left_out():
    """Every source that configs can name, by every law it states, as chains and trees if it drafts both.

    Except `synthetic`, whose rates decide what is accepted: it has no law, and drafts by the others.
    """
    ours = {name: part for name, part in plugins.parts("source").items() if not part.plugged}
    del ours["synthetic"]
    assert {case.source for case in CASES} == set(ours)
    for name, part in ours.items():
        cases = [case for case in CASES if case.source == name]
        assert {case.law for case in cases} == part.laws, name
        trees = {case.trees for case in cases}
        mixes = getattr(part.settings, "mixes", False)
        wanted = (
            {"chain"}
            if part.trees == "chain"
            else {"mixed", "tree"}
            if mixes
            else {"chain", "tree"}
        )
        assert trees == wanted, name
        assert len({str(case) for case in cases}) == len(cases)


def test_no_drafter_is_left_out(stores):
    """Nor a source that configs cannot name, except base classes, and tokens without a meaning."""
    made = {type(case.make(stores[case.vocab])).__name__ for case in CASES}
    names = [
        f"{package.__name__}.{module.name}"
        for package in (treespec.draft, treespec.draft.trained)
        for module in iter_modules(package.__path__)
    ]
    found = {
        one
        for name in names
        for one in vars(import_module(name)).values()
        if isinstance(one, type) and hasattr(one, "propose") and one.__name__[0] != "_"
    }
    bases = {base for one in found for base in one.__mro__[1:]}
    bases |= {one for one in found if getattr(one, "_is_protocol", False)}
    left_out = {one.__name__ for one in found - bases} - made
    assert left_out == {"Undrafted"}
    assert made <= {one.__name__ for one in found}


def test_no_rule_is_left_out():
    """Rules that decide nodes with several groups are proved with such nodes."""
    assert {rule for case in CASES for rule in case.rules} == set(lossless_rules())
    mixed = {rule for case in CASES if case.trees == "mixed" for rule in case.rules}
    assert mixed == {rule for rule in lossless_rules() if rule.mixes}
    below = {case.label.split(" by ")[-1] for case in CASES if " by " in case.label}
    assert below == {str(rule) for rule in lossless_rules() if not rule.one_hot}
