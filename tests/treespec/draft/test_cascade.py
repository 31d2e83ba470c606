"""Cascades: the rows they report, the rows that levels keep, and what is refused."""

import pytest
import torch
from following import Follows
from tabulated import tiny_transformer

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, verify
from treespec.draft import (
    Cascade,
    Documents,
    EarlyExit,
    Jacobi,
    LayerSkip,
    Lookahead,
    Merge,
    ModelDrafter,
    PromptLookup,
    TokenRecycling,
)
from treespec.errors import InvalidArgument
from treespec.target import ModelTarget
from treespec.testing import TabularModel, random_table, step_law
from treespec.tree import TokenTree

IID, SURE = Law.IID, Law.DETERMINISTIC
PROMPT = (0, 1, 0, 0, 1)
COLD = Sampling(temperature=0.0)


def table(seed, vocab=2):
    return TabularModel(random_table(vocab, seed), vocab)


def small(seed=5, shape=None, law=IID, sampling=None, kind=ModelDrafter):
    return kind(table(seed), shape or TreeShape.chain(1), law, sampling or Sampling())


def lookup():
    return PromptLookup(2, ngram=2, size=4, branching=2)


def two_levels():
    return Cascade(table(4), lookup(), verify.onehot, 1, Sampling())


def toy(row):
    logits = torch.tensor(row, dtype=torch.float64).log()
    return TabularModel(lambda context: logits, len(row))


TARGET, MIDDLE, SMALL = (0.5, 0.3, 0.2), (0.3, 0.4, 0.3), (0.6, 0.3, 0.1)


class Mistaken(Cascade):
    """Reports the rows of the small model, from which its tokens were first drawn."""

    def propose(self, coins):
        tree = super().propose(coins)
        rows = torch.tensor([SMALL], dtype=torch.float64).expand(tree.shape.depth, -1)
        return TokenTree(tree.shape, tree.tokens, rows, self.law)


def law_of_the_first_token(rule, kind=Cascade, inside=verify.chain):
    """For a target step under one rule, with another rule inside the cascade."""

    def draft_with(draft, shape, law, sampling):
        below = ModelDrafter(toy(SMALL), TreeShape.chain(1), IID, sampling)
        return kind(toy(MIDDLE), below, inside, 1, sampling)

    parts = {"target": toy(TARGET), "draft": toy(MIDDLE), "draft_with": draft_with}
    return step_law(rule, TreeShape.chain(1), IID, **parts).probs.sum(-1).tolist()


