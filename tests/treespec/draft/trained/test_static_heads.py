"""Trees that heads draft over fixed memory against drafting by levels, and as one tape.

Whether a kernel is interpreted is decided when Triton is imported, so this file runs itself in a process
with TRITON_INTERPRET=1 (`test_through_the_interpreter`).
"""

import os

import pytest
import torch
from drafted_texts import COLD, SHAPES, WARM, require_equal, rows, static
from head_formats import FORMATS, head_of, target
from heads.files import HIDDEN
from taped_passes import taped

from treespec import Law, Sampling, TorchCoins, decode, verify
from treespec.draft.static_draft import static_kind
from treespec.errors import UnsupportedModel
from treespec.models.passes.static_trial import NoHostReads, require_joined, require_static
from treespec.sampling import children
from treespec.step import Scores, Step, Verdict
from treespec.target import ModelTarget
from treespec.tree.unread_tree import UnreadTree

__all__ = ["taped"]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="see test_through_the_interpreter")
plain = pytest.mark.skipif(INTERPRETED, reason="runs in the process outside")

STEPS = ((2, 0), (9, -1), (30, 1), (4, 2), (6, 0))
"""Of each step the bonus and how deep its accepted path is; -1 for a whole path."""


@pytest.fixture(autouse=True)
def _quick(request):
    if INTERPRETED:
        request.getfixturevalue("quick_interpreter")


def texts(name, head, shape, law, sampling, seed=3, prompt=(5, 1, 7, 22)):
    """Consecutive trees, how many committed tokens each had to run, the cache and the next coin."""
    drafter, coins = FORMATS[name].drafter(head, shape, law, sampling), TorchCoins(seed)
    random = torch.Generator().manual_seed(seed)
    width = len(head.contract.reads.states)

    def features(rows):
        return torch.randn(rows, width, HIDDEN, generator=random)

    drafter.prefill(torch.tensor(prompt), features(len(prompt) - 1))
    trees, committed = [], []
    for bonus, depth in STEPS:
        committed.append(len(drafter._pending) + 1)
        tree = drafter.propose(coins)
        path = tree.shape.path(tree.shape.leaves[-1])[: None if depth < 0 else depth + 1]
        scores = Scores(torch.zeros(tree.shape.size, head.vocab_size))
        drafter.commit(Step(tree, Verdict(path, bonus), scores, (), features=features(len(path))))
        trees.append(tree)
    return trees, committed, rows(drafter.model), coins.uniform()


@interpreted
@pytest.mark.parametrize(
    ("name", "shape", "law", "sampling"),
    [
        ("eagle", "chain", Law.DETERMINISTIC, COLD),
        ("eagle", "expansion", Law.WITHOUT_REPLACEMENT, WARM),
        ("eagle", "random", Law.IID, Sampling(0.7, top_p=0.9)),
        ("eagle3", "chain", Law.IID, WARM),
        ("eagle3", "expansion", Law.DETERMINISTIC, COLD),
        ("eagle3", "random", Law.WITHOUT_REPLACEMENT, WARM),
        ("eagle3", "random", Law.WITHOUT_REPLACEMENT, COLD),
        ("eagle3, two layers", "random", Law.TOP_THEN_SAMPLE, WARM),
        ("mtp, mimo, pre", "random", Law.IID, WARM),
    ],
)
def test_ids_rows_and_coins_are_those_of_levels(name, shape, law, sampling, tmp_path):
    """After steps that accept nothing, some and all of a path."""
    head = head_of(name, tmp_path)
    given = name, SHAPES[shape], law, sampling
    ours, theirs = (texts(given[0], each, *given[1:]) for each in (static(head), head))
    assert require_equal(ours, theirs) == {1, 2, 3, 4}


@interpreted
def test_behind_a_prompt_of_one_token(tmp_path):
    """Its root has no state of the target, and its row is never kept."""
    head = head_of("eagle3", tmp_path)
    given = SHAPES["chain"], Law.IID, WARM, 3, (5,)
    require_equal(*(texts("eagle3", each, *given) for each in (static(head), head)))


