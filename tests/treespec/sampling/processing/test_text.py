"""Rows as processors change them: bit-equal to transformers' own, functions of the node's text alone."""

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from treespec import Law, TokenTree, TorchCoins, TreeShape, decode, verify
from treespec.draft import ModelDrafter
from treespec.errors import InvalidSampling, NonFiniteLogits
from treespec.sampling.distributions import SampledRows, Sampling
from treespec.sampling.processing.built import further, generation_fields, theirs_of
from treespec.sampling.processing.rows import rows_of_text
from treespec.sampling.processing.text import ProcessedText
from treespec.sampling.processors import Processors
from treespec.target import ModelTarget
from treespec.testing import TabularModel, random_table
from treespec.verify.engine.cpu_kernel import by_kernel
from treespec.verify.engine.fused import _device_rows
from treespec.verify.engine.on_host import on_host

V, CPU = 40, torch.device("cpu")
EVERY = {
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.4,
    "presence_penalty": -0.7,
    "no_repeat_ngram_size": 3,
    "min_length": 9,
    "min_new_tokens": 5,
    "suppress_tokens": (3, 5),
    "begin_suppress_tokens": (7, 8),
    "bad_words_ids": ((9,), (10, 11), (4, 9, 12)),
    "sequence_bias": (((13,), 1.5), ((14, 13), -2.0), ((15, 14, 13), 0.7), ((2, 16), -1.0)),
    "forced_bos_token_id": 17,
    "forced_eos_token_id": 20,
    "exponential_decay_length_penalty": (3, 1.2),
}
ENDS = {"ends": (20, 21), "max_new_tokens": 8}


class Odd(LogitsProcessor):
    """Adds to tokens that are as odd as the length."""

    def __call__(self, input_ids, scores):
        return scores + (torch.arange(scores.shape[-1]) % 2 == input_ids.shape[-1] % 2) * 0.3


def theirs(
    processors: Processors, ids: list[int], prompt: int, logits: torch.Tensor
) -> torch.Tensor:
    """The scores of the list that `generate` makes."""
    fields, most = generation_fields(processors), prompt + processors.max_new_tokens
    config = GenerationConfig(**fields, do_sample=False, max_length=most)
    own = LogitsProcessorList(further(processors, prompt))
    if processors.min_new_tokens:  # what `generate` does before it makes its list
        config.min_length = prompt + processors.min_new_tokens
    made = theirs_of(config, processors.ends, prompt, own, CPU)
    return made(torch.tensor([ids]), logits[None].clone())[0]


