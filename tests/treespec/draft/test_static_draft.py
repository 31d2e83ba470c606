"""Whole trees drafted over fixed memory against drafting by levels, and as one tape (`taped_passes.Tape`).

Whether a kernel is interpreted is decided when Triton is imported, so this file runs itself in a process
with TRITON_INTERPRET=1 (`test_through_the_interpreter`).
"""

import os
import pickle

import pytest
import torch
from drafted_texts import COLD, SHAPES, WARM, require_equal, rows, static

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, verify
from treespec.draft import ModelDrafter
from treespec.draft.static_draft import static_kind
from treespec.errors import NonFiniteLogits
from treespec.models.pass_kinds import Passes
from treespec.models.passes.static_trial import NoHostReads
from treespec.models.some_tokens import SomeTokens
from treespec.models.waiting import WAIT
from treespec.sampling import children
from treespec.step import Scores, Step, Verdict
from treespec.target import ModelTarget
from treespec.tree.unread_tree import UnreadTree

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="see test_through_the_interpreter")
plain = pytest.mark.skipif(INTERPRETED, reason="runs in the process outside")


@pytest.fixture(autouse=True)
def _quick(request):
    if INTERPRETED:
        request.getfixturevalue("quick_interpreter")


def texts(model, shape, law, sampling, seed, wrapped=lambda propose: propose()):
    """Consecutive trees, of each of which the path to some node is accepted, and the cache after them."""
    drafter, coins = ModelDrafter(model, shape, law, sampling), TorchCoins(seed)
    drafter.prefill(torch.tensor([5, 1, 7]))
    trees, pending = [], []
    for bonus, leaf in ((2, -1), (9, 0), (30, -1), (4, -2)):
        tree = wrapped(lambda: drafter.propose(coins))
        pending.append(len(drafter._pending))
        path = tree.shape.path((0, *tree.shape.leaves)[leaf])
        scores = Scores(torch.zeros(tree.shape.size, 96))
        drafter.commit(Step(tree, Verdict(path, bonus), scores, ()))
        trees.append(tree)
    return trees, pending, rows(drafter.model), coins.uniform()


@interpreted
@pytest.mark.parametrize(
    ("name", "law", "sampling"),
    [
        ("chain", Law.DETERMINISTIC, COLD),
        ("chain", Law.IID, Sampling(0.7, top_p=0.9)),
        ("expansion", Law.DETERMINISTIC, COLD),
        ("expansion", Law.WITHOUT_REPLACEMENT, WARM),
        ("random", Law.DETERMINISTIC, WARM),
        ("random", Law.IID, WARM),
        ("random", Law.WITHOUT_REPLACEMENT, Sampling(0.7, top_p=0.9)),
        ("random", Law.WITHOUT_REPLACEMENT, COLD),
        ("random", Law.TOP_THEN_SAMPLE, WARM),
        ("random", Law.TOP_THEN_SAMPLE, Sampling(0.7, top_k=20, min_p=0.01)),
        ("pairs", Law.HUB, Sampling(eta_cutoff=0.01)),
    ],
)
def test_ids_rows_and_coins_are_those_of_levels(name, law, sampling, make_model):
    """With 0 and 1 pending tokens above the root."""
    model, shape = make_model(), SHAPES[name]
    ours, theirs = (texts(each, shape, law, sampling, 3) for each in (static(model), model))
    assert require_equal(ours, theirs) == {0, 1}


@interpreted
@pytest.mark.parametrize("law", [Law.IID, Law.WITHOUT_REPLACEMENT, Law.DETERMINISTIC])
def test_as_one_graph(law, make_model, taped, monkeypatch):
    """A tape for each number of pending tokens, which is all that is run again."""
    monkeypatch.setattr(
        children, "LEAST_TOKENS_FOR_TOPK", 1000
    )  # numpy leaves no operation on the tape
    from treespec.models.passes.captured_runner import Places

    model, shape = make_model(), TreeShape.expansion([2, 1, 1])
    captured = model.fresh()
    captured.run_by(Places().copying_runner, Passes("captured"))
    for seed in (0, 1):
        ours, theirs = (texts(m, shape, law, WARM, seed) for m in (captured, model))
        require_equal(ours, theirs)
    assert len(taped) == 2
    assert sum(tape.replays for tape in taped) == 8


