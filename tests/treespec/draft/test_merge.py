"""Merges: the law, the steps that sources receive, how nodes are divided, and what is refused."""

from collections import Counter

import pytest
import torch
from following import Follows

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, decode, verify
from treespec.draft import (
    Cascade,
    Jacobi,
    Lookahead,
    Merge,
    ModelDrafter,
    NoDrafter,
    PromptLookup,
    SuffixAutomaton,
)
from treespec.errors import ContextOverflow, InvalidArgument, InvalidTree, NotADistribution
from treespec.protocols import Drafter
from treespec.target import ModelTarget
from treespec.testing import (
    TabularModel,
    acceptance,
    output_law,
    random_table,
    step_law,
    target_law,
)

IID, WITHOUT, SURE = Law.IID, Law.WITHOUT_REPLACEMENT, Law.DETERMINISTIC
PROMPT = (0, 1, 0, 0, 1)
HIGH, LOW = ((0.9, 0.5, 0.2),), ((0.6, 0.3, 0.1),)


def table(seed, vocab=2):
    return TabularModel(random_table(vocab, seed), vocab)


def model(seed, law=IID, depth=2, vocab=2, sampling=None):
    return ModelDrafter(table(seed, vocab), TreeShape.chain(depth), law, sampling or Sampling())


def lookup(depth=2, **settings):
    return PromptLookup(depth, ngram=2, size=5, branching=2, **settings)


def merge(size=5, rates=None, **sources):
    given = dict.fromkeys(sources, HIGH) | (rates or {})
    return Merge(sources, size, rates=given)


def cascade(depth):
    return Cascade(table(7), lookup(1), verify.onehot, depth, Sampling())


def played(drafter, rule, sampling, vocab=2, tokens=40, seed=0):
    target = TabularModel(random_table(vocab, 3), vocab)
    return list(decode(
        ModelTarget(target), drafter, rule, torch.tensor(PROMPT), sampling=sampling,
        coins=TorchCoins(seed), max_new_tokens=tokens,
    ))  # fmt: skip


class FollowingModel(Follows, ModelDrafter):
    pass


class ByItself(FollowingModel):
    """A source that a merge cannot ask for single nodes: its trees are taken as proposed."""

    draws_where_told = False


@pytest.mark.parametrize("kind", [FollowingModel, ByItself])
@pytest.mark.parametrize("size", [3, 5, 12])
def test_sources_follow_what_they_did_not_propose(kind, size):
    shape = TreeShape.expansion([2, 1])
    drafters = [kind(table(seed), shape, IID, Sampling()) for seed in (4, 5)]
    sources = dict(zip("ab", drafters, strict=True)) | {"lookup": lookup(), "jacobi": Jacobi(2)}
    steps = played(merge(size=size, **sources), verify.rrs, Sampling())
    text = [*PROMPT, *(token for step in steps for token in step.emitted_ids)]
    assert all(drafter.text == text for drafter in drafters)
    assert list(sources["lookup"]._text.text) == text
    assert any(step.verdict.accepted for step in steps)
    assert max(step.tree.shape.size for step in steps) <= size


class Rows(Lookahead):
    """Checks that the rows it receives are those of its own nodes."""

    def commit(self, step):
        own = self._proposed
        for node in range(own.shape.size):
            context = (*self.text, *(own.token_ids[n] for n in own.shape.path(node)[1:]))
            torch.testing.assert_close(step.scores.logits[node], random_table(2, 3)(context))
        super().commit(step)
        self.text += tuple(step.emitted_ids)

    def prefill(self, tokens):
        super().prefill(tokens)
        self.text = tuple(tokens.tolist())


def test_sources_that_read_all_their_rows_get_them():
    window = Rows(2, 3, 2)
    merged = merge(size=16, model=model(4), lookahead=window, lookup=lookup())
    steps = played(merged, verify.rrs, Sampling())
    assert window.text == (*PROMPT, *(token for step in steps for token in step.emitted_ids))
    assert any(step.verdict.accepted for step in steps)


def test_equal_sure_children_are_one_node_and_know_both_sources():
    merged = merge(one=PromptLookup(2), two=PromptLookup(3), rates={"two": LOW})
    merged.prefill(torch.tensor([0, 1, 2, 0]))
    tree = merged.propose(TorchCoins(0))
    assert tree.token_ids == (0, 1, 2, 0)
    assert tree.shape.is_chain
    assert not tree.is_mixed
    assert merged.origins == ((), ("one", "two"), ("one", "two"), ("two",))