@interpreted
@pytest.mark.parametrize("law", [Law.WITHOUT_REPLACEMENT, Law.DETERMINISTIC])
def test_as_one_graph(law, taped, monkeypatch, tmp_path):
    """A tape for each number of emitted tokens."""
    monkeypatch.setattr(children, "LEAST_TOKENS_FOR_TOPK", 1000)
    from treespec.models.passes.captured_runner import Places

    head = head_of("eagle3", tmp_path)
    captured = static(head, Places().copying_runner)
    for seed in (0, 1):
        given = "eagle3", SHAPES["expansion"], law, WARM, seed
        ours, theirs = (texts(given[0], each, *given[1:]) for each in (captured, head))
        assert require_equal(ours, theirs) == {1, 2, 3, 4}
    assert len(taped) == 4
    assert sum(tape.replays for tape in taped) == 2 * len(STEPS)


@interpreted
def test_the_text_of_decode(tmp_path):
    model, head = target(), head_of("eagle3", tmp_path)
    found = []
    for each in (head, static(head)):
        for law, sampling, rule in (
            (Law.WITHOUT_REPLACEMENT, WARM, verify.rrsw),
            (Law.DETERMINISTIC, COLD, verify.greedy),
        ):
            drafter = FORMATS["eagle3"].drafter(each, SHAPES["expansion"], law, sampling)
            found.append([
                step.tokens
                for step in decode(
                    ModelTarget(model), drafter, rule, torch.arange(9), sampling=sampling,
                    coins=TorchCoins(0), max_new_tokens=16,
                )
            ])  # fmt: skip
    assert found[:2] == found[2:]


@interpreted
def test_levels_and_nothing_read_on_the_host(tmp_path):
    """Passes by level in fixed memory give what ordinary ones give; a graph reads no value back."""
    head = static(head_of("eagle3", tmp_path))
    head.give(torch.randn(2, head.state_width), anew=True)
    head.prefill(torch.tensor([5, 1]))
    kind = static_kind(head, SHAPES["random"], Law.IID, WARM, TorchCoins(0), 1)
    assert kind.kept is None
    work = head.repeats.work(kind)
    work.load([7], TorchCoins(0).uniforms(kind.uniforms), head.states_of(1))
    with NoHostReads():
        work.run()


@interpreted
def test_tokens_below_the_root_are_left_to_levels(tmp_path):
    """What is drafted below tokens that are not committed has no states of the target."""
    head = head_of("eagle3", tmp_path)
    found = []
    for each in (head, static(head)):
        drafter = FORMATS["eagle3"].drafter(each, SHAPES["expansion"], Law.DETERMINISTIC, COLD)
        drafter.prefill(torch.tensor([5, 1, 7]), torch.ones(2, 3, HIDDEN))
        tree = drafter.propose_below([4, 9], TorchCoins(0))
        assert not isinstance(tree, UnreadTree)
        found.append(tree.token_ids)
    assert found[0] == found[1]


@interpreted
@pytest.mark.parametrize("name", ["eagle", "eagle3", "mtp, mimo, pre"])
def test_the_trial_passes_heads_and_refuses_wrong_states(name, tmp_path, monkeypatch):
    head = head_of(name, tmp_path)
    require_static(head)
    with pytest.raises(UnsupportedModel, match="reads states beside its tokens"):
        require_joined(head.model, head.finding.route, head.finding.layout)
    from treespec.models.passes import static_pass

    monkeypatch.setattr(static_pass, "states_or_stand_ins", lambda net, states, tokens: 0.0)
    with pytest.raises(UnsupportedModel, match="pass in fixed memory differ"):
        require_static(head)


@interpreted
def test_a_head_whose_trees_are_masks_is_refused(tmp_path):
    with pytest.raises(UnsupportedModel, match="their pass cannot be captured"):
        require_static(head_of("mtp, deepseek", tmp_path))


@plain
def test_through_the_interpreter(interpret):
    assert "failed" not in interpret(__file__)
