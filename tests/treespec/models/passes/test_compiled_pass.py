"""Compiled passes compared with ordinary ones.

One tiny model is compiled for real, for all tests of this file; other architectures are in
`test_traced_pass`.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import jaxtyping
import pytest
import torch
from same_passes import CLOSE, VOCAB, compare, rows
from torch._inductor.graph import GraphLowering

from attention_masks.errors import NotATree
from treespec import Law, Sampling, TorchCoins, TreeShape, decode
from treespec.batch import Text, decode_many
from treespec.draft import EarlyExit, ModelDrafter
from treespec.draft import choosing as heads
from treespec.errors import InvalidTree, UnsupportedModel
from treespec.experiments.lossless.check_passes import RememberingModel
from treespec.kernels.drawn_children import drawn_children
from treespec.models.passes import choosing_passes as passes
from treespec.models.passes import compiled_pass, compiled_runner, joined_pass
from treespec.models.passes.choosing_passes import choose_passes
from treespec.models.passes.joined_pass import JoinedPass
from treespec.models.runner import TreeRunner
from treespec.models.transformers_model import TransformersModel
from treespec.models.variants.sublayers import layers_from
from treespec.models.waiting import Nodes
from treespec.step import Step
from treespec.target import ModelTarget
from treespec.testing.enumerating_coins import EnumeratingCoins, outcomes
from treespec.verify import greedy, rrsw

BUSHY = TreeShape.expansion([3, 2, 1])


@pytest.fixture(scope="module")
def written() -> Iterator[list[str]]:
    """The source code that the compiler has generated."""
    original: Any = GraphLowering.codegen_with_cpp_wrapper
    sources: list[str] = []

    def recorded(graph: Any) -> Any:
        code = original(graph)
        sources.append(code[0].value)
        return code

    with patch.object(GraphLowering, "codegen_with_cpp_wrapper", recorded):
        yield sources


@pytest.fixture(scope="module")
def llama(made, written) -> tuple[TransformersModel, TransformersModel]:
    """The same weights twice, the second time with passes that are really compiled.

    With three layers, the compiler makes further guards on the offsets of their rows in one block.
    """
    model = TransformersModel(made("llama", max_position_embeddings=1024, num_hidden_layers=3))
    ordinary = model.fresh()
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        choose_passes(model, "compiled")
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    return ordinary, model


@pytest.fixture(scope="module")
def first_layers(llama) -> TransformersModel:
    """Two layers of the model, really compiled."""
    part = llama[1].without(layers_from(2, 3))
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        choose_passes(part, "compiled", draft=True)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    return part


@pytest.fixture
def both(llama) -> tuple[TransformersModel, TransformersModel]:
    ordinary, compiled = llama
    return ordinary.fresh(), compiled.fresh()


class TestCompiled:
    def test_what_is_said(self, llama):
        ordinary, model = llama
        assert ordinary.passes.kind == "eager"
        assert (model.passes.kind, model.passes.asked) == ("compiled", "compiled")
        assert model.fresh().passes is model.passes
        assert model.passes.seconds > 0
        (graphs,) = model.make_runner.args[0]._graphs.values()
        assert graphs[0] is graphs[1]
        assert model.passes.packed_bytes > 0

    def test_layers_that_read_the_same_rows_are_one_product(self, llama, written):
        layers = llama[0].model.config.num_hidden_layers
        code = written[0]
        assert code.count("CHECK(aoti_torch_cpu_packed_linear(") == 4 * layers + 1
        assert code.count("CHECK(aoti_torch_cpu_masked_attention(") == layers

    def test_trees_behind_one_another(self, both):
        compare(*both)

    def test_the_cache_grows_and_the_prompt_may_be_empty(self, both):
        ordinary, compiled = both
        tokens, chain = torch.arange(400) * 7 % VOCAB, TreeShape.chain(3).parents
        for one in both:
            one.prefill(tokens[:0])
        alone = compiled.run(tokens[:1], (-1,)).logits
        torch.testing.assert_close(alone, ordinary.run(tokens[:1], (-1,)).logits, **CLOSE)
        for one in both:
            one.prefill(tokens[:250])
        capacities = set()
        for step in range(4):
            logits = compiled.run(tokens[step : step + 4], chain).logits
            expected = ordinary.run(tokens[step : step + 4], chain).logits
            torch.testing.assert_close(logits, expected, **CLOSE)
            capacities.add(compiled._runner.cache.capacity)
            for one in both:
                one.keep((0, 1, 2))
        assert capacities == {256, 512}

    def test_caches_share_the_graphs_and_take_turns(self, llama, monkeypatch):
        monkeypatch.setattr(compiled_pass, "DirectCall", None)  # from here on, compiling would fail
        ordinary, model = llama
        one, other = model.fresh(), model.fresh(vocab_size=100)
        tokens = torch.arange(30) * 5 % VOCAB
        for i, mine in enumerate((one, other)):
            mine.prefill(tokens[: 9 + 4 * i])
        for step in range(3):
            for i, mine in enumerate((one, other)):
                ordinary.prefill(tokens[: 9 + 4 * i + step])
                nodes = tokens[9 + 4 * i + step :][:4]
                logits = mine.run(nodes, (-1, 0, 0, 1)).logits
                expected = ordinary.run(nodes, (-1, 0, 0, 1)).logits
                torch.testing.assert_close(logits[:, :VOCAB], expected, **CLOSE)
                assert logits.shape[1] == (VOCAB, 100)[i]
                mine.keep((0,))

    def test_greedy_text_equals_generate(self, llama, made, prompt, generated, decoded):
        ordinary, target = llama
        draft = TransformersModel(made("llama", seed=1, max_position_embeddings=1024))
        expected = generated(target, 48)
        assert len(set(expected)) >= 8
        assert decoded(target, draft, BUSHY, 48)[0] == expected
        tokens, accepted = decoded(ordinary, target, BUSHY, 48)  # drafted by the model itself
        assert tokens == expected
        assert sum(accepted) > 0
        assert generated(target, 48) == expected

    def test_parts_are_eager_until_they_are_told(self, llama):
        ordinary, target = llama
        for names in (["mlp.1"], []):
            short, right = target.without(names), ordinary.without(names)
            assert (short.passes.kind, target.passes.kind) == ("eager", "compiled")
            for one in (short, right):
                one.prefill(torch.arange(9))
            found = [one.run(torch.arange(4), (-1, 0, 0, 1)).logits for one in (short, right)]
            assert torch.equal(*found)

    def test_a_part_shares_the_packed_weights_of_the_whole(self, llama, first_layers):
        _, target = llama
        assert (first_layers.passes.kind, first_layers.passes.frozen) == ("compiled", True)
        assert first_layers.passes.packed_bytes == 0
        matrices = [p for p in target.model.parameters() if p.ndim == 2]
        head = target.model.get_output_embeddings().weight
        copied = sum(p.nbytes for p in matrices if p is head or p.shape[0] != VOCAB)
        assert target.packed.bytes == target.passes.packed_bytes == copied
        assert target.without(layers_from(2, 3)) is first_layers
        assert target.fresh().packed is first_layers.packed

    def test_trees_of_a_part(self, llama, first_layers):
        compare(llama[0].without(layers_from(2, 3)).fresh(), first_layers.fresh())

    @pytest.mark.parametrize("bound", [True, False])
    def test_a_part_drafts_for_the_whole(self, bound, llama, first_layers, prompt, generated):
        """In the target's cache and in a cache of its own, beyond the initial capacity of a cache."""
        ordinary, target = llama
        prompt, cold = torch.cat([prompt] * 10), Sampling(temperature=0.0)
        expected, steps = generated(target, 40, prompt), []
        assert len(set(expected)) >= 8
        for model in (target, ordinary):
            drafter = EarlyExit(model, 2, BUSHY, Law.DETERMINISTIC, cold)
            if not bound:
                drafter.bind_target = lambda target: None
            steps.append([*decode(
                ModelTarget(model), drafter, greedy, prompt, sampling=cold, coins=TorchCoins(0),
                max_new_tokens=40,
            )])  # fmt: skip
            assert drafter.reads_target == bound
            assert drafter.model.passes.kind == model.passes.kind
            assert [token for step in steps[-1] for token in step.tokens] == expected
        compiled, right = ([step.verdict.accepted for step in text] for text in steps)
        assert compiled == right

    def test_what_a_text_before_left_in_memory(self, both, monkeypatch):
        """A first token alone attends only to its own row, whatever memory lies behind it.

        It is run by an ordinary pass: code compiled for two rows and more need not be right for one.
        """
        ordinary, compiled = both
        cache: Any = compiled._runner.cache
        compiled.prefill(torch.arange(5))
        with torch.inference_mode():
            for layer in cache.layers:
                layer.keys[:], layer.values[:] = torch.nan, torch.nan
        for model in both:
            model.prefill(torch.arange(0))
        first, run, ran = torch.tensor([7]), TreeRunner.run, []
        monkeypatch.setattr(TreeRunner, "run", lambda *given: ran.append(given[0]) or run(*given))
        torch.testing.assert_close(
            compiled.run(first, (-1,)).logits, ordinary.run(first, (-1,)).logits, **CLOSE
        )
        assert ran == [compiled._runner, ordinary._runner]

    def test_children_are_drawn_by_a_kernel(self, both, prompt, monkeypatch):
        trees, called = [], []
        monkeypatch.setattr(
            heads, "drawn_children", lambda *given: called.append(1) or drawn_children(*given)
        )
        for model in both:
            drafter = ModelDrafter(model, BUSHY, Law.WITHOUT_REPLACEMENT, Sampling(0.8))
            drafter.prefill(prompt)
            trees.append(drafter.propose(TorchCoins(1)))
        assert [model.draws_by_kernel for model in both] == [False, True]
        assert len(called) == 3
        assert trees[0].token_ids == trees[1].token_ids
        torch.testing.assert_close(trees[1].draft_probs, trees[0].draft_probs, **CLOSE)
        assert RememberingModel(both[1]).draws_by_kernel

    @pytest.mark.parametrize("part", [False, True])
    def test_the_law_of_a_text_is_that_of_ordinary_passes(self, part, both, first_layers, prompt):
        """Every branch of drafting and acceptance over several steps, in machine code."""
        ordinary, compiled = both
        sampling, drafting = Sampling(top_k=2), Sampling(temperature=1.5, top_k=3)
        target = RememberingModel(compiled)
        draft = RememberingModel(first_layers if part else compiled)

        def play(coins: EnumeratingCoins) -> tuple[int, ...]:
            shape, law = TreeShape.expansion([2]), Law.WITHOUT_REPLACEMENT
            steps = decode(
                ModelTarget(target), ModelDrafter(draft, shape, law, drafting), rrsw, prompt,
                sampling=sampling, coins=coins, max_new_tokens=3,
            )  # fmt: skip
            return tuple(token for step in steps for token in step.tokens)

        found: Counter[tuple[int, ...]] = Counter()
        for weight, text in outcomes(play):
            found[text] += weight
        ordinary.prefill(prompt[:-1])
        right = {(): 1.0}
        for _ in range(3):
            longer = {}
            for text, chance in right.items():
                nodes = torch.cat([prompt[-1:], torch.tensor(text, dtype=torch.long)])
                row = sampling(ordinary.run(nodes, tuple(range(-1, len(text)))).logits[-1])
                ordinary.keep(())
                longer |= {(*text, int(t)): chance * float(row[t]) for t in row.nonzero()}
            right = longer
        assert len(right) == 8
        assert set(found) == set(right)
        assert max(right.values()) < 0.9
        for text, chance in right.items():
            assert found[text] == pytest.approx(chance, abs=1e-5)

    def test_what_does_not_fit_is_refused_as_ever(self, both):
        _, compiled = both
        compiled.prefill(torch.arange(4))
        with pytest.raises(InvalidTree):
            compiled.run(torch.arange(2), (-1, 0, 0))
        compiled.run(torch.arange(1), (-1,))
        with pytest.raises(NotATree):
            compiled.run(torch.arange(2), (-1, 0, 5), 1)

    def test_another_attention_after_compiling(self, both):
        _, compiled = both
        compiled.prefill(torch.arange(4))
        with compiled.as_transformers(), pytest.raises(UnsupportedModel, match="as a plain model"):
            compiled.run(torch.arange(2), (-1, 0))
        compiled.run(torch.arange(2), (-1, 0))

    @pytest.mark.parametrize("other", ["sdpa", "eager"])
    def test_another_attention_that_a_user_sets(self, other, both):
        """The graphs would ignore the change: they contain the attention of the time they were made."""
        ordinary, compiled = both
        for one in both:
            one.prefill(torch.arange(4))
        ours = compiled.finding.route.implementation
        compiled.model.set_attn_implementation(other)
        try:
            for first in (compiled.run, compiled.fresh().run):
                with pytest.raises(
                    UnsupportedModel, match=f"set to '{other}' attention instead of"
                ):
                    first(torch.arange(2), (-1, 0))
            with pytest.raises(UnsupportedModel, match="set again"):
                compiled.fresh().prefill(torch.arange(4))
        finally:
            compiled.model.set_attn_implementation(ours)
        found, right = (one.run(torch.arange(2), (-1, 0)).logits for one in (compiled, ordinary))
        torch.testing.assert_close(found, right, **CLOSE)

    def test_tokens_that_are_not_contiguous(self, both):
        ordinary, compiled = both
        tokens = torch.arange(20)
        for one in both:
            one.prefill(tokens[:9])
        expected = ordinary.run(tokens[1:9:2], (-1, 0, 0, 1)).logits
        torch.testing.assert_close(
            compiled.run(tokens[1:9:2], (-1, 0, 0, 1)).logits, expected, **CLOSE
        )

    def test_rows_that_moved_without_growing(self, both):
        tokens = torch.arange(20)
        for one in both:
            one.prefill(tokens[:9])
            one.run(tokens[:3], (-1, 0, 0))
            one.keep((0, 2))
        cache = both[1]._runner.cache
        kept = [one.clone() for one in rows(both[1])]
        old = [one for pool in cache._pools for one in (pool.keys, pool.values)]
        for pool in cache._pools:
            pool.grow(cache.capacity, used=cache.length)
        with torch.inference_mode():
            for one in old:
                one.zero_()
        torch.testing.assert_close(rows(both[1]), kept)
        found = [one.run(tokens[4:8], (-1, 0, 0, 1)).logits for one in both]
        torch.testing.assert_close(found[1], found[0], **CLOSE)

    def test_a_pass_that_fills_the_cache(self, both):
        """The graphs may assume that there are more rows than slots."""
        ordinary, compiled = both
        tokens = torch.arange(300) * 7 % VOCAB
        for one in both:
            one.prefill(tokens[:252])
        logits = compiled.run(tokens[252:256], (-1, 0, 0, 1)).logits
        expected = ordinary.run(tokens[252:256], (-1, 0, 0, 1)).logits
        torch.testing.assert_close(logits, expected, **CLOSE)
        assert compiled._runner.cache.end == 256 < compiled._runner.cache.capacity

    def test_passes_over_very_many_nodes_are_run_one_operation_after_the_other(
        self, both, monkeypatch
    ):
        ordinary, compiled = both
        for one in both:
            one.prefill(torch.arange(9))
        monkeypatch.setattr(compiled_runner, "MOST_NODES", 3)
        for nodes, parents in ((3, (-1, 0, 0)), (4, (-1, 0, 0, 1))):
            found, right = (
                one.run(torch.arange(nodes), parents).logits for one in (compiled, ordinary)
            )
            torch.testing.assert_close(found, right, **CLOSE)
            assert torch.equal(found, right) == (nodes > 3)

    def test_weights_that_were_replaced(self, both):
        _, compiled = both
        compiled.prefill(torch.arange(4))
        compiled.run(torch.arange(2), (-1, 0))
        norm = compiled.model.model.norm
        weight = norm.weight
        for other in (
            torch.nn.Parameter(weight.detach().clone()),
            torch.nn.Parameter(weight.half()),
        ):
            norm.weight = other
            try:
                with pytest.raises(
                    UnsupportedModel, match="weights were replaced after its passes"
                ):
                    compiled.run(torch.arange(2), (-1, 0))
            finally:
                norm.weight = weight
        compiled.run(torch.arange(2), (-1, 0))

    def test_what_shows_in_large_trees_only_is_seen_by_the_trial(self, llama, monkeypatch):
        arrays = compiled_pass.tree_arrays

        def wrong(parents):
            return arrays(tuple(range(-1, 63)) if len(parents) == 64 else parents)

        monkeypatch.setattr(compiled_runner, "tree_arrays", wrong)
        with pytest.raises(UnsupportedModel, match="logits of a compiled pass differ"):
            passes._require_same(*llama)

    def test_what_shows_behind_long_texts_only_is_seen_by_the_trial(self, llama, monkeypatch):
        run = compiled_runner.CompiledRunner.run

        def later(self, tokens, parents, first=0):
            self.cache.length -= self.cache.length > 256
            return run(self, tokens, parents, first)

        monkeypatch.setattr(compiled_runner.CompiledRunner, "run", later)
        with pytest.raises(UnsupportedModel, match="logits of a compiled pass differ"):
            passes._require_same(*llama)

    @pytest.mark.parametrize("mutant", ["a stale mask", "the tree ignored", "flat positions"])
    def test_wrong_trees_are_seen_by_the_trial(self, mutant, llama, monkeypatch):
        arrays, first = compiled_pass.tree_arrays, []

        def wrong(parents):
            if mutant == "a stale mask":  # the mask of the first tree of this size
                first.append(parents)
                return arrays(next(old for old in first if len(old) == len(parents)))
            right = arrays(tuple(range(-1, len(parents) - 1))).clone()
            if mutant == "flat positions":
                right = arrays(parents).clone()
                right[2] = 0
            return right

        model = llama[1]
        passes._require_same(llama[0], model)
        monkeypatch.setattr(compiled_runner, "tree_arrays", wrong)
        if mutant == "a stale mask":
            compiled_runner.tree_arrays(tuple(range(-1, 7)))
        with pytest.raises(UnsupportedModel, match="logits of a compiled pass differ"):
            passes._require_same(llama[0], model)

    def test_slots_off_by_one_are_seen_by_the_trial(self, llama, monkeypatch):
        begin = compiled_runner.CompiledRunner.run

        def later(self, tokens, parents, first=0):
            self.cache.length += first > 0
            try:
                return begin(self, tokens, parents, first)
            finally:
                self.cache.length -= first > 0

        monkeypatch.setattr(compiled_runner.CompiledRunner, "run", later)
        with pytest.raises(UnsupportedModel, match="logits of a compiled pass differ"):
            passes._require_same(*llama)


