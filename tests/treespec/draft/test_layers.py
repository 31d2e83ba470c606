"""Early exit and skipped sublayers: the exact law over a tiny transformer that is tabulated first."""

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from treespec import Law, Sampling, TreeShape, verify
from treespec.draft import EarlyExit, LayerSkip
from treespec.models.transformers_model import TransformersModel
from treespec.testing import TabularModel, output_law, target_law
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


class Tabulated(TabularModel):
    """A transformer whose rows are computed once, each in sequence, and looked up from then on.

    Norms are float32 whatever the weights are: a row differs by 1e-8 from pass to pass. A table does not.
    """

    def __init__(self, model):
        self.model, self.rows = model, {}
        super().__init__(self.tabulated, V)

    def tabulated(self, context):
        if context not in self.rows:
            *before, last = context
            self.model.prefill(torch.tensor(before, dtype=torch.long))
            self.rows[context] = self.model.run(torch.tensor([last]), (-1,))[0].double()
        return self.rows[context]

    def fresh(self):
        return TabularModel(self.tabulated, V)

    @property
    def layer_count(self):
        return self.model.layer_count

    def without(self, skip):
        return _shortened(self, frozenset(map(str, skip)))


def _shortened(table, names, made={}):  # noqa: B006  (rows serve all tests)
    if names not in made:
        made[names] = Tabulated(table.model.without(sorted(names)))
    return made[names]


@pytest.fixture(scope="module")
def transformer():
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=V, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).double()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                scale = 0.2 if "embed" in name else 0.8 if "head" in name else 2.5
                weight.copy_(torch.randn_like(weight) * scale * weight.shape[-1] ** -0.5)
    return Tabulated(TransformersModel(model))


def test_rows_of_the_drafts_differ_from_the_targets(transformer):
    """Or nothing is proved: those of all layers are the target's."""
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


@pytest.mark.parametrize(
    ("rule", "law", "shape"),
    [
        (verify.greedy, Law.DETERMINISTIC, SHAPES["tree"]),
        (verify.onehot, Law.DETERMINISTIC, SHAPES["chain"]),
        (verify.onehot, Law.DETERMINISTIC, SHAPES["tree"]),
        (verify.chain, Law.IID, TreeShape.chain(1)),
        (verify.rrsw, Law.WITHOUT_REPLACEMENT, TreeShape.expansion([2])),
    ],
    ids=str,
)
def test_the_law_is_kept_through_several_steps(rule, law, shape, transformer, without_shape_checks):
    sampling = Sampling(temperature=0.0) if rule.one_hot else Sampling()
    right = target_law(transformer, PROMPT, 3, sampling)
    for name, make in DRAFTS.items():
        found = output_law(
            rule, shape, law, target=transformer, draft=transformer, tokens=3, prompt=PROMPT,
            sampling=sampling, draft_with=make,
        )  # fmt: skip
        assert float((found.probs - right).abs().max()) <= 1e-12, name
        assert found.runs > 27 or rule.one_hot


def test_a_draft_that_states_the_targets_rows_is_refuted(transformer, without_shape_checks):
    """What a cut model drew, tested as if the whole one had drawn it."""

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