@interpreted
def test_nothing_is_read_on_the_host(make_model):
    model, shape = static(make_model()), TreeShape.expansion([3, 2])
    drafter = ModelDrafter(model, shape, Law.TOP_THEN_SAMPLE, WARM)
    drafter.prefill(torch.tensor([5, 1, 7]))
    kind = drafter._static_kind(shape, TorchCoins(0), 1)
    work = drafter.model.repeats.work(kind)
    work.load([7], TorchCoins(0).uniforms(kind.uniforms))
    work.run()
    # On a CPU three shortcuts read numbers, which a device must not: they stand in `is_cpu` branches.
    from far_away import FarAway

    with FarAway() as watch:
        work.run()
    assert watch.reads == []
    with NoHostReads(), FarAway():
        work.run()


@interpreted
def test_logits_that_are_not_finite_are_named_when_the_ids_are_read(make_model):
    model = make_model()
    with torch.no_grad():
        model.model.get_output_embeddings().weight[3] = torch.nan
    for each in (model, static(model)):
        drafter = ModelDrafter(each, TreeShape.chain(2), Law.IID, WARM)
        drafter.prefill(torch.tensor([5, 1, 7]))
        with pytest.raises(NonFiniteLogits, match=r"node 0|draft"):
            _ = drafter.propose(TorchCoins(0)).token_ids


@interpreted
def test_the_text_of_decode(make_model):
    target, draft = make_model(), make_model(seed=1)
    prompt, shape = torch.arange(12), TreeShape.expansion([3, 2, 1])
    found = []
    for each in (draft, static(draft)):
        for law, sampling, rule in (
            (Law.WITHOUT_REPLACEMENT, WARM, verify.rrsw),
            (Law.IID, WARM, verify.rrs),
            (Law.DETERMINISTIC, COLD, verify.greedy),
        ):
            drafter = ModelDrafter(each, shape, law, sampling)
            found.append([
                step.tokens
                for step in decode(
                    ModelTarget(target), drafter, rule, prompt, sampling=sampling, coins=TorchCoins(0),
                    max_new_tokens=24,
                )
            ])  # fmt: skip
    assert found[:3] == found[3:]


@interpreted
def test_a_tree_whose_ids_were_not_read_can_be_copied(make_model):
    drafter = ModelDrafter(static(make_model()), SHAPES["chain"], Law.DETERMINISTIC, COLD)
    drafter.prefill(torch.tensor([5, 1, 7]))
    tree = drafter.propose(TorchCoins(0))
    assert tree.is_unread
    copied = pickle.loads(pickle.dumps(tree))
    assert not isinstance(copied, UnreadTree)
    assert copied.token_ids == tree.token_ids


@interpreted
def test_what_is_left_to_levels(make_model):
    model = static(make_model())
    given = model, SHAPES["chain"], Law.IID, WARM, TorchCoins(0), 1
    assert static_kind(*given) is not None

    class Own(TorchCoins):
        pass

    for place, other in (
        (0, model.fresh(runner=type(make_model().runner))),
        (0, SomeTokens(model, torch.arange(96), 96)),
        (4, Own(0)),
        (5, 2100),
    ):
        assert static_kind(*(other if i == place else part for i, part in enumerate(given))) is None
    token = WAIT.set(lambda model, nodes: None)
    assert static_kind(*given) is None
    WAIT.reset(token)


@plain
def test_through_the_interpreter(interpret):
    assert "failed" not in interpret(__file__)