@pytest.fixture(scope="module")
def joined(llama) -> JoinedPass:
    """The pass over several texts, really compiled."""
    runner = llama[1].runner
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        made = runner._compiled.joined(runner._states)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    assert made is not None
    return made


class TestSeveralTexts:
    TREES = ((-1, 0, 0, 1, 1, 2), (-1,), (-1, 0, 1, 2, 3), (-1, 0, 0, 0, 1))

    def test_each_text_gets_its_own_scores(self, llama, joined):
        """Texts of unequal length, trees whole and in parts, and what is kept of them."""
        ordinary, compiled = ([model.fresh() for _ in self.TREES] for model in llama)
        for i, pair in enumerate(zip(ordinary, compiled, strict=True)):
            for one in pair:
                one.prefill(torch.arange(1 + 90 * i) * 7 % VOCAB)
        for ends in ((6, 1, 5, 5), (2, 1, 2, 3)):
            parts = [
                Nodes((torch.arange(end) + 5 * i) % VOCAB, tree[:end])
                for i, (tree, end) in enumerate(zip(self.TREES, ends, strict=True))
            ]
            further = [
                Nodes((torch.arange(len(tree) - end) + 3 * i) % VOCAB, tree, end)
                for i, (tree, end) in enumerate(zip(self.TREES, ends, strict=True))
            ]
            for each in (parts, further):
                running = [i for i, nodes in enumerate(each) if len(nodes.tokens)]
                if not running:
                    continue
                found = compiled[0].run_together([(compiled[i], each[i]) for i in running])
                for i, scores in zip(running, found, strict=True):
                    right = ordinary[i].run(*each[i]).logits
                    torch.testing.assert_close(scores.logits, right, **CLOSE)
            for pair in zip(ordinary, compiled, strict=True):
                for one in pair:
                    one.keep((0,))

    def test_many_texts_are_decoded_as_each_alone(self, llama, joined):
        ordinary, compiled = llama
        cold = Sampling(temperature=0.0)

        def text(model, i):
            return Text(
                ModelTarget(model),
                ModelDrafter(model, BUSHY, Law.DETERMINISTIC, cold),
                greedy,
                torch.arange(2 + 7 * i) % VOCAB,
                cold,
                TorchCoins(i),
                6 + 5 * i,
            )

        found: dict[int, list[int]] = {}
        for i, step in decode_many([text(compiled, i) for i in range(4)], places=3):
            assert isinstance(step, Step), step
            found.setdefault(i, []).extend(step.tokens)
        alone = [[t for step in text(ordinary, i).steps() for t in step.tokens] for i in range(4)]
        assert found == dict(enumerate(alone))

    @pytest.mark.parametrize("mutant", ["swapped trees", "swapped caches", "flat positions"])
    def test_what_belongs_to_a_neighbour_is_seen_by_the_trial(
        self, mutant, llama, joined, monkeypatch
    ):
        right = joined_pass._arguments

        def wrong(texts):
            tokens, positions, lines, trees, places = right(texts)
            if mutant == "swapped trees":
                trees = trees.clone()
                trees[:, :3] = torch.tensor([[0, 1, 2], [3, 3, 3], [0, 1, 2]])
            if mutant == "swapped caches":
                places = places.flip(1)
            if mutant == "flat positions":
                positions = positions.clone()
                positions[1:3] = positions[0]
            return [tokens, positions, lines, trees, places]

        model, route = llama[1].runner.model, llama[1].runner.route
        layout, states = llama[1].finding.layout, llama[1].runner._states
        two = [TreeRunner(model, route, layout) for _ in range(2)]
        joined._require_same(*two, states)
        monkeypatch.setattr(joined_pass, "_arguments", wrong)
        with pytest.raises(UnsupportedModel, match="differs from an ordinary one"):
            joined._require_same(*two, states)


def test_eager_again(llama):
    """The description of a model's passes matches the passes."""
    model = llama[1].fresh()
    choose_passes(model, "eager")
    assert type(model.runner) is TreeRunner
    assert type(model.fresh().runner) is TreeRunner