RULES = [verify.chain, verify.block, verify.rrs, verify.traversal]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_row_of_a_token_is_that_of_the_model_that_verified_it(rule):
    """With the small model's row the output is .25, .4, .35 instead of .5, .3, .2."""
    assert law_of_the_first_token(rule) == pytest.approx(TARGET, abs=1e-12)
    wrong = law_of_the_first_token(rule, kind=Mistaken)
    assert wrong == pytest.approx((0.25, 0.4, 0.35), abs=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_leniency_inside_a_cascade_would_change_the_law(rule, monkeypatch):
    """Lenience .5 accepts every draft of the small model here, but the tree reports the middle model's row.

    Accepted by the target are .6, .3 * .75 and .1 * 2/3; the rest, 13/120, goes to the first token.
    """
    with pytest.raises(InvalidArgument, match="'lenient' is lossy"):
        law_of_the_first_token(rule, inside=verify.lenient)
    monkeypatch.setattr("treespec.draft.cascade._require_rule", lambda *given: None)
    wrong = law_of_the_first_token(rule, inside=verify.lenient)
    assert wrong == pytest.approx((17 / 24, 9 / 40, 1 / 15), abs=1e-12)
    assert law_of_the_first_token(rule, inside=verify.rrs) == pytest.approx(TARGET, abs=1e-12)


def test_a_chain_is_the_text_of_the_model():
    """At temperature 0 the drafts are the model's greedy text, whichever source drafts for it."""
    alone = ModelDrafter(table(4), TreeShape.chain(6), IID, COLD)
    alone.prefill(torch.tensor(PROMPT))
    right = alone.propose(TorchCoins(0))
    for below, rule in (
        (small(sampling=COLD), verify.greedy),
        (lookup(), verify.onehot),
        (TokenRecycling(), verify.greedy),
    ):
        cascade = Cascade(table(4), below, rule, 6, COLD)
        cascade.prefill(torch.tensor(PROMPT))
        tree = cascade.propose(TorchCoins(0))
        assert tree.token_ids == right.token_ids
        torch.testing.assert_close(tree.draft_probs, right.draft_probs)


def test_a_chain_of_best_tokens_is_decided_at_temperature_0():
    """Whatever the target's temperature is: the drafts are the model's greedy text."""
    alone = ModelDrafter(table(4), TreeShape.chain(8), SURE, Sampling())
    alone.prefill(torch.tensor(PROMPT))
    right = alone.propose(TorchCoins(0))
    cascade = Cascade(table(4), lookup(), verify.onehot, 8, Sampling(), law=SURE)
    for seed in range(5):
        cascade.prefill(torch.tensor(PROMPT))
        assert cascade.propose(TorchCoins(seed)).token_ids == right.token_ids


class Watched(TabularModel):
    """Counts its passes."""

    passes = 0

    def fresh(self):
        return self

    def run(self, tokens, parents, first=0):
        self.passes += 1
        return super().run(tokens, parents, first)


def test_a_source_that_is_right_spares_passes():
    watched, plain = (Watched(random_table(2, 4), 2) for _ in range(2))
    same = ModelDrafter(table(4), TreeShape.chain(3), IID, COLD)
    for drafter in (
        Cascade(watched, same, verify.greedy, 8, COLD),
        ModelDrafter(plain, TreeShape.chain(8), IID, COLD),
    ):
        drafter.prefill(torch.tensor(PROMPT))
        drafter.propose(TorchCoins(0))
    assert (watched.passes, plain.passes) == (2, 8)


@pytest.mark.parametrize("ahead", [(0, 1), (1, 1, 0), (0, 0)])
def test_lower_levels_draft_after_all_that_is_ahead(ahead):
    watched, same = (
        Watched(random_table(2, 4), 2),
        ModelDrafter(table(4), TreeShape.chain(3), IID, COLD),
    )
    cascade = Cascade(watched, same, verify.greedy, 4, COLD)
    cascade.prefill(torch.tensor(PROMPT))
    cascade.propose_below(ahead, TorchCoins(0))
    assert watched.passes == 1  # three drafts are right, and the model adds the fourth


def test_each_node_says_from_which_level_it_is():
    """All models are one table, so each level accepts all its drafts and adds one token."""
    same = lambda: ModelDrafter(table(4), TreeShape.chain(1), IID, COLD)  # noqa: E731
    two = Cascade(table(4), same(), verify.greedy, 5, COLD)
    three = Cascade(
        table(4), Cascade(table(4), same(), verify.greedy, 3, COLD), verify.greedy, 7, COLD
    )
    for cascade, levels in ((two, (2, 1, 2, 1, 2)), (three, (3, 2, 3, 1, 3, 2, 3))):
        cascade.prefill(torch.tensor(PROMPT))
        cascade.propose(TorchCoins(0))
        assert cascade.origins == ((), *((f"level {level}",) for level in levels))
    wrong = Cascade(table(4), Wrong(2), verify.greedy, 3, COLD)
    wrong.prefill(torch.tensor(PROMPT))
    wrong.propose(TorchCoins(0))
    assert wrong.origins == ((), *[("level 1",)] * 3)


class Wrong(PromptLookup):
    """Drafts tokens that the model of `table(4)` never chooses at temperature 0."""

    def propose_below(self, tokens, coins):
        text = (*PROMPT, *tokens)
        other = 1 - int(table(4).row(text).argmax())
        return TokenTree(TreeShape.chain(1), torch.tensor([text[-1], other]), None, SURE)


class FollowingModel(Follows, ModelDrafter):
    pass


class FollowingCascade(Follows, Cascade):
    pass


def test_all_levels_follow_the_text_and_forget_the_rest():
    low = small(7, kind=FollowingModel, shape=TreeShape.chain(2))
    middle = FollowingCascade(table(5), low, verify.chain, 2, Sampling())
    top = FollowingCascade(table(4), middle, verify.chain, 4, Sampling())
    steps = list(decode(
        ModelTarget(table(3)), top, verify.chain, torch.tensor(PROMPT), sampling=Sampling(),
        coins=TorchCoins(0), max_new_tokens=60,
    ))  # fmt: skip
    text = [*PROMPT, *(token for step in steps for token in step.emitted_ids)]
    assert low.text == middle.text == top.text == text
    assert {step.verdict.accepted for step in steps} >= {0, 4}
    assert len(top.model._committed) > len(PROMPT)


class Counted(TabularModel):
    """Records the number of rows of each pass. Its layers are one table."""

    layer_count = 2

    def __init__(self, *given):
        super().__init__(*given)
        self.ran = []

    def fresh(self):
        return self

    def without(self, skip):
        return self

    def run(self, tokens, parents, first=0):
        self.ran.append(len(parents))
        return super().run(tokens, parents, first)


def early_exit(model):
    return EarlyExit(model, 1, TreeShape.chain(2), IID, Sampling())


def model_below(model):
    return ModelDrafter(model, TreeShape.chain(2), IID, Sampling())


def cascade_below(model):
    return Cascade(model, lookup(), verify.onehot, 2, Sampling())


def cascade_with_a_model_below(model):
    return cascade_of(table(5), model_below(model))


def cascade_of(model, below):
    return Cascade(
        model, below, verify.onehot if below.law is SURE else verify.chain, 2, Sampling()
    )


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(
    "below", [model_below, early_exit, cascade_below, cascade_with_a_model_below]
)
def test_lower_levels_keep_the_rows_of_committed_tokens(below, merged):
    """Otherwise each pass would run the whole text again."""
    counted = Counted(random_table(2, 6), 2)
    drafter = cascade_of(table(4), below(counted))
    if merged:
        rates = {"cascade": ((0.9,),), "lookup": ((0.5, 0.2),)}
        drafter = Merge({"cascade": drafter, "lookup": lookup()}, 6, rates=rates)
    for _ in decode(
        ModelTarget(table(3)), drafter, verify.rrs if merged else verify.chain, torch.tensor(PROMPT),
        sampling=Sampling(), coins=TorchCoins(0), max_new_tokens=100,
    ):  # fmt: skip
        pass
    assert len(counted.ran) >= 50
    # The last step's tokens, those ahead on each level, and what is drafted.
    assert max(counted.ran) <= 16
    assert counted.length > len(PROMPT) + 80


BELOW = {
    "lookup": lookup,
    "documents": lambda: Documents([PROMPT], 2),
    "recycling": lambda: TokenRecycling(TreeShape.expansion([2, 1]), table={0: [1, 0], 1: [0]}),
    "model": small,
    "early exit": lambda: EarlyExit(tiny_transformer(2), 1, TreeShape.chain(2), IID, Sampling()),
    "layer skip": lambda: LayerSkip(
        tiny_transformer(2), ["mlp.0"], TreeShape.chain(2), IID, Sampling()
    ),
    "cascade": two_levels,
}


@pytest.mark.parametrize("ahead", [(0, 1), (1, 0)])
@pytest.mark.parametrize("make", BELOW.values(), ids=BELOW)
def test_drafting_below_a_path_is_drafting_after_the_text(make, ahead):
    """It leaves no trace: what follows is as if it had never been called."""
    asked, fresh = make(), make()
    asked.prefill(torch.tensor(PROMPT))
    fresh.prefill(torch.tensor((*PROMPT, *ahead)))
    before = asked.propose(TorchCoins(0))
    after = asked.propose_below(ahead, TorchCoins(0))
    right = fresh.propose(TorchCoins(0))
    assert (after.token_ids, after.shape) == (right.token_ids, right.shape)
    assert after.token_ids[0] == ahead[-1]
    assert after.shape.depth
    assert asked.propose(TorchCoins(0)).token_ids == before.token_ids
    assert asked.propose_below((), TorchCoins(0)).token_ids == before.token_ids


MODEL = table(4)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Cascade(MODEL, lookup(), verify.onehot, 0, Sampling()), "depth = 0"),
        (lambda: Cascade(MODEL, lookup(), verify.onehot, 10**8, Sampling()), "depth = 100000000"),
        (lambda: Cascade(MODEL, Jacobi(2), verify.onehot, 2, Sampling()), "Jacobi cannot draft after"),
        (lambda: Cascade(MODEL, Lookahead(), verify.onehot, 2, Sampling()), "Lookahead cannot draft after"),
        (lambda: Cascade(MODEL, 3, verify.onehot, 2, Sampling()), "int cannot draft after"),
        (lambda: Cascade(MODEL, small(), verify.lenient, 2, Sampling()), "'lenient' is lossy"),
        (lambda: Cascade(MODEL, lookup(), verify.greedy, 2, Sampling()), "needs temperature 0"),
        (
            lambda: Cascade(MODEL, small(), verify.onehot, 2, Sampling()),
            "made for children of law deterministic, but its source drafts children of law iid",
        ),
        (
            lambda: Cascade(MODEL, lookup(), verify.onehot, 2, Sampling(), law=Law.HUB),
            "a cascade drafts chains",
        ),
        (
            lambda: Cascade(
                MODEL, ModelDrafter(MODEL, TreeShape.chain(1), IID, Sampling()), verify.chain, 2, Sampling()
            ),
            "contains itself",
        ),
        (
            lambda: Cascade(
                MODEL, Cascade(table(5), ModelDrafter(MODEL, TreeShape.chain(1), IID, Sampling()),
                verify.chain, 2, Sampling()), verify.chain, 2, Sampling(),
            ),
            "contains itself",
        ),
    ],
)  # fmt: skip
def test_cascades_that_cannot_be_are_refused(make, said):
    with pytest.raises(InvalidArgument, match=said):
        make()


