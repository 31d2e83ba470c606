"""The first layers of a model in the model's own cache: the rows they run and store, and their drafts."""

from collections import Counter
from itertools import zip_longest

import pytest
import torch

from treespec import Law, Sampling, TorchCoins, TreeShape, decode
from treespec.draft import Cascade, EarlyExit, LayerSkip, Merge, ModelDrafter, PromptLookup
from treespec.errors import InvalidTree
from treespec.models.cache import TreeCache
from treespec.models.cache_view import CacheView
from treespec.models.passes.static_pass import StaticRunner
from treespec.models.transformers_model import TransformersModel
from treespec.target import ModelTarget
from treespec.testing.enumerating_coins import outcomes
from treespec.verify import greedy, rrsw

COLD, BEST = Sampling(temperature=0.0), Law.DETERMINISTIC
SHAPE = TreeShape.expansion([3, 2, 1])
LAYERS = 3


@pytest.fixture
def target(load):
    """A model whose last layer changes little, so that drafts made without it are accepted."""
    model = load("llama", num_hidden_layers=LAYERS)
    with torch.no_grad():
        for part in (model.model.layers[-1].self_attn.o_proj, model.model.layers[-1].mlp.down_proj):
            part.weight *= 0.2
    return TransformersModel(model)


def steps_of(target, drafter, prompt, new=24, coins=None, sampling=COLD, rule=greedy):
    scores = target if isinstance(target, ModelTarget) else ModelTarget(target)
    return list(decode(
        scores, drafter, rule, prompt, sampling=sampling, coins=coins or TorchCoins(0),
        max_new_tokens=new,
    ))  # fmt: skip


class Unbound(EarlyExit):
    """A drafter that always has a cache of its own."""

    def bind_target(self, target):
        """Ignore the target."""


def rows_run(target, drafter, prompt):
    """Number of rows that went through each layer, and the steps."""
    rows, hooks = Counter(), []
    for i, layer in enumerate(target.model.model.layers):

        def look(module, given, output, i=i):
            rows[i] += (output[0] if isinstance(output, tuple) else output).shape[-2]

        hooks.append(layer.register_forward_hook(look))
    try:
        steps = steps_of(target, drafter, prompt)
    finally:
        for hook in hooks:
            hook.remove()
    return rows, steps


def stored(cache: TreeCache) -> int:
    """Bytes that the cache itself allocates."""
    tensors = (rows for pool in cache._pools for rows in (pool.keys, pool.values))
    return sum(rows.nbytes for rows in tensors if rows is not None)


def test_layers_run_and_bytes_stored(target, prompt):
    """Committed tokens go through the first layers only once, in the target's passes."""
    inner = sum(1 for children in SHAPE.children if children)
    before = len(prompt) - 1
    for kind in (EarlyExit, Unbound):
        drafter = kind(target, 2, SHAPE, BEST, COLD)
        rows, steps = rows_run(target, drafter, prompt)
        verified = before + SHAPE.size * len(steps)
        drafted = [rows[i] - verified for i in range(LAYERS)]
        accepted = [step.verdict.accepted for step in steps]
        pending = sum(n == SHAPE.depth for n in accepted[:-1])  # an accepted leaf was never run
        if kind is EarlyExit:
            assert drafted == [inner * len(steps), inner * len(steps), 0]
            assert (
                stored(drafter.model.runner.cache)
                == stored(drafter._with_own_cache.runner.cache)
                == 0
            )
        else:
            assert drafted == [before + inner * len(steps) + pending] * 2 + [0]
            assert stored(drafter.model.runner.cache) > 0
        assert sum(accepted) > 0


