"""The decoding loop with exact models: composition of steps, planted bugs, stops and budgets."""

import itertools
from dataclasses import replace

import pytest
import torch

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, decode, verify
from treespec.decoding import require_room
from treespec.draft import ModelDrafter, NoDrafter
from treespec.errors import (
    ContextOverflow,
    EmptyPrompt,
    InvalidArgument,
    InvalidBudget,
    InvalidPrompt,
    InvalidTree,
    NonFiniteLogits,
    RefusedTree,
)
from treespec.stopping import any_of, stop_at_tokens
from treespec.target import ModelTarget
from treespec.testing import (
    NotLossless,
    TabularModel,
    assert_lossless,
    covers,
    output_law,
    plane_trees,
    random_table,
    target_law,
)

CASES = [
    (rule, law, shape)
    for rule in verify.RULES.values()
    if rule.lossless and not rule.one_hot
    for law in sorted(rule.laws, key=str)
    for size in (1, 2, 3)
    for shape in plane_trees(size)
    if covers(rule, shape, law, 2)
]


class Checked(ModelDrafter):
    """Also checks that each reported distribution is the draft's own, given the committed text."""

    def prefill(self, tokens):
        super().prefill(tokens)
        self.committed = tuple(tokens.tolist())

    def propose(self, coins):
        tree = super().propose(coins)
        for node in tree.shape.internal if tree.draft_probs is not None else ():
            context = self.committed[:-1] + tuple(tree.token_ids[n] for n in tree.shape.path(node))
            expected = self.sampling(self.model.row(context))
            assert torch.equal(tree.draft_probs_of(node), expected), "drafted from another context"
        return tree

    def commit(self, step):
        super().commit(step)
        path = [step.tree.token_ids[node] for node in step.verdict.path[1:]]
        self.committed += (*path, step.verdict.bonus)


def error_of(rule, law, shape, *, seed=3, tokens=3, vocab=2, **parts):
    target, draft = (TabularModel(random_table(vocab, seed + i), vocab) for i in (0, 1))
    found = output_law(rule, shape, law, target=target, draft=draft, tokens=tokens, **parts)
    right = target_law(target, (0,), tokens, Sampling())
    assert found.runs > 1
    return float((found.probs - right).abs().max())


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(("rule", "law", "shape"), CASES, ids=lambda x: getattr(x, "parents", x))
def test_three_tokens_through_the_loop_follow_the_target(rule, law, shape):
    assert error_of(rule, law, shape, draft_with=Checked) < 1e-12


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("rule", "law"), [(verify.rrs, Law.IID), (verify.rrsw, Law.WITHOUT_REPLACEMENT)]
)
def test_siblings_that_do_not_cover_the_vocabulary(rule, law):
    """With two tokens, two distinct children cover the vocabulary; with three, the second draw matters."""
    shape = TreeShape.expansion([2])
    assert error_of(rule, law, shape, vocab=3, tokens=2, draft_with=Checked) < 1e-12


@pytest.mark.usefixtures("without_shape_checks")
def test_greedy_through_the_loop_on_deeper_trees():
    cold = Sampling(temperature=0.0)
    for seed, shape in itertools.product(range(5), plane_trees(4)):
        target, draft = (TabularModel(random_table(4, 2 * seed + i), 4) for i in (0, 1))
        parts = (
            ModelTarget(target),
            ModelDrafter(draft, shape, Law.DETERMINISTIC, cold),
            verify.greedy,
        )
        steps = decode(
            *parts, torch.tensor([0, 1]), sampling=cold, coins=TorchCoins(0), max_new_tokens=12
        )
        text = [0, 1]
        for _ in range(12):
            text.append(int(target.row(tuple(text)).argmax()))
        assert [t for step in steps for t in step.tokens] == text[2:]


class OneRowShort(ModelTarget):
    def commit(self, step):
        self.model.keep(step.verdict.path[:-1] or step.verdict.path)


class KeepsTheFirstBranch(ModelTarget):
    def commit(self, step):
        self.model.keep(range(len(step.verdict.path)))


class ForgetsPending(Checked):
    def commit(self, step):
        super().commit(step)
        self._pending = []


