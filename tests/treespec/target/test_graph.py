"""The captured target, with a tape of the pass's operations instead of a graph (`taped_passes.Tape`).

Whether a kernel is interpreted is decided when Triton is imported, so this file runs itself in a process
with TRITON_INTERPRET=1 (`test_through_the_interpreter`).
"""

import gc
import os

import pytest
import torch

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, decode, verify
from treespec.draft import ModelDrafter
from treespec.errors import StaleScores, Unavailable, UnsupportedModel
from treespec.features import Features
from treespec.models.pass_kinds import Passes
from treespec.models.passes.captured_runner import Places
from treespec.models.passes.static_pass import StaticPass
from treespec.models.passes.static_sizes import most_sizes
from treespec.step import Scores, Step, Verdict
from treespec.target import ModelTarget
from treespec.target.graph import GraphTarget

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="see test_through_the_interpreter")
plain = pytest.mark.skipif(INTERPRETED, reason="runs in the process outside")

WARM = Sampling(temperature=1.0)
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(autouse=True)
def _quick(request):
    if INTERPRETED:
        request.getfixturevalue("quick_interpreter")


def tree_of(parents, seed=0):
    shape = TreeShape(tuple(parents))
    tokens = torch.randint(96, (shape.size,), generator=torch.Generator().manual_seed(seed))
    return TokenTree(shape, tokens, None, Law.DETERMINISTIC)


def commit(target, tree, path, scores):
    target.commit(Step(tree, Verdict(path, 0), scores, ()))


def text(target, draft, shape, prompt, budget):
    """A sampled text, since the greedy text of a random model often repeats itself."""
    drafter = ModelDrafter(draft, shape, Law.WITHOUT_REPLACEMENT, WARM)
    tokens = []
    for step in decode(
        target, drafter, verify.rrsw, prompt, sampling=WARM, coins=TorchCoins(0), max_new_tokens=budget
    ):  # fmt: skip
        tokens += step.tokens
    return tokens


@interpreted
@pytest.mark.parametrize("family", ["Llama", "Mistral", "Gemma2", "Mixtral"])
def test_the_text_is_that_of_the_plain_target(family, make_model, taped):
    model, draft = make_model(family), make_model(family, seed=1)
    prompt = torch.randint(96, (20,), generator=torch.Generator().manual_seed(3))
    shape = TreeShape.expansion([3, 1])
    target = GraphTarget(model)
    tokens = text(target, draft, shape, prompt, 24)
    assert tokens == text(ModelTarget(model), draft, shape, prompt, 24)
    assert len(set(tokens)) > 8
    assert len(taped) == 1
    assert taped[0].replays >= 6


@interpreted
def test_a_replay_is_no_pass(make_model, taped, monkeypatch):
    """None of the model's Python code runs again."""
    target = GraphTarget(make_model())
    target.prefill(torch.arange(5))
    target.score(tree_of([-1, 0, 0]))
    monkeypatch.setattr(StaticPass, "run", None)
    target.score(tree_of([-1, 0, 1]))
    assert taped[0].replays == 2


@interpreted
def test_the_tape_finds_what_a_graph_would_freeze(make_model, taped, monkeypatch):
    """A planted bug: positions computed in Python."""
    model = make_model()
    target, other = GraphTarget(model), ModelTarget(model)
    run = StaticPass.run

    def frozen(self):
        length = self.cache.length
        forward = self.model.forward
        monkeypatch.setattr(
            self.model, "forward",
            lambda position_ids, **rest: forward(
                position_ids=position_ids - position_ids[:, :1] + length, **rest
            ),
        )  # fmt: skip
        try:
            return run(self)
        finally:
            monkeypatch.setattr(self.model, "forward", forward)

    monkeypatch.setattr(StaticPass, "run", frozen)
    tree = tree_of([-1, 0, 0, 1])
    distances = []
    for scorer in (target, other):
        scorer.prefill(torch.arange(8))
    for _ in range(2):
        scores, expected = target.score(tree), other.score(tree)
        distances.append(float((scores.logits - expected.logits).abs().max()))
        commit(target, tree, (0, 1), scores)
        commit(other, tree, (0, 1), expected)
    assert distances[0] < 1e-4
    assert distances[1] > 1e-2