def test_drafts_are_those_of_a_cache_of_its_own(target, prompt):
    """Compared tree by tree, after a prompt of one token and beyond the initial capacity of a cache."""
    long = torch.cat([prompt] * 10)[:236]
    for text, sampling, law, rule in (
        (prompt[:1], COLD, BEST, greedy),
        (long, Sampling(0.7), Law.WITHOUT_REPLACEMENT, rrsw),
    ):
        shared, separate = (
            steps_of(
                target, kind(target, 2, SHAPE, law, sampling), text, 16, sampling=sampling, rule=rule
            )
            for kind in (EarlyExit, Unbound)
        )  # fmt: skip
        for left, right in zip(shared, separate, strict=True):
            assert left.tree.token_ids == right.tree.token_ids
            assert left.verdict == right.verdict
            if left.tree.draft_probs is not None:
                torch.testing.assert_close(left.tree.draft_probs, right.tree.draft_probs)


def test_what_the_target_scores_is_as_without_drafts(target, prompt):
    """The target's next pass overwrites the rows of drafts, so they leave no trace in its logits."""
    drafter = EarlyExit(target, 2, SHAPE, BEST, COLD)
    alone = target.fresh()
    alone.prefill(prompt[:-1])
    for step in steps_of(target, drafter, prompt, new=40):
        expected = alone.run(step.tree.tokens, step.tree.shape.parents).logits
        torch.testing.assert_close(step.scores.logits, expected, rtol=1e-4, atol=1e-4)
        alone.keep(step.verdict.path)


def test_the_law_of_a_text(target, prompt, without_shape_checks):
    """Every branch of drafting and acceptance over several steps, with drafts in the target's cache."""
    sampling, drafting = Sampling(top_k=2), Sampling(temperature=1.5, top_k=2)
    scores, found = ModelTarget(target), Counter()
    drafter = EarlyExit(target, 1, TreeShape.expansion([2]), Law.WITHOUT_REPLACEMENT, drafting)

    def play(coins):
        steps = steps_of(scores, drafter, prompt[:4], 2, coins, sampling, rrsw)
        return tuple(token for step in steps for token in step.tokens)

    for weight, text in outcomes(play):
        found[text] += weight
    assert drafter.reads_target
    ordinary, right = target.fresh(), {(): 1.0}
    ordinary.prefill(prompt[:3])
    for _ in range(2):
        longer = {}
        for text, chance in right.items():
            nodes = torch.tensor([int(prompt[3]), *text])
            row = sampling(ordinary.run(nodes, tuple(range(-1, len(text)))).logits[-1])
            ordinary.keep(())
            longer |= {(*text, int(t)): chance * float(row[t]) for t in row.nonzero()}
        right = longer
    assert max(right.values()) < 0.9
    assert found == pytest.approx(right, abs=1e-5)


def test_memory_that_moves_between_two_levels_of_a_draft(target, prompt):
    """Rows of earlier levels move too: levels of 1, 4 and 8 nodes after up to 252 rows."""
    sampling, text, moved = Sampling(0.7), torch.cat([prompt] * 11), []
    for length in (243, 246, 252, 253):
        trees = []
        for kind in (EarlyExit, Unbound):
            scores = ModelTarget(target)
            drafter = kind(target, 2, TreeShape.expansion([4, 2, 1]), Law.IID, sampling)
            drafter.bind_target(scores)
            scores.prefill(text[:length])
            before = scores.model.runner.cache.capacity
            drafter.prefill(text[:length])
            trees.append(drafter.propose(TorchCoins(length)))
            moved.append(scores.model.runner.cache.capacity > before)
        assert trees[0].token_ids == trees[1].token_ids
        torch.testing.assert_close(trees[0].draft_probs, trees[1].draft_probs)
    assert moved == [False, False, True, False, True, False, True, False]  # each has one target


def test_below_a_cascade(target, prompt, generated):
    """The lower drafter also drafts after tokens that the target has not committed."""
    above = target.without(["attention.2", "mlp.2"])
    below = EarlyExit(target, 1, TreeShape.chain(2), BEST, COLD)
    steps = steps_of(target, Cascade(above, below, greedy, 3, COLD, law=BEST), prompt)
    assert below.reads_target
    assert [token for step in steps for token in step.tokens] == generated(target, 24)
    assert sum(step.verdict.accepted for step in steps) > 0