def test_a_child_of_two_sources_is_worth_more_than_that_of_a_third():
    sources = {"one": Answers(1), "two": Answers(1), "three": Answers(0)}
    rates = {"one": HIGH, "two": LOW, "three": ((0.7,),)}
    merged = Merge(sources, 2, rates=rates)
    merged.prefill(torch.tensor(PROMPT))
    assert merged.propose(TorchCoins(0)).token_ids == (1, 1)
    assert merged.origins == ((), ("one", "two"))


def test_sources_that_disagree_lower_each_others_values():
    """4 : 1 : 1 for the first source's child, the second's, and neither: .667 and .167, not .8 and .5."""
    chain = TreeShape.chain(3)
    sources = {"sure": Answers(1, 1, 1, shape=chain), "unsure": Answers(0, 0, 0, shape=chain)}
    rates = {"sure": ((0.8,),), "unsure": ((0.5,), (0.9,))}
    merged = Merge(sources, 5, rates=rates, depth=3)
    merged.prefill(torch.tensor(PROMPT))
    merged.propose(TorchCoins(0))
    # .667, .533, .427, then .167: by products of rates alone it would be .8, .64, .512, .5, .45
    assert Counter(merged.origins[1:]) == {("sure",): 3, ("unsure",): 1}
    merged = Merge(sources, 4, rates=rates | {"sure": ((0.8,), (0.3,), (0.3,))}, depth=3)
    merged.prefill(torch.tensor(PROMPT))
    merged.propose(TorchCoins(0))
    # .667, .2, .167: by products of rates alone .8, .5, .45, before .24
    assert Counter(merged.origins[1:]) == {("sure",): 2, ("unsure",): 1}


def test_the_context_has_room_for_sources_deeper_than_the_merge():
    deep, short = Answers(1, 1, 1, shape=TreeShape.chain(3)), Answers(1)
    deep.max_length = 100
    rates = {"deep": HIGH, "short": HIGH}
    assert Merge({"deep": deep, "short": short}, 3, rates=rates, depth=1).max_length == 98
    assert Merge({"deep": deep, "short": short}, 3, rates=rates).max_length == 100
    short.max_length = 50
    assert Merge({"deep": deep, "short": short}, 3, rates=rates).max_length == 50


def test_a_merge_that_draws_ends_where_the_models_context_does():
    """A model that draws goes no deeper than the merge, however deep it could draft alone."""
    short = TabularModel(random_table(2, 4), 2, max_length=12)
    for depth, budget in ((1, 6), (3, 4)):
        drafter = ModelDrafter(short, TreeShape.chain(3), IID, Sampling())
        rates = {"model": HIGH, "lookup": LOW}
        merged = Merge({"model": drafter, "lookup": lookup()}, 4, rates=rates, depth=depth)
        assert merged.max_length == 12
        steps = played(merged, verify.rrs, Sampling(), tokens=budget)
        assert sum(len(step.tokens) for step in steps) == budget
        with pytest.raises(ContextOverflow):
            played(merged, verify.rrs, Sampling(), tokens=budget + 1)


def test_a_merged_tree_is_vouched_for_if_all_of_its_trees_are():
    """Otherwise a rule would decide by rows that nobody has looked at."""
    wrong = Answers(1, law=IID, probs=torch.tensor([[0.5, 0.9]]))
    drawn = ByItself(table(5), TreeShape.chain(1), IID, Sampling())
    for other, vouched in ((wrong, False), (drawn, True)):
        merged = merge(model=model(4, depth=1), other=other)
        merged.prefill(torch.tensor(PROMPT))
        assert merged.propose(TorchCoins(0)).is_vouched == vouched
    with pytest.raises(NotADistribution):
        played(merge(other=wrong, model=model(4, depth=1)), verify.rrs, Sampling())