@interpreted
@pytest.mark.parametrize("reserved", [False, True])
def test_buckets_and_growth(reserved, make_model, taped):
    """Each bucket is captured once, and again if the cache moves, which `reserve` prevents."""
    model = make_model()
    if reserved:
        model.reserve(320)
    target, other = GraphTarget(model), ModelTarget(model)
    prompt = torch.randint(96, (246,), generator=torch.Generator().manual_seed(4))
    captures = []
    for scorer in (target, other):
        scorer.prefill(prompt)
    for size in (3, 1, 4, 2, 6, 3, 1):
        tree = tree_of(range(-1, size - 1), seed=size)
        scores, expected = target.score(tree), other.score(tree)
        torch.testing.assert_close(scores.logits, expected.logits, **CLOSE)
        path = tuple(range(size))
        commit(target, tree, path, scores)
        commit(other, tree, path, expected)
        captures.append(len(taped))
    # 246 rows and a bucket of 4; 249; 250 and 4; 254 and 2; 256 and 8: grows; then what is new there.
    assert captures == ([1, 2, 2, 3, 4, 4, 4] if reserved else [1, 2, 2, 3, 4, 5, 6])


@interpreted
def test_graphs_are_no_more_than_sizes(make_model, taped):
    target = GraphTarget(make_model())
    target.prefill(torch.arange(5))
    for size in (1, 3, 2, 7, 5, 12, 16, 9, 4, 6):
        target.score(tree_of(range(-1, size - 1), seed=size))
    assert len(taped) == len(target._runner.place.graphs) == most_sizes(16) == 5


@interpreted
def test_logits_are_lent(make_model, taped):
    target = GraphTarget(make_model())
    target.prefill(torch.arange(5))
    tree = tree_of([-1, 0, 0])
    first = target.score(tree)
    kept = first.logits.clone()
    assert "LentScores(tensor" in repr(first)
    commit(target, tree, (0, 1), first)
    assert torch.equal(first.logits, kept)
    second = target.score(tree)
    with pytest.raises(StaleScores, match=r"logits\.clone\(\)"):
        _ = first.logits
    assert repr(first) == "LentScores(overwritten)"
    assert first.features is None
    assert not torch.equal(second.logits, kept)
    with pytest.raises(AttributeError):
        _ = second.nothing


class Reader(ModelDrafter):
    """Remembers the features of the text that it was given."""

    reads = Features((1, 0), "post")

    def prefill(self, tokens, features):
        super().prefill(tokens)
        self.text, self.seen = tokens.tolist(), [features]

    def commit(self, step):
        super().commit(step)
        self.text += step.emitted_ids
        self.seen.append(step.features)


@interpreted
def test_features_are_lent_and_those_of_the_text_are_copies(make_model, taped):
    """Graphs with and without features are apart, and each is reused."""
    model = make_model()
    prompt = torch.arange(5)
    drafter = Reader(make_model(seed=1), TreeShape.expansion([2, 1]), Law.WITHOUT_REPLACEMENT, WARM)
    for _ in range(2):
        target = GraphTarget(model)
        steps = list(decode(
            target, drafter, verify.rrsw, prompt, sampling=WARM, coins=TorchCoins(0), max_new_tokens=12
        ))  # fmt: skip
        assert len(taped) == 1
        with pytest.raises(StaleScores, match=r"features of this step.*features\.clone\(\)"):
            _ = steps[0].scores.features
        ordinary = model.fresh()
        ordinary.lend(drafter.reads)
        expected = ordinary.prefill(torch.tensor(drafter.text[:-1]))
        torch.testing.assert_close(torch.cat(drafter.seen), expected, **CLOSE)
        del target, steps
    target = GraphTarget(model)
    target.prefill(prompt)
    assert target.score(tree_of([-1, 0, 0, 1, 2])).features is None  # a tree of the same size
    assert len(taped) == 2


