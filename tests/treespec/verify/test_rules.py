import itertools
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, Verdict, verify
from treespec.draft import ModelDrafter
from treespec.errors import InvalidSetting, NotADistribution, RefusedTree
from treespec.testing import (
    NotLossless,
    TabularModel,
    assert_lossless,
    covers,
    outcomes,
    plane_trees,
    random_table,
    step_law,
    target_law,
)

ALL = list(verify.RULES.values())
LOSSLESS = [rule for rule in ALL if rule.lossless]
SAMPLING = [rule for rule in ALL if not rule.one_hot]
BIG = [TreeShape.expansion(k) for k in ([2, 1], [1, 3], [4], [1, 1, 1, 1])]
BIG += [TreeShape.independent_chains(2, 2), TreeShape.from_parents([-1, 0, 0, 1, 2, 2])]
"""Trees of five nodes and more that join the exhaustive set of up to four."""


TWICE = ("optimal_transport", "canonical")
"""Rules whose own test files prove them on the same trees."""

DEAR = ("naive", "traversal")
"""Rules of many laws or branches, which are otherwise tried on the trees of up to four nodes alone."""

MARGIN = 1 / 4
"""How much of what rounding may do our own rules use, at most."""

QUICK = ("block",)
"""Rules tried on larger trees every time; `make prove` takes all rules to all trees of six nodes."""


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, marks=[pytest.mark.slow] * (str(rule) in (*TWICE, *DEAR)))
        for rule in LOSSLESS
    ],
    ids=str,
)
def test_lossless_on_the_default_trees(rule):
    proof = assert_lossless(rule)
    print(f"{rule}: {proof.cases} cases, {proof.runs} runs, error {proof.largest_error:.2g}")
    assert proof.cases >= 200
    assert proof.runs >= proof.cases
    assert proof.largest_error < 1e-14
    assert proof.largest_share < MARGIN


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", DEAR)
def test_lossless_on_all_trees_up_to_four_nodes(name):
    shapes = [shape for size in range(1, 5) for shape in plane_trees(size)]
    proof = assert_lossless(verify.RULES[name], shapes=shapes, tables=1)
    assert proof.cases >= 120
    assert proof.largest_share < MARGIN


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "rule",
    [pytest.param(rule, marks=[pytest.mark.slow] * (str(rule) not in QUICK)) for rule in LOSSLESS],
    ids=str,
)
def test_lossless_on_some_larger_trees(rule):
    assert assert_lossless(rule, shapes=BIG, tables=1, seed=7).runs > 0


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("rule", LOSSLESS, ids=str)
def test_without_any_error_in_exact_arithmetic(rule):
    shapes = [shape for size in (2, 3) for shape in plane_trees(size)]
    proof = assert_lossless(rule, shapes=shapes, tables=1, exact=True)
    assert proof.cases > 0
    assert proof.largest_error == 0


SMALL = {
    "hardly different": ([0.4 + 1e-8, 0.35 - 1e-8, 0.25], [0.4, 0.35, 0.25]),
    "hardly overlapping": ([1 - 2e-8, 1e-8, 1e-8], [1e-8, 1 - 2e-8, 1e-8]),
    "a draft that is nearly sure": ([0.3, 0.4, 0.3], [1e-8, 1 - 2e-8, 1e-8]),
    "a target that is nearly sure": ([1 - 2e-8, 1e-8, 1e-8], [0.4, 0.35, 0.25]),
    "hardly outside the draft's support": ([0.4, 0.6 - 1e-8, 1e-8], [0.4, 0.6, 0.0]),
    "hardly different, sure": ([1 - 3e-9, 1e-9, 2e-9], [1 - 3e-8, 2e-8, 1e-8]),
}
"""Target and draft rows with masses, or differences, far below 1e-6."""


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("rows", SMALL)
@pytest.mark.parametrize("rule", [rule for rule in LOSSLESS if not rule.one_hot], ids=str)
def test_no_mass_is_too_small_to_count(rule, rows):
    """A residual of 1e-8 is a residual: taken for none it is drawn from the whole row, by 1e-8 wrong."""
    logits = torch.tensor(SMALL[rows], dtype=torch.float64).log().clamp_min(-1e4)
    target, draft = (TabularModel(lambda context, row=row: row, 3) for row in logits)
    shapes = (TreeShape.chain(2), TreeShape.expansion([2]))
    cases = [(s, law) for s in shapes for law in rule.laws if covers(rule, s, law, 3)]
    assert cases
    for shape, law in cases:
        found = step_law(rule, shape, law, target=target, draft=draft)
        right = target_law(target, (0,), shape.depth + 1, Sampling())
        assert float((found.probs - right).abs().max()) < 1e-13


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("rule", SAMPLING, ids=str)
def test_every_rule_is_greedy_at_temperature_zero(rule):
    cold, compared = Sampling(temperature=0.0), 0
    shapes = [*plane_trees(4), TreeShape.independent_chains(2, 2)]
    for seed, law, shape in itertools.product(range(20), rule.laws, shapes):
        if not covers(rule, shape, law, 3):
            continue
        target, draft = random_table(3, seed), TabularModel(random_table(3, 100 + seed), 3)
        drafter = ModelDrafter(draft, shape, law, Sampling())
        drafter.prefill(torch.tensor([0]))
        tree = drafter.propose(TorchCoins(seed))
        contexts = [tuple(tree.token_ids[n] for n in shape.path(i)) for i in range(shape.size)]
        rows = cold(torch.stack([target(c) for c in contexts]))
        cold_text = text_of(tree, rule(tree, rows, TorchCoins(1)))
        greedy_text = text_of(tree, verify.greedy(tree, rows, TorchCoins(2)))
        # Rules that look at whole paths may go on below a sibling that repeats the first one's token.
        short = min(len(cold_text), len(greedy_text))
        assert cold_text[:short] == greedy_text[:short]
        assert len(cold_text) >= len(greedy_text)
        compared += 1
    assert compared >= 20


