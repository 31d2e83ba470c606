"""Early exit and layer skipping: the exact law over a tiny transformer, tabulated beforehand."""

from dataclasses import replace

import pytest
import torch
from tabulated import tiny_transformer

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, verify
from treespec.draft import EarlyExit, LayerSkip, Merge, PromptLookup
from treespec.errors import InvalidTree
from treespec.target import ModelTarget
from treespec.testing import TabularModel, random_table
from treespec.testing.step_oracle import StepOracle

V = 3
PROMPT = (0, 2)
SHAPES = {"chain": TreeShape.chain(2), "tree": TreeShape.from_parents([-1, 0, 0, 1])}
COVERED = [
    (rule, law, kind)
    for rule in verify.RULES.values()
    if rule.lossless
    for law in sorted(rule.laws, key=str)
    for kind, shape in SHAPES.items()
    if not rule.covers(shape, law)
]
DRAFTS = {
    "early exit": lambda model, *a: EarlyExit(model, 1, *a),
    "skipped sublayers": lambda model, *a: LayerSkip(model, ["mlp.0", "attention.1"], *a),
    "all layers": lambda model, *a: EarlyExit(model, 2, *a),
}


@pytest.fixture(scope="module")
def transformer():
    return tiny_transformer(V)


def test_rows_of_the_drafts_differ_from_the_targets(transformer):
    """Otherwise nothing would be proved, since with all layers the rows are the target's."""
    for name, make in DRAFTS.items():
        draft = make(transformer, TreeShape.chain(1), Law.IID, Sampling()).model
        texts = [(*PROMPT, *more) for more in ((), (0,), (1,), (2,), (1, 2))]
        rows = [[m.row(t).softmax(-1) for t in texts] for m in (draft, transformer)]
        far = (torch.stack(rows[0]) - torch.stack(rows[1])).abs().amax(-1)
        assert (far.max() < 1e-6) if name == "all layers" else (far.max() > 0.1), far


@pytest.mark.parametrize("name", DRAFTS)
def test_every_rule_keeps_the_law_of_a_step(name, transformer, without_shape_checks):
    for rule, law, kind in COVERED:
        sampling = Sampling(temperature=0.0) if rule.one_hot else Sampling()
        oracle = StepOracle(
            SHAPES[kind], law, transformer, transformer, PROMPT, sampling, DRAFTS[name]
        )
        found = oracle.law(rule)
        assert float((found.probs - oracle.target_law).abs().max()) <= 1e-12, (rule, law, kind)


class Layered(TabularModel):
    """A table in place of a model of two layers; all rows are those of the whole."""

    layer_count = 2

    def without(self, skip):
        return Layered(self.row, self.vocab_size)

    def in_cache_of(self, whole):
        return View(whole)


class View(TabularModel):
    """Reads the committed tokens of another table."""

    def __init__(self, whole):
        super().__init__(whole.row, whole.vocab_size)
        self.whole = whole

    @property
    def length(self):
        return self.whole.length

    def run(self, tokens, parents, first=0):
        self._committed = self.whole._committed
        return super().run(tokens, parents, first)


def read_early(prompt):
    """A target, and an early exit one token deep that reads its rows."""
    target = Layered(random_table(2, 3), 2)
    drafter = EarlyExit(target, 1, TreeShape.chain(1), Law.DETERMINISTIC, Sampling())
    scores = ModelTarget(target)
    drafter.bind_target(scores)
    drafter.prefill(torch.tensor(prompt))
    return scores, drafter


def test_tokens_that_others_drafted_are_counted_as_committed():
    """Below the one that early exit drafts, a lookup drafts more."""
    scores, drafter = read_early(PROMPT)
    merged = Merge({"exit": drafter, "lookup": PromptLookup(3)}, budgets={"exit": 1, "lookup": 3})
    prompt = torch.tensor((0, 1, 1, 0, 1))
    steps = list(decode(
        scores, merged, verify.onehot, prompt, sampling=Sampling(), coins=TorchCoins(0),
        max_new_tokens=60,
    ))  # fmt: skip
    assert drafter.reads_target
    assert any(step.verdict.accepted > 1 for step in steps)


@pytest.mark.parametrize("ahead", [-1, 1])
def test_a_target_at_another_position_is_refused(ahead):
    text = [0, 1] * 4
    scores, drafter = read_early(text[:4])
    scores.prefill(torch.tensor(text[: 4 + ahead]))
    with pytest.raises(InvalidTree, match=rf"the rows of {3 + ahead} .*, but 3 were committed"):
        drafter.propose(TorchCoins(0))


def test_a_draft_that_states_the_targets_rows_is_refuted(transformer, without_shape_checks):
    """Tokens drawn by a shortened model, tested as if the whole model had drawn them."""

    class Mistaken(EarlyExit):
        def propose(self, coins):
            tree = super().propose(coins)
            return replace(tree, draft_probs=transformer.row(PROMPT).softmax(-1)[None])

    def law(kind):
        return StepOracle(
            TreeShape.chain(1), Law.IID, transformer, transformer, PROMPT, Sampling(),
            lambda model, *a: kind(model, 1, *a),
        ).law(verify.chain).probs  # fmt: skip

    assert float((law(Mistaken) - law(EarlyExit)).abs().max()) > 0.01