class CacheNotCut(Checked):
    """Keeps the row of a rejected node."""

    def commit(self, step):
        rows = list(self._rows.values())
        super().commit(step)
        if len(step.verdict.path) == 1 and len(rows) > 1:
            self.model._committed += (step.tree.token_ids[1],)


class KeepsPendingTwice(Checked):
    def commit(self, step):
        super().commit(step)
        self._pending = self._pending * 2


WIDE, LONG = TreeShape.expansion([2, 1]), TreeShape.chain(2)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("bug", "shape"), [(OneRowShort, LONG), (KeepsTheFirstBranch, TreeShape.expansion([2]))]
)
def test_planted_target_bugs_change_the_law(bug, shape):
    assert error_of(verify.rrs, Law.IID, shape, target_with=bug) > 1e-6


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("bug", "depth"), [(ForgetsPending, 1), (KeepsPendingTwice, 1), (CacheNotCut, 2)]
)
def test_planted_draft_bugs_are_seen(bug, depth):
    """They preserve the law (a rule trusts the reported distribution) but draft from another context."""
    with pytest.raises(AssertionError, match="drafted from another context"):
        error_of(verify.rrs, Law.IID, TreeShape.chain(depth), draft_with=bug)


def run(stop=lambda ids: False, max_new_tokens=20, shape=WIDE, **changes):
    target, draft = (TabularModel(random_table(4, i), 4) for i in (8, 9))
    parts = {
        "target": ModelTarget(target),
        "drafter": ModelDrafter(draft, shape, Law.IID, Sampling()),
        "verifier": verify.rrs,
        "prompt": torch.tensor([1]),
        "sampling": Sampling(),
        "coins": TorchCoins(4),
        "max_new_tokens": max_new_tokens,
        "stop": stop,
    } | changes
    return list(decode(**parts))


def text(steps):
    return [token for step in steps for token in step.tokens]


def test_steps_join_to_the_text_and_the_budget_is_exact():
    whole = text(run())
    assert len(whole) == 20
    for budget in range(1, 20):
        assert text(run(max_new_tokens=budget)) == whole[:budget]


def test_a_stop_token_inside_an_accepted_path_ends_the_text_there():
    cut_inside = 0
    for seed in range(12):
        whole = text(run(coins=TorchCoins(seed)))
        for token in set(whole):
            steps = run(coins=TorchCoins(seed), stop=stop_at_tokens([token]))
            assert text(steps) == whole[: whole.index(token) + 1]
            cut_inside += len(steps[-1].tokens) < steps[-1].verdict.emitted
    assert cut_inside, "no stop fell inside a path: the test would prove nothing"


def test_stops_combine():
    whole = text(run())
    steps = run(stop=any_of(stop_at_tokens([99]), lambda ids: len(ids) == 1 + 7))
    assert text(steps) == whole[:7]


def test_no_draft_is_plain_decoding():
    steps = run(drafter=NoDrafter(), verifier=verify.naive)
    assert [step.verdict.emitted for step in steps] == [1] * 20


def test_stages_are_announced_in_order():
    class Log:
        def __init__(self):
            self.names = []

        def stage(self, name):
            self.names.append(name)
            return torch.no_grad()

    log = Log()
    steps = run(observer=log)
    assert log.names == ["prefill", *["draft", "verify", "accept", "commit"] * len(steps)]


