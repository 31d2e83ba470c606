"""Recording of traces: its content, equality of every tree's replay and the live run, and the exact law."""

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, load_pair, verify
from treespec.draft import ModelDrafter
from treespec.errors import (
    ContextOverflow,
    EmptyPrompt,
    InvalidBudget,
    InvalidPrompt,
    InvalidTree,
    NonFiniteLogits,
    RefusedTree,
)
from treespec.experiments.measure import recording
from treespec.experiments.measure.recording import record
from treespec.sampling.processors import Processors
from treespec.search import InvalidTrace, estimate_acceptance
from treespec.search.traces.replay import replay
from treespec.stopping import stop_at_tokens
from treespec.target import ModelTarget
from treespec.testing import (
    TabularModel,
    acceptance,
    outcomes,
    random_table,
    target_law,
)

pytestmark = pytest.mark.filterwarnings("ignore::treespec.search.errors.SmallSample")
GREEDY, WARM = Sampling(temperature=0.0), Sampling()
RULES = [
    ("naive", Law.DETERMINISTIC), ("naive", Law.IID), ("naive", Law.WITHOUT_REPLACEMENT),
    ("onehot", Law.DETERMINISTIC), ("rrs", Law.IID), ("rrsw", Law.WITHOUT_REPLACEMENT),
]  # fmt: skip
SHAPES = [
    TreeShape.chain(1), TreeShape.chain(3), TreeShape.chain(6), TreeShape.expansion([4]),
    TreeShape.kary(2, 3), TreeShape.independent_chains(3, 4), TreeShape.expansion([4, 2, 1]),
    TreeShape.expansion([1, 3, 1]), TreeShape.expansion([2, 2, 1, 1]),
    TreeShape((-1, 0, 0, 0, 1, 1, 4, 4, 5, 6, 9, 10)), TreeShape.from_paths([(0,), (1,), (1, 0), (1, 1)]),
]  # fmt: skip


def tables(vocab, seed=0):
    target, draft = (TabularModel(random_table(vocab, 2 * seed + i), vocab) for i in (0, 1))
    return SimpleNamespace(target=target, draft=draft)


def recorded(pair, prompts=((0,),), **more):
    given = {
        "sampling": WARM, "law": Law.IID, "rule": verify.rrs, "width": 2, "max_new_tokens": 6, "beyond": 3,
    }  # fmt: skip
    return record(pair, prompts, **(given | more))


@pytest.mark.parametrize(("rule", "law"), RULES)
def test_every_tree_has_the_exact_law_of_its_live_run(rule, law, monkeypatch, without_shape_checks):
    """Enumerate all coins of recording: in replay each depth is accepted as often as in drafting."""
    vocab, width, positions = (2, 2, 2) if law is Law.IID else (3, 2, 2)
    if law is Law.DETERMINISTIC:
        vocab, positions = 4, 3
    pair, chosen = tables(vocab, 5), verify.RULES[rule]
    deepest = [s for s in (TreeShape.chain(positions), TreeShape.kary(2, positions)) if s.depth]
    trees = [TreeShape.chain(1), TreeShape.expansion([2]), TreeShape.expansion([1, 2]), *deepest]
    trees.append(TreeShape.expansion([2, 1]))
    found = defaultdict(float)
    text_law = torch.zeros([vocab] * positions, dtype=torch.float64)

    def play(coins):
        monkeypatch.setattr(recording, "TorchCoins", lambda seed: coins)
        return recorded(
            pair, law=law, rule=chosen, width=width, max_new_tokens=1, beyond=positions - 1
        )

    for weight, trace in outcomes(play):
        text_law[tuple(trace.tokens.tolist())] += weight
        for i, shape in enumerate(trees):
            found[i, int(replay(trace, shape).accepted[0])] += weight
    np.testing.assert_allclose(text_law, target_law(pair.target, (0,), positions, WARM), atol=1e-12)
    for i, shape in enumerate(trees):
        live = acceptance(chosen, shape, law, target=pair.target, draft=pair.draft)
        for depth in range(1, shape.depth + 1):
            nodes = [n for n in range(shape.size) if shape.depths[n] == depth]
            share = sum(w for (tree, length), w in found.items() if tree == i and length >= depth)
            assert share == pytest.approx(sum(live.reached[n] for n in nodes), abs=1e-12)