def text_of(tree, verdict):
    return [*(tree.token_ids[node] for node in verdict.path[1:]), verdict.bonus]


def tree_of(law, tokens, parents, vocab=3):
    shape = TreeShape.from_parents(parents)
    rows = torch.full((len(shape.internal), vocab), 1 / vocab, dtype=torch.float64)
    return TokenTree(shape, torch.tensor(tokens), rows, law)


def test_greedy_by_hand():
    rows = torch.eye(3)[[1, 2, 0, 2]]
    tree = tree_of(Law.DETERMINISTIC, [0, 1, 0, 2], [-1, 0, 0, 1])
    assert verify.greedy(tree, rows, TorchCoins(0)) == Verdict(path=(0, 1, 3), bonus=2)
    tree = tree_of(Law.DETERMINISTIC, [0, 2, 0, 2], [-1, 0, 0, 1])
    assert verify.greedy(tree, rows, TorchCoins(0)) == Verdict(path=(0,), bonus=1)


def test_greedy_refuses_rows_that_are_not_one_hot():
    tree = tree_of(Law.IID, [0, 1], [-1, 0], vocab=2)
    with pytest.raises(
        RefusedTree, match=r"one-hot target rows .temperature 0..*node 0 has probability 0.5"
    ):
        verify.greedy(tree, torch.full((2, 2), 0.5), TorchCoins(0))


def test_greedy_refuses_rows_that_are_nearly_one_hot():
    """Taken for certain, a probability of 0.999999 would be a rule that is not lossless."""
    tree = tree_of(Law.IID, [0, 1], [-1, 0])
    with pytest.raises(RefusedTree, match=r"node 0 has probability 0\.999999"):
        verify.greedy(tree, torch.tensor([[1e-6, 1 - 1e-6, 0.0]] * 2).double(), TorchCoins(0))


def test_lenience_by_hand():
    """Child 0 passes with p / (l q) = 0.25; else the output is drawn from norm([p - l q]+)."""
    target = torch.tensor([0.1, 0.5, 0.4], dtype=torch.float64)
    draft = torch.tensor([[0.8, 0.1, 0.1]], dtype=torch.float64)
    tree = TokenTree(TreeShape.chain(1), torch.tensor([0, 0]), draft, Law.IID)
    law = {}
    for weight, verdict in outcomes(lambda c: verify.lenient(tree, target.expand(2, -1), c)):
        key = verdict.path if verdict.accepted else verdict.bonus
        law[key] = law.get(key, 0.0) + weight
    assert law == pytest.approx({(0, 1): 0.25, 1: 0.75 * 0.45 / 0.8, 2: 0.75 * 0.35 / 0.8})


def test_typical_acceptance_at_its_threshold():
    """Only what is more probable than the threshold passes; of paths that are alike the first is kept."""
    rule = verify.typical.using(epsilon=0.25, delta=1.0)
    rows = torch.tensor([[0.25, 0.75, 0.0]] * 2, dtype=torch.float64)
    for token, path in ((0, (0,)), (1, (0, 1)), (2, (0,))):
        assert rule(tree_of(Law.IID, [0, token], [-1, 0]), rows, TorchCoins(0)).path == path
    rows = torch.tensor([[0.0, 0.5, 0.5]] * 3, dtype=torch.float64)
    for tokens in ([0, 1, 2], [0, 2, 1]):
        assert rule(tree_of(Law.IID, tokens, [-1, 0, 0]), rows, TorchCoins(0)).path == (0, 1)