def test_inference_mode_does_not_leak_between_steps():
    steps = decode(
        ModelTarget(TabularModel(random_table(4, 0), 4)), NoDrafter(), verify.naive, torch.tensor([0]),
        sampling=Sampling(), coins=TorchCoins(0), max_new_tokens=3,
    )  # fmt: skip
    next(steps)
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"prompt": torch.tensor([], dtype=torch.long)}, EmptyPrompt, "no tokens"),
        ({"max_new_tokens": 0}, InvalidBudget, "max_new_tokens = 0"),
        ({"max_new_tokens": -3}, InvalidBudget, "at least 1"),
        ({"max_new_tokens": 2.5}, InvalidBudget, "max_new_tokens = 2.5.*integer"),
        ({"prompt": torch.tensor([[1, 2]])}, InvalidPrompt, r"prompt = .*\[1, 2\]"),
        ({"prompt": [1, 2]}, InvalidPrompt, r"prompt = \[1, 2\]"),
        ({"prompt": torch.tensor([1.0])}, InvalidPrompt, "prompt = .*float32"),
        ({"prompt": torch.tensor([1, 9])}, InvalidPrompt, r"token id 9.*0\.\.3"),
        ({"prompt": torch.tensor([1, 4])}, InvalidPrompt, r"token id 4.*0\.\.3"),
        ({"prompt": torch.tensor([-1])}, InvalidPrompt, "token id -1"),
        (
            {"prompt": torch.zeros(40, dtype=torch.long)},
            ContextOverflow,
            "40 tokens.*context is 32",
        ),
        ({"max_new_tokens": 30}, ContextOverflow, r"1 prompt.*30 new.*2 levels.*33 positions.*32"),
    ],
)
def test_what_cannot_be_decoded_is_refused_before_a_model_runs(
    without_shape_checks, changes, error, says
):
    def never(context):
        raise AssertionError("a model ran")

    with pytest.raises(error, match=says):
        run(target=ModelTarget(TabularModel(never, 4, max_length=32)), **changes)


class DraftsAnId(NoDrafter):
    max_depth = 1

    def __init__(self, drafted):
        self.drafted = drafted

    def propose(self, coins):
        ids = torch.tensor([self._root, 0, self.drafted])
        return TokenTree(TreeShape.expansion([2]), ids, None, Law.DETERMINISTIC)


def test_an_id_that_the_target_does_not_have_is_refused_before_the_target_runs(
    without_shape_checks,
):
    def never(context):
        raise AssertionError("the target ran")

    says = r"node 2 of the drafted tree has the token 4, but the target's ids are 0\.\.3"
    with pytest.raises(InvalidTree, match=says):
        run(
            target=ModelTarget(TabularModel(never, 4)),
            drafter=DraftsAnId(4),
            verifier=verify.onehot,
        )
    assert run(drafter=DraftsAnId(3), verifier=verify.onehot)
    drafter = DraftsAnId(3)
    drafter.propose = lambda coins: [1, 2]
    with pytest.raises(InvalidArgument, match=r"the drafter.s proposal = .* must be a TokenTree"):
        run(drafter=drafter)


def test_a_child_drafted_twice_is_refused_before_the_first_token_or_does_no_harm():
    """A rule that repeated children bias refuses them; one that draws once for each node stays exact."""
    target, sampling = TabularModel(random_table(4, 0), 4), Sampling()
    steps = decode(
        ModelTarget(target), DraftsAnId(0), verify.onehot, torch.tensor([0]), sampling=sampling,
        coins=TorchCoins(0), max_new_tokens=9,
    )  # fmt: skip
    with pytest.raises(RefusedTree, match=r"'onehot' needs distinct children.*tokens \[0, 0\]"):
        next(steps)
    found = output_law(
        verify.naive, TreeShape.chain(1), Law.DETERMINISTIC, target=target, draft=target, tokens=2,
        draft_with=lambda *_: DraftsAnId(0),
    )  # fmt: skip
    right = target_law(target, (0,), 2, sampling)
    assert float((found.probs - right).abs().max()) <= 1e-12


def test_a_context_is_used_to_its_last_position():
    table, tokens = random_table(4, 0), 29  # and one of the prompt, and two levels of a tree
    target, draft = (ModelTarget(TabularModel(table, 4, max_length=32)) for _ in range(2))
    drafter = ModelDrafter(draft.model, TreeShape.chain(2), Law.IID, Sampling())
    steps = run(target=target, drafter=drafter, max_new_tokens=tokens)
    assert sum(len(step.tokens) for step in steps) == tokens
    require_room(32 - 3, 1, 2, 32)
    with pytest.raises(ContextOverflow, match=r"29 prompt tokens . 2 new tokens . 2 levels"):
        require_room(29, 2, 2, 32)
    with pytest.raises(ContextOverflow, match=r"32 prompt tokens . 1 new tokens"):
        require_room(32, 1, 0, 32)