@pytest.mark.parametrize(
    ("rule", "law", "vocab"),
    [
        ("kseq", Law.IID, 2), ("canonical", Law.IID, 2), ("optimal_transport", Law.IID, 2),
        ("optimal_transport", Law.WITHOUT_REPLACEMENT, 3), ("spechub", Law.HUB, 3),
        ("greedy_multidraft", Law.TOP_THEN_SAMPLE, 3),
    ],
)  # fmt: skip
def test_rules_that_look_at_all_siblings_serve_trees_of_that_width(
    rule, law, vocab, monkeypatch, without_shape_checks
):
    pair, chosen = tables(vocab, 5), verify.RULES[rule]
    trees = [TreeShape.expansion([2]), TreeShape.kary(2, 2), TreeShape((-1, 0, 0, 2, 2))]
    found = defaultdict(float)

    def play(coins):
        monkeypatch.setattr(recording, "TorchCoins", lambda seed: coins)
        return recorded(pair, law=law, rule=chosen, width=2, max_new_tokens=1, beyond=1)

    for weight, trace in outcomes(play):
        for i, shape in enumerate(trees):
            found[i, int(replay(trace, shape).accepted[0])] += weight
        hits = trace.ranks[:, None] == np.arange(2)
        assert (trace.accepted == hits).all()  # no formula
    for i, shape in enumerate(trees):
        live = acceptance(chosen, shape, law, target=pair.target, draft=pair.draft)
        for depth in range(1, shape.depth + 1):
            nodes = [n for n in range(shape.size) if shape.depths[n] == depth]
            share = sum(w for (tree, length), w in found.items() if tree == i and length >= depth)
            assert share == pytest.approx(sum(live.reached[n] for n in nodes), abs=1e-9)
    for other in (TreeShape.chain(1), TreeShape.expansion([2, 1])):
        with pytest.raises(InvalidTrace, match=f"rule '{rule}'.*holds 2.*with 1"):
            replay(trace, other)


def test_rates_given_the_children_have_the_mean_of_the_ranks(without_shape_checks):
    """Exact probabilities and the results of the coins estimate the same rates."""
    pair = tables(5, 3)
    for rule, law in RULES:
        trace = recorded(
            pair, [(i % 5,) for i in range(15)], law=law, rule=verify.RULES[rule], width=3,
            max_new_tokens=12, beyond=0,
        )  # fmt: skip
        found = estimate_acceptance(trace)
        error = np.sqrt(found.rates * (1 - found.rates) / found.trials)
        assert (np.abs(found.hits / found.trials - found.rates) < 4 * error + 1e-3).all(), rule


def live(pair, shape, prompt, budget, stop=lambda ids: False, sampling=GREEDY):
    """Accepted and kept tokens of every step of a live run at temperature 0."""
    drafter = ModelDrafter(pair.draft, shape, Law.DETERMINISTIC, sampling)
    steps = decode(
        ModelTarget(pair.target), drafter, verify.greedy, torch.tensor(prompt), sampling=sampling,
        coins=TorchCoins(0), max_new_tokens=budget, stop=stop,
    )  # fmt: skip
    return [(step.verdict.accepted, len(step.tokens)) for step in steps]


def require_equal_to_live(pair, prompts, budget, trace, stop=lambda ids: False, sampling=GREEDY):
    for shape in SHAPES:
        found = replay(trace, shape)
        for i, prompt in enumerate(prompts):
            place = slice(*found.offsets[i : i + 2])
            mine = zip(found.accepted[place].tolist(), found.kept[place].tolist(), strict=True)
            assert list(mine) == live(pair, shape, prompt, budget, stop, sampling), (
                shape.parents,
                i,
            )


def cold(pair, prompts, budget, **more):
    given = {
        "sampling": GREEDY,
        "law": Law.DETERMINISTIC,
        "rule": verify.greedy,
        "width": 4,
        "beyond": 6,
    }
    return recorded(pair, prompts, max_new_tokens=budget, **(given | more))