@interpreted
def test_what_other_readers_needed_is_captured_before_the_text(make_model, taped):
    model, tree = make_model(), tree_of([-1, 0, 0])
    model.reserve(300)
    first, captures = GraphTarget(model), []
    for target in (first, GraphTarget(model), GraphTarget(model)):
        target.lend(Features((1,)))
        captures.append(len(taped))
        target.prefill(torch.arange(5))
        assert target.score(tree).features.shape == (3, 1, 32)
    assert captures == [0, 2, 3]
    assert len(taped) == 3


@interpreted
def test_graphs_outlive_their_target(make_model, taped):
    """One target per prompt captures once; targets side by side have caches of their own."""
    model = make_model()
    tree = tree_of([-1, 0, 0])
    expected = ModelTarget(model)
    expected.prefill(torch.arange(5))
    logits = expected.score(tree).logits
    scores = None
    for _ in range(3):
        target = GraphTarget(model)
        target.prefill(torch.arange(5))
        before, scores = scores, target.score(tree)
        torch.testing.assert_close(scores.logits, logits, **CLOSE)
        if before is not None:
            with pytest.raises(StaleScores):
                _ = before.logits
        del target
    assert len(taped) == 1
    one, two = GraphTarget(model), GraphTarget(model)
    one.prefill(torch.arange(5))
    two.prefill(torch.arange(9))
    of_one, of_two = one.score(tree), two.score(tree)
    assert len(taped) == 2
    torch.testing.assert_close(of_one.logits, logits, **CLOSE)
    assert not torch.allclose(of_two.logits, logits, atol=0.1)


@interpreted
def test_what_other_methods_needed_is_captured_before_the_text(make_model, taped):
    """Methods in turns have places of their own, and get others for the next text."""
    model = make_model()
    small, large = tree_of([-1, 0]), tree_of([-1, 0, 0, 1, 1])
    model.reserve(300)
    first, second = GraphTarget(model), GraphTarget(model)
    for target, tree in ((first, small), (second, large)):
        target.prefill(torch.arange(5))
        target.score(tree)
    expected = ModelTarget(model)
    expected.prefill(torch.arange(9))
    logits = expected.score(large).logits
    del first, second, target
    with model.as_transformers():
        GraphTarget(model)  # the wrong attention is not captured
    assert len(taped) == 2
    for _ in range(2):
        targets = [GraphTarget(model) for _ in range(3)]  # the third place is new
        assert len(taped) == 6  # two sizes at three places
        for target in targets:
            target.prefill(torch.arange(9))
            torch.testing.assert_close(target.score(large).logits, logits, **CLOSE)
            target.score(small)
        assert len(taped) == 6
        del targets, target
    model.reserve(600)  # other texts, which may need other sizes
    target = GraphTarget(model)
    target.prefill(torch.arange(9))
    torch.testing.assert_close(target.score(large).logits, logits, **CLOSE)
    assert len(taped) == 7


@interpreted
def test_nothing_is_kept_of_a_model_that_is_gone(make_model, taped):
    from treespec.target import graph

    gc.collect()
    before = len(graph._PLACES)
    model = make_model()
    target = GraphTarget(model)
    assert len(graph._PLACES) == before + 1
    del model, target
    gc.collect()
    assert len(graph._PLACES) == before