@pytest.mark.usefixtures("without_shape_checks")
def test_one_model_in_two_wrappers_is_one_model():
    """Models are compared by their weights, not by object or name."""
    for twin in (MODEL.fresh(), TabularModel(MODEL.row, 2)):
        below = ModelDrafter(twin, TreeShape.chain(1), IID, Sampling())
        with pytest.raises(InvalidArgument, match="one model is used on two of its levels"):
            Cascade(MODEL, below, verify.chain, 2, Sampling())
    Cascade(MODEL, small(seed=4), verify.chain, 2, Sampling())  # equal, but another table


class Wrapped(ModelDrafter):
    """A source that contains another source."""

    drafter = None


@pytest.mark.usefixtures("without_shape_checks")
def test_a_source_below_itself_is_refused():
    """An endless cascade would have no source that drafts."""
    own = small(kind=Wrapped)
    own.drafter = own
    with pytest.raises(InvalidArgument, match="one Wrapped is used at two places"):
        Cascade(MODEL, own, verify.chain, 2, Sampling())
    high, low = small(seed=6, kind=Wrapped), small(seed=7, kind=Wrapped)
    high.drafter = middle = Cascade(table(5), low, verify.chain, 2, Sampling())
    Cascade(MODEL, high, verify.chain, 2, Sampling())
    low.drafter = middle
    with pytest.raises(InvalidArgument, match="the draft source contains itself"):
        Cascade(MODEL, high, verify.chain, 2, Sampling())


def test_a_lossy_rule_is_no_bias_at_temperature_0():
    Cascade(MODEL, small(sampling=COLD), verify.lenient, 2, COLD)


def test_levels_draft_no_further_than_they_can():
    short = TabularModel(random_table(2, 5), 2, max_length=40)
    below = ModelDrafter(short, TreeShape.chain(3), IID, Sampling())
    assert Cascade(table(4), below, verify.chain, 2, Sampling()).max_length == 37