@pytest.fixture(scope="module")
def embedded():
    return load_pair("embedded", dtype="float32")


def held_out(pair, count, tokens):
    from treespec.experiments.config.schema import EmbeddedPrompts
    from treespec.experiments.run.prompts import encode, read_prompts

    config = EmbeddedPrompts(kind="embedded", count=count, tokens=tokens)
    return [list(p.ids) for p in encode(read_prompts(config)[:count], config, pair.tokenizer)]


def test_at_temperature_0_replay_is_the_live_run_step_by_step(embedded, without_shape_checks):
    prompts = held_out(embedded, 1, 32)
    trace = cold(embedded, prompts, 10)
    assert 0 < (trace.ranks == 0).sum() < len(trace.ranks)  # otherwise all trees are alike
    assert len(SHAPES) >= 10
    require_equal_to_live(embedded, prompts, 10, trace)


@pytest.mark.slow
def test_at_temperature_0_replay_is_the_live_run_on_many_texts(embedded, without_shape_checks):
    prompts = held_out(embedded, 12, 48)
    stop = stop_at_tokens(embedded.end_tokens)
    trace = cold(embedded, prompts, 48, stop=stop)
    require_equal_to_live(embedded, prompts, 48, trace, stop)


def test_replay_is_the_live_run_under_penalties(without_shape_checks):
    pair, prompts = tables(6, 1), [(0, 1), (2, 3, 4), (5,)]
    penalties = Processors(repetition_penalty=1.6, frequency_penalty=0.7)
    sampling = Sampling(temperature=0.0, processors=penalties)
    trace = cold(pair, prompts, 9, sampling=sampling)
    assert trace.sampling["frequency_penalty"] == 0.7
    assert trace.tokens.tolist() != cold(pair, prompts, 9).tokens.tolist()
    require_equal_to_live(pair, prompts, 9, trace, sampling=sampling)


def test_steps_end_as_in_a_live_run_at_a_stop_token_too(without_shape_checks):
    """Small vocabularies make texts stop early, inside steps, so that steps reach beyond the stop."""
    pair = tables(6, 1)
    prompts = [(i, j) for i in range(6) for j in range(2)]
    stop = stop_at_tokens([0])
    trace = cold(pair, prompts, 9, stop=stop)
    assert len(set(trace.kept.tolist())) > 2
    assert (np.diff(trace.offsets) == trace.kept + 6).all()
    require_equal_to_live(pair, prompts, 9, trace, stop)


def test_following_the_targets_own_text_is_decoding(embedded, monkeypatch, without_shape_checks):
    prompts = held_out(embedded, 2, 24)
    decoded = cold(embedded, prompts, 10, beyond=4)
    texts = [decoded.tokens[decoded.text_of == i].tolist() for i in range(2)]
    monkeypatch.setattr(recording, "POSITIONS_PER_PASS", 5)  # several passes a text
    followed = cold(embedded, prompts, 10, beyond=4, follow=texts)
    assert not followed.forced
    assert followed.about["followed"]
    for name in ("offsets", "tokens", "ranks", "kept", "accepted"):
        np.testing.assert_array_equal(getattr(followed, name), getattr(decoded, name))
    np.testing.assert_allclose(followed.probs, decoded.probs, atol=1e-5)
    texts[1][3] = (texts[1][3] + 1) % 4096
    assert cold(embedded, prompts, 10, beyond=4, follow=texts).forced


def test_given_texts_are_what_the_rows_there_say():
    """Teacher-forced, the exact rates at each position are those of the tables after the given text."""
    pair, text = tables(4, 2), [1, 3, 2, 2, 0, 1]
    trace = recorded(
        pair,
        [(0,)],
        law=Law.DETERMINISTIC,
        rule=verify.naive,
        follow=[text],
        max_new_tokens=4,
        beyond=1,
    )
    assert trace.forced
    assert trace.tokens.tolist() == text[:5]
    assert trace.kept.tolist() == [4]
    for i in range(5):
        context = (0, *text[:i])
        target, draft = (WARM(model.row(context)) for model in (pair.target, pair.draft))
        best = draft.topk(2)
        np.testing.assert_allclose(trace.accepted[i], target[best.indices])
        np.testing.assert_allclose(trace.probs[i], best.values)
    assert estimate_acceptance(trace, ranks=1).source == "teacher-forced"
    short = recorded(pair, [(0,)], follow=[text[:3]], max_new_tokens=4, beyond=1)
    assert short.kept.tolist() == [3]
    assert len(short.tokens) == 3


