"""Bugs of engines and drafters, from their public trackers: each kind with the value that is right.

The rest of the kinds stands where its part is tested: penalties and the paths of processors
(`sampling/processing`, `models/test_every_source`), fields of a generation_config that a run ignores
(`experiments/config/test_samplings`), the row that a child was drawn from (`test_decoding`), seeds per
prompt (`experiments/run/test_seeds`), positions and windows of every architecture
(`models/test_architectures`), contexts of a draft that is shorter and children drafted twice
(`test_decoding`).
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, decode, verify
from treespec.draft import ModelDrafter
from treespec.draft.text.text_source import TokenSource
from treespec.models.tabular import TabularModel, random_table
from treespec.models.transformers_model import TransformersModel
from treespec.sampling.processors import Processors
from treespec.stopping import any_of, stop_at_strings, stop_at_tokens
from treespec.target import ModelTarget

V = 12
COLD = Sampling(temperature=0.0)
TARGET = TabularModel(random_table(V, 1), V)
SHAPES = [
    TreeShape.chain(1), TreeShape.chain(6), TreeShape.expansion([5]), TreeShape.expansion([3, 2, 1, 1]),
    TreeShape.independent_chains(2, 4),
]  # fmt: skip
pytestmark = pytest.mark.usefixtures("without_shape_checks")


class Partly(TabularModel):
    """The target's row most of the time, so that drafts are often right, but not always."""

    def __init__(self, row=None, vocab_size=V, max_length=1_000_000, share=3):
        other, self.share = random_table(V, 7), share
        row = row or (lambda c: TARGET.row(c) if sum(c) % share else other(c))
        super().__init__(row, vocab_size, max_length)


def steps_of(shape, new, stop=lambda ids: False, sampling=COLD, draft=None, seed=0, prompt=(1, 2)):
    law = Law.DETERMINISTIC if sampling.greedy else Law.WITHOUT_REPLACEMENT
    drafter = ModelDrafter(draft or Partly(), shape, law, sampling)
    rule = verify.greedy if sampling.greedy else verify.rrsw
    return list(
        decode(
            ModelTarget(TARGET), drafter, rule, torch.tensor(prompt), sampling=sampling,
            coins=TorchCoins(seed), max_new_tokens=new, stop=stop,
        )
    )  # fmt: skip


def joined(steps):
    return [token for step in steps for token in step.tokens]


PLAIN = joined(steps_of(TreeShape.chain(0), 40))


def test_an_end_inside_a_block_ends_the_text_and_the_count():
    """huggingface/transformers#47912, vllm-project/vllm#56101: rows 1 and 2."""
    inside = 0
    for ends in ([PLAIN[4]], [PLAIN[7]], [PLAIN[9], PLAIN[20]], list(range(V))):
        expected = PLAIN[: next(i for i, token in enumerate(PLAIN) if token in ends) + 1]
        for shape in SHAPES:
            steps = steps_of(shape, 40, stop_at_tokens(ends))
            assert joined(steps) == expected
            assert sum(len(step.tokens) for step in steps) == len(expected)
            inside += len(steps[-1].tokens) < steps[-1].verdict.emitted
    assert inside


@pytest.fixture(scope="module")
def letters():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core)


def test_a_stop_string_ends_the_text_at_the_token_that_completes_it(letters):
    """huggingface/transformers#48039, sgl-project/sglang#23802: row 3."""
    text = letters.decode(PLAIN)
    good = Partly(share=10**9)
    for end in range(2, 9):  # at each position of a block of seven tokens
        string = text[end - 2 : end]
        first = text.index(string) + 2
        stop = any_of(stop_at_strings([string], letters))
        for new in (first, first + 1, 40):
            assert joined(steps_of(TreeShape.chain(6), new, stop, draft=good)) == PLAIN[:first]
        assert (
            joined(steps_of(TreeShape.chain(6), first - 1, stop, draft=good)) == PLAIN[: first - 1]
        )


@pytest.mark.parametrize("new", [1, 2, 3])
def test_a_budget_below_the_depth_is_kept(new):
    """huggingface/transformers#46993: row 4."""
    for sampling in (COLD, Sampling()):
        text = joined(
            steps_of(TreeShape.chain(8), new, sampling=sampling, draft=Partly(share=10**9))
        )
        assert len(text) == new