def test_nodes_go_where_the_rates_say():
    """Best first by products of rates; a drawn child's rank counts all elder children."""
    rates = {"model": ((0.8, 0.3), (0.5,)), "lookup": ((0.6,), (0.9,))}
    sources = {"model": model(4, depth=3, vocab=9), "lookup": PromptLookup(2)}
    merged = Merge(sources, 6, rates=rates)
    merged.prefill(torch.tensor([7, 8, 6, 7]))
    tree = merged.propose(TorchCoins(1))
    # .8 model, .6 lookup, .6 * .9 lookup, .8 * .5 model, then .54 * .5 model before .8 * .5 * .5 and .3 * 0
    assert merged.origins == ((), ("model",), ("lookup",), ("model",), ("lookup",), ("model",))
    assert tree.shape.parents == (-1, 0, 0, 1, 2, 4)
    assert [tree.token_ids[node] for node in (0, 2, 4)] == [7, 8, 6]
    assert tree.token_ids[1] != 8
    assert tree.draft_probs[0][8] == 0  # drawn beside what is sure
    assert tree.draft_probs[1][8] > 0


def test_a_model_draws_no_deeper_than_its_growth():
    rates = {"model": ((0.9, 0.8),), "lookup": ((0.7,),)}
    merged = Merge({"model": model(4, depth=1, vocab=9), "lookup": PromptLookup(3)}, 9, rates=rates)
    merged.prefill(torch.tensor([7, 8, 6, 7]))
    tree = merged.propose(TorchCoins(0))
    depths = zip(tree.shape.depths, merged.origins, strict=True)
    assert Counter(depth for depth, origin in depths if origin == ("model",)) == {1: 2}
    assert tree.shape.depth == 3


def toy(row):
    logits = torch.tensor(row, dtype=torch.float64).log()
    return TabularModel(lambda context: logits, len(row))


@pytest.mark.parametrize("rule", [verify.rrs, verify.rrsw, verify.traversal], ids=str)
def test_a_drawn_child_beside_a_looked_up_one_accepts_what_theory_says(rule):
    """p = (.3, .4, .3), q = (.6, .3, .1), token 0 looked up: acceptance .95."""

    def draft_with(draft, shape, law, sampling):
        sources = {
            "m": ModelDrafter(draft, TreeShape.chain(1), law, sampling),
            "l": PromptLookup(1),
        }
        return Merge(sources, 3, rates={"m": HIGH, "l": LOW})

    found = acceptance(
        rule, TreeShape.expansion([2]), IID, target=toy((0.3, 0.4, 0.3)), draft=toy((0.6, 0.3, 0.1)),
        prompt=(0, 0), draft_with=draft_with,
    )  # fmt: skip
    assert found.expected == pytest.approx(0.95, abs=1e-12)


CUT = {"T=0": Sampling(0.0), "top-k": Sampling(top_k=1), "top-p": Sampling(top_p=0.4)}


@pytest.mark.parametrize("cut", CUT)
@pytest.mark.parametrize("rule", [verify.rrs, verify.rrsw, verify.traversal], ids=str)
def test_beyond_its_support_a_row_does_not_draw_what_is_looked_up(rule, cut):
    """Three children of four tokens; the model's second is drawn after its only sure token."""

    def draft_with(draft, shape, law, sampling):
        alone = ModelDrafter(draft, TreeShape.chain(1), WITHOUT, CUT[cut])
        return Merge({"m": alone, "l": PromptLookup(1)}, 4, rates={"m": HIGH, "l": LOW})

    target, draft = toy((0.1, 0.2, 0.3, 0.4)), toy((0.4, 0.3, 0.2, 0.1))
    found = step_law(
        rule, TreeShape.expansion([3]), WITHOUT, target=target, draft=draft, prompt=(0, 0),
        draft_with=draft_with,
    )  # fmt: skip
    right = target_law(target, (0, 0), 2, Sampling())
    assert float((found.probs - right).abs().max()) <= 1e-12
    merged, drawn = draft_with(draft, None, None, None), set()
    for seed in range(20):
        merged.prefill(torch.tensor((0, 0)))
        tree = merged.propose(TorchCoins(seed))
        assert tree.token_ids[1::2] == (
            1,
            0,
        )  # the best of the others first, what is looked up last
        drawn.add(tree.token_ids[2])
    assert drawn == {2, 3}


@pytest.mark.parametrize(
    "sources", [{"a": NoDrafter(), "b": NoDrafter()}, {"a": lookup(), "b": SuffixAutomaton(2)}]
)
def test_sources_without_drafts_leave_the_root(sources):
    merged = Merge(sources, 4, rates={"a": HIGH, "b": HIGH})
    assert isinstance(merged, Drafter)
    steps = played(merged, verify.onehot, Sampling(), tokens=3)
    assert sum(len(step.tokens) for step in steps) == 3