@pytest.mark.parametrize(
    "settings", [*({key: EVERY[key]} for key in EVERY), EVERY, {"custom": (Odd(),)}]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_bit_equal_to_those_of_transformers(settings, dtype):
    processors, generator = Processors(**settings, **ENDS), torch.Generator().manual_seed(1)
    changed = 0
    for prompt in (1, 2, 6):
        text = ProcessedText(processors, prompt, CPU)
        start = torch.randint(18, (prompt,), generator=generator).tolist()
        text.extend(start[:1])
        for length in range(8):
            more = torch.randint(18, (length,), generator=generator).tolist()
            for tail in (more, [*more, 15, 14], [*more, 4, 9], [*more, 5, 6, 7, 5, 6]):
                path = [*start[1:], *tail]
                logits = torch.randn(V, generator=generator, dtype=dtype)
                before = logits.clone()
                row = text.row(logits, path, 0)
                expected = theirs(processors, [*start[:1], *path], prompt, logits)
                assert torch.equal(row, expected), (prompt, path)
                assert torch.equal(logits, before)
                changed += not torch.equal(row, logits)
    assert changed


def test_a_row_stays_the_same_when_the_text_moves_on():
    processors = Processors(repetition_penalty=1.5, no_repeat_ngram_size=2)
    shape = TreeShape.expansion([2, 1])
    tree = TokenTree.of(shape, [3, 4, 5, 6, 3], None, Law.DETERMINISTIC, CPU)
    logits = torch.randn(shape.size, V, generator=torch.Generator().manual_seed(0))
    early, late = (rows_of_text(Sampling(processors=processors), 3, CPU) for _ in range(2))
    ids = [1, 2, 3]
    first = [early(tree, logits, ids)[node].clone() for node in range(shape.size)]
    kept = late(tree, logits, ids)
    other = TokenTree.of(TreeShape.chain(1), [8, 9], None, Law.DETERMINISTIC, CPU)
    late(other, logits[:2], [*ids, 4, 6, 8])[1]
    for node in range(shape.size):
        assert torch.equal(kept[node], first[node])


def test_a_processor_sees_the_paths_of_the_visited_nodes_once_each():
    seen = []

    class Recording(LogitsProcessor):
        def __call__(self, input_ids, scores):
            seen.append(tuple(input_ids[0].tolist()))
            input_ids.zero_()  # must not reach anybody else
            return scores.clamp_(max=0)

    shape = TreeShape((-1, 0, 0, 1, 2))
    tree = TokenTree.of(shape, [3, 4, 5, 6, 7], None, Law.DETERMINISTIC, CPU)
    logits = torch.randn(5, V)
    before = logits.clone()
    rows = rows_of_text(Sampling(processors=Processors(custom=(Recording(),))), 2, CPU)(
        tree, logits, [1, 2, 3]
    )
    del seen[:]
    for node in (0, 2, 4, 2, 0, 4):
        rows[node]
    about = seen[-3:]
    assert about == [(1, 2, 3), (1, 2, 3, 5), (1, 2, 3, 5, 7)]
    assert len(seen) == 5 + 3  # the first row is preceded by the check for memory
    assert torch.equal(logits, before)


class Counting(LogitsProcessor):
    """Remembers how often it was called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return scores - self.calls


class Latest(LogitsProcessor):
    """Subtracts from the tokens of all texts that it has seen."""

    def __init__(self):
        self.seen = set()

    def __call__(self, input_ids, scores):
        self.seen |= set(input_ids[0].tolist())
        scores[:, list(self.seen)] -= 1
        return scores


class First(LogitsProcessor):
    """Remembers how long the first text was."""

    def __init__(self):
        self.first = None

    def __call__(self, input_ids, scores):
        self.first = self.first or input_ids.shape[1]
        return scores - self.first


@pytest.mark.parametrize("processor", [Counting(), Latest(), First()])
def test_processors_that_remember_are_refused(processor):
    text = ProcessedText(Processors(custom=(processor,)), 2, CPU)
    text.extend([1, 2])
    with pytest.raises(InvalidSampling, match="remembers earlier calls"):
        text.row(torch.zeros(V), [3], 0)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda ids, scores: scores[:, :3], r"returned \(1, 3\)"),
        (lambda ids, scores: None, "returned NoneType"),
        (lambda ids, scores: scores * torch.nan, "NaN or [+]inf"),
        (lambda ids, scores: scores + torch.inf, "NaN or [+]inf"),
        (lambda ids, scores: scores - torch.inf, "forbid every token"),
    ],
)
def test_results_that_are_no_scores_are_refused(result, said):
    text = ProcessedText(Processors(custom=(result,)), 1, CPU)
    with pytest.raises(InvalidSampling, match=said):
        text.row(torch.zeros(V), [3], 0)


def test_models_are_checked_before_and_vocabularies_once():
    text = ProcessedText(Processors(suppress_tokens=(V,)), 1, CPU, "draft")
    with pytest.raises(InvalidSampling, match=f"suppress_tokens holds token {V}"):
        text.row(torch.zeros(V), [3], 0)
    bad = torch.zeros(V)
    bad[0] = torch.nan
    with pytest.raises(NonFiniteLogits, match=r"draft model.*node 4"):
        ProcessedText(Processors(suppress_tokens=(0,)), 1, CPU, "draft").row(bad, [3], 4)


def test_engines_read_processed_rows():
    """Kernels read logits as they are, so they get processed rows, or leave the decision to the rule."""
    shape = TreeShape((-1, 0, 0, 1))
    tree = TokenTree.of(shape, [3, 4, 5, 6], None, Law.DETERMINISTIC, CPU)
    logits = torch.randn(4, V, generator=torch.Generator().manual_seed(2))
    logits[0, 4] = 9.0
    sampling = Sampling(0.8, processors=Processors(suppress_tokens=(4,), repetition_penalty=1.2))
    rows = rows_of_text(sampling, 2, CPU)(tree, logits, [1, 2, 3])
    expected = torch.stack([rows[node] for node in range(4)])
    assert expected[0, 4] == 0
    assert torch.equal(_device_rows(rows, verify.onehot).values, expected)
    copied = rows.copied(logits.clone())
    assert torch.equal(torch.stack([copied[node] for node in range(4)]), expected)
    for seed in range(20):
        verdicts = [
            rule(tree, rows, TorchCoins(seed))
            for rule in (verify.onehot, by_kernel(verify.onehot), on_host(verify.onehot))
        ]
        assert verdicts[1:] == verdicts[:1] * 2
        assert 4 not in [tree.token_ids[node] for node in verdicts[0].path]


def test_processors_without_a_path_leave_rows_to_kernels():
    sampling = Sampling(
        0.8, processors=Processors(suppress_tokens=(4,), sequence_bias=(((5,), 2.0),))
    )
    tree = TokenTree.of(TreeShape.chain(1), [3, 4], None, Law.DETERMINISTIC, CPU)
    logits = torch.randn(2, V, generator=torch.Generator().manual_seed(2))
    rows = rows_of_text(sampling, 1, CPU)(tree, logits, [3])
    assert type(rows) is SampledRows
    assert rows.logits.isfinite().all()
    changed = logits.clone()
    changed[:, 4] = -torch.inf
    changed[:, 5] += 2.0
    assert torch.equal(torch.stack([rows[0], rows[1]]), Sampling(0.8)(changed))


def test_a_buffer_that_a_processor_returns_again_is_copied():
    buffer = torch.zeros(1, V)

    def same(ids, scores):
        return buffer.copy_(scores + ids[0, -1])

    text = ProcessedText(Processors(custom=(same,)), 1, CPU)
    first = text.row(torch.zeros(V), [3], 0)
    second = text.row(torch.zeros(V), [4], 0)
    assert (first[0], second[0]) == (3, 4)


def test_nothing_is_asked_after_an_end():
    def none_after_end(ids, scores):
        return scores - torch.inf if 20 in ids[0, 1:] else scores - 1

    text = ProcessedText(Processors(custom=(none_after_end,), **ENDS), 1, CPU)
    logits = torch.randn(V)
    assert torch.equal(text.row(logits, [3, 20], 1), logits)
    assert torch.equal(text.row(logits, [20, 3], 1), logits - 1)  # a prompt may end so


def test_minimum_lengths_need_to_know_the_ends():
    with pytest.raises(InvalidSampling, match=r"min_length needs to know which tokens end"):
        ProcessedText(Processors(min_length=3), 1, CPU)
    ProcessedText(Processors(min_length=3, ends=()), 1, CPU)


def test_a_processor_that_fails_is_named():
    def broken(ids, scores):
        raise OSError("no file")

    text = ProcessedText(Processors(custom=(broken,)), 1, CPU)
    with pytest.raises(InvalidSampling, match=r"processor broken.*no file"):
        text.row(torch.zeros(V), [3], 0)


class Counts(LogitsProcessor):
    """A grammar that allows the next number only, and knows nothing of other texts."""

    def __call__(self, ids, scores):
        assert ids[0].diff().remainder(V).eq(1).all(), "no text of the grammar"
        allowed = torch.full_like(scores, -torch.inf)
        allowed[0, (ids[0, -1] + 1) % V] = 0
        return scores + allowed


@pytest.mark.parametrize(
    ("temperature", "law", "rule"),
    [(0.0, Law.DETERMINISTIC, verify.greedy), (1.0, Law.WITHOUT_REPLACEMENT, verify.rrsw)],
)
def test_a_grammar_is_not_asked_what_follows_forbidden_tokens(temperature, law, rule):
    sampling = Sampling(temperature, processors=Processors(custom=(Counts(),)))
    target, draft = (TabularModel(random_table(V, seed), V) for seed in (1, 2))
    drafter = ModelDrafter(draft, TreeShape.expansion([3, 2]), law, sampling)
    text = []
    for step in decode(
        ModelTarget(target), drafter, rule, torch.tensor([1, 2]), sampling=sampling, coins=TorchCoins(0),
        max_new_tokens=7,
    ):  # fmt: skip
        text += step.tokens
        assert torch.isfinite(step.rows[step.tree.shape.size - 1]).all()  # a kernel reads all rows
    assert text == [(3 + i) % V for i in range(7)]