def test_the_row_of_a_half_precision_draft_is_the_one_that_is_drawn_from():
    """deepseek-ai/DeepSpec#31: row 6. Draws follow the stated row, in float32, within 4.5 deviations."""
    table = random_table(64, 3)
    half = TabularModel(lambda context: table(context).bfloat16(), 64)
    drafter, draws = ModelDrafter(half, TreeShape.expansion([50]), Law.IID, Sampling()), 4000
    counts = np.zeros(64)
    drafter.prefill(torch.tensor([1, 2]))
    for seed in range(draws // 50):
        tree = drafter.propose(TorchCoins(seed))
        counts += np.bincount(tree.token_ids[1:], minlength=64)
    row = tree.draft_probs_of(0)
    assert row.dtype == torch.float32
    assert torch.equal(row, half.row((1, 2)).float().softmax(-1))
    expected = draws * row.numpy()
    assert np.abs((counts - expected) / np.sqrt(expected * (1 - row.numpy()))).max() < 4.5


def test_truncations_hold_for_every_token_and_forbidden_ones_never_come():
    """vllm-project/vllm#42744, NVIDIA/TensorRT-LLM#17701: row 9."""
    sampling = Sampling(min_p=0.3, processors=Processors(suppress_tokens=(PLAIN[0], 3)))
    kinds = set()
    for shape in SHAPES:
        for seed in range(5):
            ids = [1, 2]
            for step in steps_of(shape, 30, sampling=sampling, seed=seed):
                for place, token in enumerate(step.tokens):
                    logits = TARGET.row(tuple(ids)).clone()
                    logits[[PLAIN[0], 3]] = -torch.inf
                    probs = logits.softmax(-1)
                    assert probs[token] >= 0.3 * probs.max() - 1e-12
                    kinds.add(place < step.verdict.accepted)
                    ids.append(token)
    assert kinds == {True, False}  # accepted drafts and bonus tokens


@pytest.mark.parametrize("end", [0, V - 1])
def test_a_minimum_length_counts_tokens_and_the_end_comes_next(end):
    """vllm-project/vllm#41768, #46243, NVIDIA/TensorRT-LLM#12358: row 10."""
    favoured = Processors(min_new_tokens=4, sequence_bias=(((end,), 1e4),)).ending({end}, 30)
    for shape in SHAPES:
        for prompt in ((1, 2), (1, 2, 3, 4, 5)):
            sampling = Sampling(0.0, processors=favoured)
            text = joined(steps_of(shape, 30, stop_at_tokens([end]), sampling, prompt=prompt))
            assert len(text) == 5
            assert text.index(end) == 4


def test_a_chain_is_a_tree_of_width_1():
    """NVIDIA/TensorRT-LLM#15842, #10323: row 13."""
    assert TreeShape.chain(4) == TreeShape.expansion([1, 1, 1, 1])
    for sampling in (COLD, Sampling()):
        runs = [
            steps_of(shape, 20, sampling=sampling)
            for shape in (TreeShape.chain(3), TreeShape.expansion([1, 1, 1]))
        ]
        assert [s.verdict for s in runs[0]] == [s.verdict for s in runs[1]]
    assert joined(steps_of(TreeShape.expansion([7]), 40)) == PLAIN


@given(st.data())
def test_a_larger_tree_never_accepts_less(data):
    """NVIDIA/TensorRT-LLM#10343: row 14, at temperature 0."""
    size = data.draw(st.integers(2, 10))
    parents = [-1, *(data.draw(st.integers(0, i - 1)) for i in range(1, size))]
    kept = [0]
    for node in range(1, size):
        if parents[node] in kept and data.draw(st.booleans()):
            kept.append(node)
    whole = TreeShape(tuple(parents))
    tokens = [2, *(whole.ranks[node] for node in range(1, size))]  # siblings differ
    index = {node: i for i, node in enumerate(kept)}
    part = TreeShape(tuple(index.get(parents[node], -1) for node in kept))
    trees = [
        TokenTree.of(whole, tokens, None, Law.DETERMINISTIC, torch.device("cpu")),
        TokenTree.of(
            part, [tokens[node] for node in kept], None, Law.DETERMINISTIC, torch.device("cpu")
        ),
    ]
    table = random_table(V, data.draw(st.integers(0, 50)))
    found = []
    for tree in trees:
        paths = [
            tuple(tree.token_ids[n] for n in tree.shape.path(i)) for i in range(tree.shape.size)
        ]
        rows = COLD.rows(torch.stack([table(path) for path in paths]))
        found.append(verify.greedy(tree, rows, TorchCoins(0)).accepted)
    assert found[0] >= found[1]


def test_coins_are_uniform_and_prompts_do_not_share_them():
    """NVIDIA/TensorRT-LLM#19487, vllm-project/vllm#6038: row 15."""
    drawn = np.array(TorchCoins(5).uniforms(20_000))
    counts = np.histogram(drawn, bins=20, range=(0, 1))[0]
    assert (
        (counts - 1000) ** 2 / 1000
    ).sum() < 50  # chi-square with 19 degrees of freedom, p = 1e-4
    assert len(np.unique(drawn)) > 19_900
    texts = [
        joined(steps_of(TreeShape.chain(3), 30, sampling=Sampling(), seed=s)) for s in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


class Wrong(TokenSource):
    """Proposes a chain of tokens that the target never takes."""

    branching = 1

    def __init__(self, depth):
        self.max_depth = depth

    @property
    def size(self):
        return self.max_depth + 1

    def _restart(self):
        self._text = []

    def _read(self, tokens):
        self._text += tokens

    def _continuations(self):
        best = int(TARGET.row(tuple(self._text)).argmax())
        return range(-1, self.max_depth), [(best + 1) % V] * self.max_depth


def test_drafts_that_are_always_wrong_change_nothing():
    """ohdearquant/lattice#243, kekzl/imp#683, vllm-project/vllm#53977: row 20."""
    steps = list(
        decode(
            ModelTarget(TARGET), Wrong(3), verify.greedy, torch.tensor([1, 2]), sampling=COLD,
            coins=TorchCoins(0), max_new_tokens=40,
        )
    )  # fmt: skip
    assert joined(steps) == PLAIN
    assert all(step.verdict.accepted == 0 for step in steps)


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-5, 1e-4])
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_small_temperatures_and_large_logits(temperature, size):
    """MTPLX#82, NVIDIA-NeMo/Automodel#3627, jaymody/speculative-sampling#5: row 21, with p = q."""
    big = TabularModel(lambda context: (size * TARGET.row(context)).float(), V)
    sampling = Sampling(temperature)
    law = Law.DETERMINISTIC if sampling.greedy else Law.WITHOUT_REPLACEMENT
    rule = verify.greedy if sampling.greedy else verify.rrsw
    for shape in SHAPES:
        steps = decode(
            ModelTarget(big), ModelDrafter(big, shape, law, sampling), rule, torch.tensor([1, 2]),
            sampling=sampling, coins=TorchCoins(0), max_new_tokens=20,
        )  # fmt: skip
        assert joined(steps) == PLAIN[:20]