class Answers:
    """A source that always proposes the same tree."""

    max_length = 10**6

    def __init__(self, *tokens, root=PROMPT[-1], law=SURE, shape=None, probs=None):
        shape = shape or TreeShape.expansion([len(tokens)])
        self.max_depth = shape.depth
        self.tree = TokenTree(shape, torch.tensor([root, *tokens]), probs, law)

    def prefill(self, tokens):
        pass

    def propose(self, coins):
        return self.tree

    def commit(self, step):
        self.step = step


def test_duplicates_of_a_source_are_united():
    merged = Merge({"a": Answers(1, 1, 0), "b": lookup(1)}, 6, rates={"a": HIGH, "b": LOW})
    steps = played(merged, verify.onehot, Sampling(), tokens=1)
    assert sorted(steps[0].tree.token_ids[1:]) == [0, 1]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (Answers(1, 2), "source 'a' drafts the token 2, but the target's ids are 0..1"),
        (Answers(1, root=0), "source 'a' has the root 0, but the last committed token is 1"),
        (
            Answers(0, 1, law=Law.HUB, probs=torch.tensor([[0.5, 0.5]])),
            "source 'a' has children of law hub",
        ),
    ],
)
def test_trees_that_cannot_be_merged_are_refused_by_the_name_of_their_source(source, said):
    merged = Merge({"a": source, "b": lookup()}, 6, rates={"a": HIGH, "b": HIGH}, vocab_size=2)
    with pytest.raises(InvalidTree, match=said):
        played(merged, verify.onehot, Sampling())


def test_unverified_rows_are_no_numbers():
    """For nodes that were cut, a source gets no rows that it could mistake for the target's."""
    source = Answers(1, 0)
    played(
        Merge({"a": source, "b": NoDrafter()}, 2, rates={"a": LOW, "b": LOW}),
        verify.onehot,
        Sampling(),
        tokens=1,
    )
    rows = source.step.scores.logits
    assert rows[:2].isfinite().all()
    assert rows[2].isnan().all()
    assert source.step.tree is source.tree


def test_a_step_of_another_tree_is_refused():
    merged = merge(a=lookup(), b=lookup())
    merged.prefill(torch.tensor(PROMPT))
    (step,) = played(lookup(), verify.onehot, Sampling(), tokens=1)
    with pytest.raises(InvalidTree, match="did not propose last"):
        merged.commit(step)


def test_rows_of_a_text_that_was_abandoned_do_not_reach_the_next():
    """A model that draws no node of the first tree has no rows to keep."""
    small = model(4)
    merged = Merge(
        {"model": small, "lookup": PromptLookup(3)},
        3,
        rates={"model": ((0.1,),), "lookup": ((0.9,),)},
    )
    merged.prefill(torch.tensor([0]))
    assert merged.propose(TorchCoins(0)).shape.size == 3  # drawn by the model, and never committed
    (first, *_) = played(merged, verify.rrs, Sampling())
    assert first.tree.laws == {SURE}
    assert small.model.length >= len(PROMPT)


def apart(budgets, **sources):
    return Merge(sources, budgets=dict(zip(sources, budgets, strict=True)))


def test_each_source_has_nodes_of_its_own():
    """The first nodes of its tree, below one root, whatever the others draft."""
    wide = TreeShape.from_parents([-1, 0, 0, 1, 1, 2])
    sources = {
        "a": ModelDrafter(table(4, 9), wide, WITHOUT, Sampling()),
        "b": Answers(1, 4, 6, root=7, shape=TreeShape.from_parents([-1, 0, 1, 0])),
    }
    merged = Merge(sources, budgets={"a": 3, "b": 2})
    alone = ModelDrafter(table(4, 9), wide, WITHOUT, Sampling())
    for drafter in (merged, alone):
        drafter.prefill(torch.tensor([7, 8, 6, 7]))
    tree, whole = merged.propose(TorchCoins(2)), alone.propose(TorchCoins(2))
    assert merged.origins == ((), ("a",), ("a",), ("b",), ("a",), ("b",))
    assert tree.shape.parents == (-1, 0, 0, 0, 1, 3)
    assert [tree.token_ids[i] for i in (1, 2, 4)] == list(whole.token_ids[1:4])
    assert [tree.token_ids[i] for i in (3, 5)] == [1, 4]
    torch.testing.assert_close(tree.draft_probs[0], whole.draft_probs_of(0))
    assert [len(group.children) for group in tree.groups_of(0)] == [2, 1]