def test_a_draft_with_a_shorter_context_is_refused_at_the_door():
    draft = ModelDrafter(
        TabularModel(random_table(4, 9), 4, max_length=16), WIDE, Law.IID, Sampling()
    )
    with pytest.raises(ContextOverflow, match=r"23 positions.*context is 16"):
        run(drafter=draft)


def test_two_texts_can_be_decoded_side_by_side_on_the_same_models():
    target, draft = (TabularModel(random_table(4, i), 4) for i in (8, 9))

    def start(first):
        return decode(
            ModelTarget(target), ModelDrafter(draft, WIDE, Law.IID, Sampling()), verify.rrs,
            torch.tensor([first]), sampling=Sampling(), coins=TorchCoins(4), max_new_tokens=12,
        )  # fmt: skip

    alone = [text(list(start(first))) for first in (1, 2)]
    one, two = start(1), start(2)
    pairs = list(itertools.zip_longest(one, two))
    assert [text([p[i] for p in pairs if p[i]]) for i in (0, 1)] == alone


def test_one_model_can_be_target_and_draft():
    model = TabularModel(random_table(4, 8), 4)
    steps = run(target=ModelTarget(model), drafter=ModelDrafter(model, LONG, Law.IID, Sampling()))
    assert all(step.verdict.accepted == 2 for step in steps[:-1])


def test_the_door_is_at_the_call_not_at_the_first_step():
    with pytest.raises(InvalidBudget):
        decode(
            ModelTarget(TabularModel(random_table(4, 0), 4)), NoDrafter(), verify.naive, torch.tensor([0]),
            sampling=Sampling(), coins=TorchCoins(0), max_new_tokens=0,
        )  # fmt: skip


def test_bad_logits_name_step_and_node():
    table = random_table(4, 8)

    def broken(bad):
        def row(context):
            return (
                torch.full((4,), bad, dtype=torch.float64) if len(context) > 6 else table(context)
            )

        return TabularModel(row, 4)

    with pytest.raises(NonFiniteLogits, match=r"target model.*step \d+, node \d+") as failure:
        run(target=ModelTarget(broken(float("nan"))))
    assert failure.value.step is not None
    with pytest.raises(NonFiniteLogits, match=r"draft model.*step \d+"):
        run(drafter=ModelDrafter(broken(float("inf")), WIDE, Law.IID, Sampling()))


def test_a_finished_step_is_yielded_before_a_later_one_fails():
    table = random_table(4, 8)
    model = TabularModel(lambda c: table(c) if len(c) < 5 else table(c) * float("nan"), 4)
    steps = decode(
        ModelTarget(model), NoDrafter(), verify.naive, torch.tensor([0]),
        sampling=Sampling(), coins=TorchCoins(0), max_new_tokens=9,
    )  # fmt: skip
    assert all(len(next(steps).tokens) == 1 for _ in range(4))
    with pytest.raises(NonFiniteLogits, match="step 4, node 0"):
        next(steps)


class Rootless(ModelDrafter):
    """Drafts after another token than the last, like a source that forgets what was committed."""

    def propose(self, coins):
        tree = super().propose(coins)
        other = (tree.token_ids[0] + 1) % 3
        tokens = torch.tensor([other, *tree.token_ids[1:]])
        return replace(tree, tokens=tokens)


class Forgetful(ModelDrafter):
    """Ignores all commits after the first step."""

    def commit(self, step):
        pass


def test_a_tree_begins_with_the_last_committed_token():
    models = (TabularModel(random_table(3, seed), 3) for seed in (0, 1))
    target, draft = models
    sampling, shape = Sampling(), TreeShape.chain(2)
    for wrong in (Rootless, Forgetful):
        steps = decode(
            ModelTarget(target),
            wrong(draft, shape, Law.IID, sampling),
            verify.chain,
            torch.tensor([0, 1]),
            sampling=sampling,
            coins=TorchCoins(2),
            max_new_tokens=20,
        )
        with pytest.raises(InvalidTree, match="must be the last committed token"):
            list(steps)


def test_the_oracle_refuses_a_drafter_with_another_root():
    with pytest.raises((InvalidTree, NotLossless), match="last committed token"):
        assert_lossless(
            verify.chain, laws=[Law.IID], shapes=[TreeShape.chain(1)], tables=1, draft_with=Rootless
        )