@interpreted
@pytest.mark.parametrize("family", ["Llama", "Gemma2"])
@pytest.mark.parametrize("law", [Law.WITHOUT_REPLACEMENT, Law.DETERMINISTIC])
def test_a_captured_draft(family, law, make_model, taped, monkeypatch):
    """The draft's trees equal those of the eager draft, and graphs outlive their drafter."""
    # On a CPU numpy finds the best token, which leaves no operation on the tape.
    monkeypatch.setattr("treespec.sampling.children.LEAST_TOKENS_FOR_TOPK", 1000)
    draft = make_model(family, seed=1)
    plain = draft.fresh()
    monkeypatch.setattr(Places, "_give", _counted(made := [], Places._give))
    draft.run_by(Places().copying_runner, Passes("captured"))
    prompt = torch.randint(96, (20,), generator=torch.Generator().manual_seed(3))
    captures = []
    for _ in range(2):
        trees = []
        for model in (plain, draft):
            drafter = ModelDrafter(model, TreeShape.expansion([3, 2, 1]), law, WARM)
            drafter.prefill(prompt)
            coins, drafted = TorchCoins(0), []
            for _ in range(
                3
            ):  # the accepted leaf opens the next tree: another part of another size
                tree = drafter.propose(coins)
                path = tree.shape.path(tree.shape.leaves[-1])
                drafter.commit(
                    Step(tree, Verdict(path, 7), Scores(torch.zeros(tree.shape.size, 96)), ())
                )
                drafted.append(tree)
            trees.append(drafted)
        for eager, captured in zip(*trees, strict=True):
            assert eager.token_ids == captured.token_ids
            torch.testing.assert_close(eager.draft_probs, captured.draft_probs, **CLOSE)
        del drafter, tree
        captures.append(len(taped))
    assert captures[0] == captures[1] == 2  # without and with a pending token
    assert sum(tape.replays for tape in taped) == 6  # three trees, twice
    of_the_model, *of_drafters = made
    assert of_drafters == [of_drafters[0]] * 2 != [of_the_model] * 2


@interpreted
def test_what_a_draft_needed_is_captured_before_the_text(make_model, taped):
    """A tree's graph, by drafters of texts with the same reservation."""
    draft = make_model(seed=1)
    plain = draft.fresh()
    draft.run_by(Places().copying_runner, Passes("captured"))
    draft.reserve(300)
    prompt = torch.randint(96, (20,), generator=torch.Generator().manual_seed(3))
    drafted, captures, others = [], [], []
    for model in (plain, draft, draft, draft):
        drafter = ModelDrafter(model, TreeShape.expansion([3, 2, 1]), Law.WITHOUT_REPLACEMENT, WARM)
        captures.append(len(taped))
        drafter.prefill(prompt)
        drafted.append(drafter.propose(TorchCoins(0)))
        others.append(drafter)  # each draft has a place of its own
    sizes = len(taped) // 3
    assert captures == [0, 0, 2 * sizes, 3 * sizes]  # counted after a drafter is made
    assert len(taped) == 3 * sizes == 3
    for tree in drafted[1:]:
        assert tree.token_ids == drafted[0].token_ids
        torch.testing.assert_close(tree.draft_probs, drafted[0].draft_probs, **CLOSE)


@interpreted
def test_logits_of_a_captured_draft_are_kept(make_model, taped):
    """Growths reuse logits of earlier levels."""
    model = make_model()
    model.run_by(Places().copying_runner, Passes("captured"))
    model.prefill(torch.arange(5))
    model.run(torch.tensor([7, 8, 9]), (-1, 0, 0))
    first = model.run(torch.tensor([10]), (-1, 0, 0, 1), 3).logits
    kept = first.clone()
    second = model.run(torch.tensor([11]), (-1, 0, 0, 1, 2), 4).logits
    assert torch.equal(first, kept)
    assert not torch.allclose(second, kept, atol=0.1)


def _counted(made, give):
    """Records the place of each runner."""

    def giving(self, *args):
        runner = give(self, *args)
        made.append(id(runner.place))
        return runner

    return giving


@interpreted
def test_models_that_cannot_be_captured(make_model, taped):
    for family, options, reason in (
        ("StableLm", {}, "as a mask through their own attention"),
        ("Llama", {"attention": "reference"}, "attention='reference'"),
    ):
        model = make_model(family, **options)
        for _ in range(2):  # refused the second time too
            with pytest.raises(UnsupportedModel, match=reason):
                GraphTarget(model)


@plain
def test_without_a_cuda_device(make_model):
    with pytest.raises(
        Unavailable, match=r"needs a CUDA device, but the model is on cpu.*ModelTarget"
    ):
        GraphTarget(make_model())


@plain
@pytest.mark.slow
def test_through_the_interpreter(interpret):
    interpret(__file__)