def test_the_whole_has_at_most_the_sum_of_the_budgets():
    """It has fewer if equal deterministic children are united."""
    steps = played(apart((3, 2), a=lookup(), b=model(4)), verify.rrs, Sampling())
    sizes = {step.tree.shape.size for step in steps}
    assert max(sizes) == 6
    same = apart((2, 3), one=PromptLookup(2), two=PromptLookup(3))
    same.prefill(torch.tensor([0, 1, 2, 0]))
    assert same.propose(TorchCoins(0)).token_ids == (0, 1, 2, 0)
    assert same.origins == ((), ("one", "two"), ("one", "two"), ("two",))


def test_equal_draws_of_two_sources_stay_two_nodes():
    sharp = toy((1 - 1e-9, 1e-9))
    drafters = [ModelDrafter(sharp, TreeShape.chain(1), IID, Sampling()) for _ in range(2)]
    merged = apart((1, 1), a=drafters[0], b=drafters[1])
    merged.prefill(torch.tensor(PROMPT))
    assert merged.propose(TorchCoins(0)).token_ids == (1, 0, 0)


@pytest.mark.parametrize("kind", [FollowingModel, ByItself])
@pytest.mark.parametrize("budgets", [(1, 1, 1, 2), (3, 2, 4, 2)])
def test_sources_with_budgets_follow_what_they_did_not_propose(kind, budgets):
    shape = TreeShape.expansion([2, 1])
    drafters = [kind(table(seed), shape, IID, Sampling()) for seed in (4, 5)]
    sources = dict(zip("ab", drafters, strict=True)) | {"lookup": lookup(), "jacobi": Jacobi(2)}
    steps = played(apart(budgets, **sources), verify.rrs, Sampling())
    text = [*PROMPT, *(token for step in steps for token in step.emitted_ids)]
    assert all(drafter.text == text for drafter in drafters)
    assert list(sources["lookup"]._text.text) == text
    assert any(step.verdict.accepted for step in steps)
    assert max(step.tree.shape.size for step in steps) <= 1 + sum(budgets)


@pytest.mark.parametrize("rule", [verify.rrs, verify.traversal], ids=str)
def test_merges_with_budgets_keep_the_law(rule):
    """A cut tree next to a looked-up one; every source is proved in `test_proofs`."""
    target, draft = table(3), table(4)
    found = output_law(
        rule, TreeShape.chain(2), IID, target=target, draft=draft, tokens=2, prompt=PROMPT,
        draft_with=lambda *_: apart(
            (2, 2), a=ModelDrafter(draft, TreeShape.expansion([2, 1]), IID, Sampling()), b=lookup()
        ),
    )  # fmt: skip
    assert float((found.probs - target_law(target, PROMPT, 2, Sampling())).abs().max()) <= 1e-12


def test_the_first_model_is_decided_as_if_it_were_alone():
    """p = (.3, .4, .3), q = (.6, .3, .1): sum min(p, q) = .7; rejected draws become token 1 or 2."""

    def draft_with(draft, shape, law, sampling):
        alone = ModelDrafter(draft, TreeShape.chain(1), law, sampling)
        return apart((1, 1), m=alone, l=Answers(1, root=0))

    found = acceptance(
        verify.rrs, TreeShape.expansion([2]), IID, target=toy((0.3, 0.4, 0.3)), draft=toy((0.6, 0.3, 0.1)),
        prompt=(0, 0), draft_with=draft_with,
    )  # fmt: skip
    # The residual of .3 has .1 on token 1 and .2 on token 2: a third of it is the looked-up token.
    assert found.expected == pytest.approx(0.7 + 0.1, abs=1e-12)