def test_at_temperature_0_children_have_the_drafts_probabilities_at_temperature_1():
    pair = tables(4, 2)
    trace = cold(pair, [(0,)], 3, width=2, beyond=0)
    for i in range(3):
        best = WARM(pair.draft.row((0, *trace.tokens[:i].tolist()))).topk(2)
        np.testing.assert_allclose(trace.probs[i], best.values)
    assert set(trace.accepted.ravel().tolist()) <= {0.0, 1.0}


def test_the_same_seed_gives_the_same_trace_and_texts_do_not_share_coins():
    pair = tables(5)
    first, second = (recorded(pair, [(1,), (1,)], seed=3, max_new_tokens=12) for _ in range(2))
    np.testing.assert_array_equal(first.ranks, second.ranks)
    assert (first.tokens[first.text_of == 0] != first.tokens[first.text_of == 1]).any()
    other = recorded(pair, [(1,), (1,)], seed=4, max_new_tokens=12)
    assert (other.tokens != first.tokens).any()
    assert first.about["prompt_tokens"] == [1, 1]
    assert (first.law, first.rule, first.sampling["temperature"]) == ("iid", "rrs", 1.0)


def test_progress_is_told_of_each_text():
    said = []
    recorded(tables(3), [(0,), (1,)], progress=said.append)
    assert said == ["text 1/2", "text 2/2"]


@pytest.mark.parametrize(
    ("more", "error", "words"),
    [
        ({"rule": verify.block}, InvalidTrace, "rule = 'block' cannot be traced.*kseq"),
        ({"rule": verify.traversal}, InvalidTrace, "'traversal' cannot be traced"),
        ({"rule": verify.chain}, InvalidTrace, "with one child it equals 'rrs'"),
        ({"rule": verify.naive, "law": Law.HUB}, InvalidTrace, "law = 'hub' cannot be traced"),
        (
            {"rule": verify.greedy, "law": Law.DETERMINISTIC},
            InvalidTrace,
            "needs temperature 0, but it is 1",
        ),
        ({"rule": verify.rrsw}, RefusedTree, "does not cover children of law iid"),
        ({"width": 0}, InvalidTrace, "width = 0"),
        (
            {"width": 9, "rule": verify.rrsw, "law": Law.WITHOUT_REPLACEMENT},
            InvalidTree,
            "vocabulary has 3",
        ),
        ({"prompts": []}, InvalidTrace, "no prompt"),
        ({"prompts": [()]}, EmptyPrompt, "no tokens"),
        ({"prompts": [(7,)]}, InvalidPrompt, "token id 7"),
        ({"prompts": [(0.5,)]}, InvalidPrompt, "token ids"),
        ({"max_new_tokens": 0}, InvalidBudget, "max_new_tokens = 0"),
        ({"max_new_tokens": 2_000_000}, ContextOverflow, "reduce one of the three"),
        ({"follow": [[1], [2]]}, InvalidTrace, "1 prompts, but 2 texts"),
        ({"follow": [[]]}, InvalidTrace, "no text follows prompt 0"),
        ({"follow": [[9]]}, InvalidPrompt, "token id 9"),
    ],
)
def test_what_cannot_be_recorded_is_refused(more, error, words):
    with pytest.raises(error, match=words):
        recorded(tables(3), **more)


@pytest.mark.parametrize("broken", ["target", "draft"])
def test_logits_that_are_not_finite_are_refused(broken):
    pair = tables(3)
    row = getattr(pair, broken).row
    bad = TabularModel(lambda context: row(context) * (np.nan if len(context) > 3 else 1), 3)
    setattr(pair, broken, bad)
    with pytest.raises(NonFiniteLogits, match=f"the {broken} model"):
        recorded(pair)