@pytest.mark.parametrize("length", [7, 8, 9, 30])
def test_windows_are_counted_in_depth_and_roll_back_exactly(length, tiny_window):
    """sgl-project/sglang#39287, mlx-lm#1914: row 12; and positions, mlxcel#1214: row 11."""
    target, draft = tiny_window
    prompt = torch.randint(90, (length,), generator=torch.Generator().manual_seed(length))

    def text(shape):
        drafter = ModelDrafter(draft, shape, Law.DETERMINISTIC, COLD)
        steps = decode(
            ModelTarget(target), drafter, verify.greedy, prompt, sampling=COLD, coins=TorchCoins(0),
            max_new_tokens=24,
        )  # fmt: skip
        return joined(steps)

    with target.as_transformers() as plain:
        ids = plain.generate(
            prompt[None], attention_mask=torch.ones_like(prompt[None]), do_sample=False, max_new_tokens=24,
            pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
    for shape in (TreeShape.chain(6), TreeShape.expansion([2, 2, 1, 1, 1, 1])):
        assert text(shape) == ids[0, length:].tolist()


@pytest.fixture(scope="module")
def tiny_window():
    import transformers

    torch.manual_seed(0)
    config = transformers.MistralConfig(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=8, max_position_embeddings=128, initializer_range=0.4,
    )  # fmt: skip
    target = transformers.MistralForCausalLM(config).eval()
    draft = transformers.MistralForCausalLM(config).eval()
    draft.load_state_dict(target.state_dict())
    with torch.no_grad():
        for weight in draft.parameters():
            weight += 0.05 * weight.std() * torch.randn_like(weight) if weight.ndim > 1 else 0
    return TransformersModel(target), TransformersModel(draft)


def test_logits_of_a_path_do_not_depend_on_the_order_of_siblings(tiny_window):
    """vllm-ddtree 11.5: row 11."""
    model = tiny_window[0].fresh()
    parents, tokens = (-1, 0, 0, 1, 1, 2), [5, 6, 7, 8, 9, 10]
    places = [0, 2, 1, 4, 5, 3]  # where each node goes: siblings change places, parents come first
    with torch.inference_mode():
        model.prefill(torch.arange(11))
        first = model.run(torch.tensor(tokens), parents).logits.clone()
        model.prefill(torch.arange(11))
        moved, moved_parents = [0] * 6, [-1] * 6
        for node, place in enumerate(places):
            moved[place] = tokens[node]
            moved_parents[place] = places[parents[node]] if node else -1
        second = model.run(torch.tensor(moved), tuple(moved_parents)).logits
    torch.testing.assert_close(second[places], first, rtol=0, atol=1e-4)