def acceptance(rule, law, tokens, probs, draft):
    """P(some child accepted) at the root of a tree of depth one, given the drafted tokens."""
    shape = TreeShape.expansion([len(tokens)])
    tree = TokenTree(shape, torch.tensor([0, *tokens]), draft[None], law)
    rows = probs.expand(shape.size, -1)
    return sum(w for w, v in outcomes(lambda coins: rule(tree, rows, coins)) if v.accepted)


def test_acceptance_by_hand():
    p, q = (torch.tensor(x, dtype=torch.float64) for x in ([0.5, 0.3, 0.2], [0.2, 0.6, 0.2]))
    assert acceptance(verify.chain, Law.IID, [1], p, q) == pytest.approx(0.5)
    assert acceptance(verify.rrs, Law.IID, [1, 1], p, q) == pytest.approx(0.5)
    assert acceptance(verify.rrs, Law.IID, [1, 0], p, q) == pytest.approx(1.0)
    # After token 1 is rejected p becomes (1, 0, 0) and q becomes (0.5, 0, 0.5).
    assert acceptance(verify.rrsw, Law.WITHOUT_REPLACEMENT, [1, 2], p, q) == pytest.approx(0.5)
    assert acceptance(verify.naive, Law.IID, [1, 2], p, q) == pytest.approx(0.5)
    assert acceptance(verify.onehot, Law.DETERMINISTIC, [1, 2], p, q) == pytest.approx(0.5)


@given(st.integers(0, 10_000))
def test_rrsw_accepts_always_when_children_cover_the_support(seed):
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.rand(2, 4, generator=generator, dtype=torch.float64)
    p[3] = 0
    p, q = p / p.sum(), q / q.sum()
    order = torch.randperm(4, generator=generator).tolist()
    tokens = order[: max(order.index(t) for t in range(3)) + 1]
    assert acceptance(verify.rrsw, Law.WITHOUT_REPLACEMENT, tokens, p, q) == pytest.approx(1.0)


@given(st.integers(0, 10_000))
def test_single_child_acceptance_is_one_minus_total_variation(seed):
    p, q = torch.rand(2, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    p, q = p / p.sum(), q / q.sum()
    expected = float(torch.minimum(p, q).sum())
    cases = [(verify.chain, Law.IID), (verify.rrs, Law.IID), (verify.rrsw, Law.WITHOUT_REPLACEMENT)]
    for rule, law in cases:
        mean = sum(float(q[x]) * acceptance(rule, law, [x], p, q) for x in range(5))
        assert mean == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rule", "law", "covered"),
    [
        (verify.rrs, Law.DETERMINISTIC, "iid"),
        (verify.rrs, Law.WITHOUT_REPLACEMENT, "iid"),
        (verify.rrsw, Law.IID, "without_replacement"),
        (verify.onehot, Law.IID, "deterministic"),
        (verify.chain, Law.DETERMINISTIC, "iid, without_replacement"),
    ],
    ids=str,
)
def test_a_law_that_a_rule_does_not_cover(rule, law, covered):
    tree = tree_of(law, [0, 1], [-1, 0])
    with pytest.raises(RefusedTree, match=f"'{rule}'.*drawn {law}.*for {covered} only"):
        rule(tree, torch.full((2, 3), 1 / 3), TorchCoins(0))


def test_shapes_that_a_rule_does_not_cover():
    rows = torch.full((3, 3), 1 / 3)
    with pytest.raises(RefusedTree, match="'chain' needs a chain"):
        verify.chain(tree_of(Law.IID, [0, 1, 2], [-1, 0, 0]), rows, TorchCoins(0))
    with pytest.raises(RefusedTree, match=r"'onehot' needs distinct children.*node 0.*\[1, 1\]"):
        verify.onehot(tree_of(Law.DETERMINISTIC, [0, 1, 1], [-1, 0, 0]), rows, TorchCoins(0))