GOOD = {"a": HIGH, "b": HIGH}


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Merge({"a": lookup(), "b": lookup()}, rates=GOOD), "a merge needs a size"),
        (lambda: Merge({"a": lookup(), "b": lookup()}, 1, rates=GOOD), "size = 1"),
        (lambda: Merge({"a": lookup()}, 4, rates=GOOD), "at least two draft sources"),
        (
            lambda: Merge({"a": merge(c=lookup(), d=lookup()), "b": lookup()}, 4, rates=GOOD),
            "source 'a' is itself a merge.*give its sources to this merge",
        ),
        (lambda: Merge({"a": lookup(), "b": lookup()}, 4, rates={"a": HIGH}), "has entries for a, but"),
        (lambda: Merge({"a": lookup(), "b": lookup()}, 4, rates=GOOD | {"c": HIGH}), "entries for a, b, c"),
        (lambda: Merge({"a": lookup(), "b": lookup()}, 4, rates=GOOD | {"b": ()}), r"rates\['b'\] = \(\)"),
        (
            lambda: Merge({"a": lookup(), "b": lookup()}, 4, rates=GOOD | {"b": [[1.5]]}),
            r"rates\['b'\] = \[\[1.5\]\]",
        ),
        (lambda: merge(a=Lookahead(), b=lookup(), size=20), "they need 56, root included"),
        (
            lambda: Merge({"a": Jacobi(4), "b": lookup()}, 9, rates=GOOD, depth=2),
            "'a' reads the rows of all its nodes, which reach depth 4",
        ),
        (
            lambda: Merge({"a": Lookahead(2, 3, 2), "b": lookup()}, 20, rates=GOOD, branching=3),
            "branching = 3, but a read the rows of all their nodes, and a node can have 4 children",
        ),
        (
            lambda: Merge({"a": Lookahead(2, 3, 2), "b": Jacobi(2)}, 20, rates=GOOD, branching=4),
            "branching = 4, but a and b .* 5 children",
        ),
        (lambda: Merge({"a": lookup(), "b": lookup()}, 4), "either rates.*or budgets"),
        (
            lambda: Merge({"a": lookup(), "b": lookup()}, 4, rates=GOOD, budgets={"a": 1, "b": 1}),
            "either rates.*or budgets",
        ),
        (lambda: apart((0, 1), a=lookup(), b=lookup()), r"budgets\['a'\] = 0"),
        (lambda: apart((2, -1), a=lookup(), b=lookup()), r"budgets\['b'\] = -1"),
        (lambda: apart((2, 1.5), a=lookup(), b=lookup()), r"budgets\['b'\]"),
        (
            lambda: Merge({"a": lookup(), "b": lookup()}, budgets={"a": 1, "c": 1}),
            "budgets has entries for a, c",
        ),
        (
            lambda: Merge({"a": lookup(), "b": lookup()}, 7, budgets={"a": 3, "b": 4}),
            r"size = 7, but the budgets \(3 \+ 4\) and the root are 8 nodes: .* raise size to 8",
        ),
        (
            lambda: Merge({"a": lookup(), "b": lookup()}, budgets={"a": 3, "b": 4}, depth=2),
            "with budgets give these limits to the sources themselves",
        ),
        (
            lambda: apart((54, 4), a=Lookahead(), b=lookup()),
            r"budgets\['a'\] = 54, but this source reads the rows of all its nodes: give it at least 55",
        ),
    ],
)  # fmt: skip
def test_merges_that_cannot_be_are_refused(make, said):
    with pytest.raises(InvalidArgument, match=said):
        make()


def test_trees_that_are_kept_whole_have_room_in_width():
    merged = Merge({"a": Lookahead(2, 3, 2), "b": lookup()}, 20, rates=GOOD, branching=4)
    steps = played(merged, verify.onehot, Sampling(temperature=0.0), vocab=5)
    assert 2 < max(max(map(len, step.tree.shape.children)) for step in steps) <= 4


def test_one_drafter_stands_once():
    one = lookup()
    with pytest.raises(InvalidArgument, match="'a' and 'b' are one drafter"):
        merge(a=one, b=one)


@pytest.mark.usefixtures("without_shape_checks")
def test_a_part_of_a_source_stands_once():
    """Every step would be committed to it twice, and it would draft after a text that does not exist."""
    one = lookup()
    over = Cascade(table(5), one, verify.onehot, 2, Sampling())
    for sources in ({"a": over, "b": one}, {"a": one, "b": over}):
        with pytest.raises(InvalidArgument, match="'a' and 'b' share a drafter"):
            merge(**sources)
    merge(a=over, b=lookup())


def test_children_drawn_together_are_refused():
    with pytest.raises(InvalidTree, match="drafts children of law hub"):
        merge(a=model(4, Law.HUB), b=lookup())