@pytest.mark.parametrize("apart", [False, True])
def test_within_a_merge(apart, target, prompt, generated):
    parts = {
        "two": EarlyExit(target, 2, TreeShape.chain(3), BEST, COLD),
        "one": EarlyExit(target, 1, TreeShape.chain(2), BEST, COLD),
        "lookup": PromptLookup(4),
    }
    if apart:
        merge = Merge(parts, budgets={"two": 2, "one": 2, "lookup": 3})
    else:
        merge = Merge(parts, 10, rates=dict.fromkeys(parts, ((0.6, 0.3), (0.5, 0.2))))
    steps = steps_of(target, merge, prompt, 40)
    assert parts["one"].reads_target
    assert parts["two"].reads_target
    assert [token for step in steps for token in step.tokens] == generated(target, 40)
    assert sum(step.verdict.accepted for step in steps) > 0


def test_only_the_target_itself_is_read(target, load, prompt, generated):
    other = TransformersModel(load("llama", num_hidden_layers=LAYERS, seed=1))
    drafter = EarlyExit(target, 2, SHAPE, BEST, COLD)
    expected = generated(target, 16), generated(other, 16)
    for model, reads in ((target, True), (other, False), (target, True)):
        steps = steps_of(model, drafter, prompt, 16)
        assert [token for step in steps for token in step.tokens] == expected[model is other]
        assert drafter.reads_target == reads
    for part in (target, target.without(["mlp.2"]), target.without(["attention.2", "mlp.1"])):
        assert part.in_cache_of(target) is None
    assert target.without([]).in_cache_of(target) is not None
    captured = target.without(["attention.2", "mlp.2"]).fresh(runner=StaticRunner)
    assert captured.in_cache_of(target) is None
    for drafter in (
        ModelDrafter(target, SHAPE, BEST, COLD),
        LayerSkip(target, [], SHAPE, BEST, COLD),
    ):
        assert not hasattr(drafter, "bind_target")


def test_texts_that_take_turns_on_one_target(target, prompt):
    """Each reads the cache of its own text."""

    def steps(text):
        drafter = EarlyExit(target, 2, SHAPE, BEST, COLD)
        steps = decode(
            ModelTarget(target), drafter, greedy, text, sampling=COLD, coins=TorchCoins(0),
            max_new_tokens=24,
        )  # fmt: skip
        return ((step.tree.token_ids, step.tokens, drafter.reads_target) for step in steps)

    texts = prompt, prompt[:7]
    together = list(zip(*zip_longest(*map(steps, texts)), strict=True))
    assert [[step for step in text if step] for text in together] == [list(steps(t)) for t in texts]
    assert all(reads for text in texts for _, _, reads in steps(text))


def test_what_is_out_of_turn_is_refused(target, prompt):
    scores, drafter = ModelTarget(target), EarlyExit(target, 2, SHAPE, BEST, COLD)
    drafter.bind_target(scores)
    drafter.prefill(prompt)
    with pytest.raises(
        InvalidTree, match=r"reads the rows of 0 committed tokens .* 23 were committed"
    ):
        drafter.propose(TorchCoins(0))
    scores.prefill(prompt)
    tree = drafter.propose(TorchCoins(0))
    scores.score(tree)
    with pytest.raises(InvalidTree, match="commit its step before the next tree"):
        drafter.propose(TorchCoins(0))
    ahead = torch.cat([prompt, prompt[:2]])
    scores.prefill(ahead)
    with pytest.raises(InvalidTree, match=r"the rows of 25 committed tokens .* 23 were committed"):
        drafter.propose(TorchCoins(0))


def test_nothing_that_a_view_is_told_changes_the_whole(target, prompt):
    target.prefill(prompt)
    view = CacheView(target.runner.cache, target.without(["attention.2", "mlp.2"]).finding.layout)
    view.begin(0, 5)
    view.keep((0, 1))
    view.length += 3
    view.reset()
    assert view.length == target.length == len(prompt)
    assert view.capacity == target.runner.cache.capacity
    view.begin(0, 400)
    assert target.runner.cache.capacity >= 400 + len(prompt)
    assert view.layout[2] is None