@pytest.mark.parametrize("rule", SAMPLING, ids=str)
def test_rules_change_nothing_that_they_are_given(rule):
    law = sorted(rule.laws, key=str)[0]
    tree = tree_of(law, [0, 1, 2], [-1, 0, 1])
    rows = Sampling()(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))
    before = (rows.clone(), tree.tokens.clone(), tree.draft_probs.clone())
    for seed in range(50):
        rule(tree, rows, TorchCoins(seed))
    for now, then in zip((rows, tree.tokens, tree.draft_probs), before, strict=True):
        assert torch.equal(now, then)


def test_rules_visit_only_the_nodes_on_their_way():
    class Watched:
        def __init__(self, rows):
            self.rows, self.asked = rows, set()

        def __getitem__(self, node):
            self.asked.add(node)
            return self.rows[node]

    tree = tree_of(Law.IID, [0, *[1, 2] * 7], [-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6])
    for rule in (verify.rrs, verify.naive):
        rows = Watched(torch.full((15, 3), 1 / 3, dtype=torch.float64))
        verdict = rule(tree, rows, TorchCoins(3))
        assert rows.asked == set(verdict.path)


def test_a_residual_without_mass_keeps_the_target():
    """p and q differ by rounding only, and the coin falls on the wrong side."""

    class AlwaysReject(TorchCoins):
        def accept(self, probability):
            return False

    p = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    for rule, law in (
        (verify.rrs, Law.IID),
        (verify.rrsw, Law.WITHOUT_REPLACEMENT),
        (verify.chain, Law.IID),
    ):
        tree = TokenTree(TreeShape.chain(1), torch.tensor([0, 1]), p[None], law)
        assert rule(tree, p.expand(2, -1), AlwaysReject(0)).bonus in (0, 1)
    sure = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    tree = tree_of(Law.DETERMINISTIC, [0, 0], [-1, 0])
    assert verify.onehot(tree, sure.expand(2, -1), AlwaysReject(0)).bonus == 0


def test_rules_say_what_they_are():
    lossy = {"typical", "lenient"}
    assert {name for name, rule in verify.RULES.items() if not rule.lossless} == lossy
    for name, rule in verify.RULES.items():
        assert getattr(verify, name) is rule
        assert rule.reference.startswith("arXiv:")
        assert rule.reference.removeprefix("arXiv:") in rule.__doc__


def test_settings_of_a_rule():
    strict = verify.typical.using(epsilon=0.5)
    assert strict.settings == {"epsilon": 0.5, "delta": 0.3}
    assert verify.typical.settings == {"epsilon": 0.09, "delta": 0.3}
    assert pickle.loads(pickle.dumps(strict)).settings == strict.settings
    assert pickle.loads(pickle.dumps(verify.typical)) is verify.typical
    assert "epsilon=0.5" in repr(strict)
    with pytest.raises(
        InvalidSetting, match=r"'typical' has no setting 'eps' .settings: epsilon, de"
    ):
        verify.typical.using(eps=0.5)
    with pytest.raises(InvalidSetting, match=r"lenience = 2 .*must be in .0, 1."):
        verify.lenient.using(lenience=2)
    with pytest.raises(InvalidSetting, match="settings: none"):
        verify.rrs.using(lenience=0.5)


def test_typical_acceptance_by_hand():
    """Node 1 passes the threshold, node 2 does not; node 3 below it is never looked at."""
    probs = torch.tensor([[0.6, 0.35, 0.05], [0.3, 0.3, 0.4], [0.2, 0.2, 0.6], [0.0, 1.0, 0.0]])
    tree = tree_of(Law.IID, [0, 0, 2, 1], [-1, 0, 0, 2])
    assert verify.typical(tree, probs, TorchCoins(0)).path == (0, 1)
    tree = tree_of(Law.IID, [0, 0, 1, 1], [-1, 0, 0, 2])
    assert verify.typical(tree, probs, TorchCoins(0)).path == (0, 2, 3)  # the longer path
    tree = tree_of(Law.IID, [0, 1, 0], [-1, 0, 0])
    assert verify.typical(tree, probs, TorchCoins(0)).path == (0, 2)  # the likelier of two
    sure = verify.typical.using(epsilon=1.0, delta=1.0)  # the threshold is exp(-H), about 0.45
    assert sure(tree_of(Law.IID, [0, 1], [-1, 0]), probs, TorchCoins(0)).path == (0,)
    assert sure(tree_of(Law.IID, [0, 0], [-1, 0]), probs, TorchCoins(0)).path == (0, 1)


def test_a_pair_without_the_hub_is_refused():
    rows = torch.tensor([[0.1, 0.6, 0.3]])
    tree = TokenTree(TreeShape.expansion([2]), torch.tensor([0, 0, 2]), rows, Law.HUB)
    with pytest.raises(RefusedTree, match=r"node 0.*\[0, 2\].*most probable token, 1"):
        verify.spechub(tree, rows.expand(3, -1), TorchCoins(0))


def test_nothing_enumerated_is_no_proof():
    with pytest.raises(NotLossless, match="nothing was enumerated"):
        assert_lossless(verify.chain, shapes=[TreeShape.kary(2, 2)])
    with pytest.raises(NotLossless, match="nothing was enumerated"):
        assert_lossless(verify.rrs, shapes=[])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rule", SAMPLING, ids=str)
def test_rows_of_every_floating_point_dtype(rule, dtype):
    law = sorted(rule.laws, key=str)[0]
    tree = tree_of(law, [0, 1, 2], [-1, 0, 1])
    rows = torch.tensor([0.5, 0.25, 0.25]).expand(3, -1)
    halved = TokenTree(tree.shape, tree.tokens, tree.draft_probs.to(dtype), law)
    for seed in range(10):
        assert rule(halved, rows.to(dtype), TorchCoins(seed)).bonus in range(3)


REJECTING = [rule for rule in SAMPLING if str(rule) not in ("naive", "onehot", "typical")]


@pytest.mark.parametrize("rule", REJECTING, ids=str)
def test_rows_over_different_vocabularies_are_refused(rule):
    law = sorted(rule.laws, key=str)[0]
    tree = tree_of(law, [0, 1, 2], [-1, 0, 1], vocab=5)
    for seed in range(5):
        with pytest.raises(RefusedTree, match="node 0 has 5 tokens, the target's has 4"):
            rule(tree, torch.full((3, 4), 0.25), TorchCoins(seed))


@pytest.mark.parametrize("rule", [r for r in SAMPLING if str(r) != "onehot"], ids=str)
def test_no_token_comes_from_rows_that_hold_nan(rule):
    law = sorted(rule.laws, key=str)[0]
    tree = tree_of(law, [0, 1], [-1, 0])
    rows = torch.tensor([[0.3, torch.nan, 0.4], [0.2, 0.3, 0.5]])
    for seed in range(10):
        with pytest.raises((NotADistribution, RefusedTree)):
            rule(tree, rows, TorchCoins(seed))


@pytest.mark.parametrize("rule", [r for r in SAMPLING if str(r) != "onehot"], ids=str)
def test_nor_from_such_rows_below_the_root(rule):
    """Node 1 is accepted for sure, so its row is visited: that its child's mass is NaN is no rejection."""
    tree = tree_of(sorted(rule.laws, key=str)[0], [0, 1, 1, 1], [-1, 0, 1, 2])
    rows = torch.tensor([[0.0, 1.0, 0.0]]).repeat(4, 1)
    rows[1, 1] = torch.nan
    for seed in range(5):
        with pytest.raises((NotADistribution, RefusedTree)):
            rule(tree, rows, TorchCoins(seed))


def test_the_other_child_of_a_nearly_sure_hub_counts():
    """The hub is drawn for all but 2e-8; what is beside it is accepted as often as it can be."""
    p, q = (torch.tensor(row, dtype=torch.float64) for row in SMALL["a draft that is nearly sure"])
    accepted = 0.0
    for weight, tokens in outcomes(lambda coins: coins.draw_many(q[None], 2, Law.HUB)[0].tolist()):
        tree = TokenTree(TreeShape.expansion([2]), torch.tensor([0, *tokens]), q[None], Law.HUB)
        found = outcomes(lambda coins, t=tree: verify.spechub(t, p.expand(3, -1), coins))
        accepted += weight * sum(chance for chance, verdict in found if verdict.accepted)
    assert accepted == pytest.approx(verify.optimal_acceptance(p, q, 2, Law.HUB), abs=1e-12)
    assert accepted > 0.8


def test_a_pair_that_the_hub_law_does_not_give_is_refused():
    rows = torch.tensor([[0.6, 0.4, 0.0]])
    tree = TokenTree(TreeShape.expansion([2]), torch.tensor([0, 0, 2]), rows, Law.HUB)
    with pytest.raises(RefusedTree, match="token 2 cannot have been drawn beside the hub 0"):
        verify.spechub(tree, rows.expand(3, -1), TorchCoins(0))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("rule", [verify.gbv, verify.traversal], ids=str)
def test_paths_of_three_levels(rule):
    """What lies below the kept prefix adds up over levels, which shows from the third on."""
    proof = assert_lossless(rule, shapes=[TreeShape.independent_chains(2, 3)], vocab=2, tables=3)
    assert proof.cases >= 18
