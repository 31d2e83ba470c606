"""Growths replayed on recorded draft rows do step by step what a live run does."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treespec import Law, Sampling, TorchCoins, decode, load_pair, verify
from treespec.draft import ModelDrafter
from treespec.errors import InvalidTree
from treespec.experiments.measure import recording
from treespec.experiments.measure.recording import record
from treespec.search import DDTree, InvalidTrace, LatencyModel, Trace
from treespec.search.choice.growth_replay import replay_growth
from treespec.search.growth import CostAware, DySpec, Eagle2, EqualGrowth, OptTree, SpecExec
from treespec.stopping import stop_at_tokens
from treespec.target import ModelTarget
from treespec.testing import TabularModel, outcomes, random_table

GREEDY, WARM = Sampling(temperature=0.0), Sampling()
TIMES = LatencyModel.from_tables(
    verify={1: 0.020, 8: 0.022, 64: 0.060}, draft={1: 0.002, 64: 0.004}
)


def square(probs):
    """A calibration."""
    return np.asarray(probs) ** 2


GROWTHS = [
    Eagle2(3, 4, 8), Eagle2(2, 3, 20, calibration=square), SpecExec(7, 3, 4), SpecExec(5, 2, 3, square),
    OptTree(4, 0.0, 4, 3), OptTree(6, 0.2, 4, 3), EqualGrowth(3, 3, 6), EqualGrowth(2, 4),
    EqualGrowth(3, 4, 9, latency=TIMES), CostAware(TIMES, 8, 4, 3),
    CostAware(TIMES, 6, 3, 2, calibration=square),
]  # fmt: skip


def tables(vocab, seed=0, spread=1.5):
    """Models that agree more or less, so that steps accept something."""
    target, other = random_table(vocab, seed, spread), random_table(vocab, seed + 1, spread)
    draft = TabularModel(lambda context: target(context) + 0.7 * other(context), vocab)
    return SimpleNamespace(target=TabularModel(target, vocab), draft=draft)


def recorded(pair, prompts, budget, **more):
    options = {
        "sampling": GREEDY, "law": Law.DETERMINISTIC, "rule": verify.greedy, "width": 3, "beyond": 4,
        "beam": 3, "beam_depth": 4,
    }  # fmt: skip
    return record(pair, prompts, max_new_tokens=budget, **(options | more))


def live(pair, growth, prompt, budget, stop=lambda ids: False):
    """Accepted tokens, kept tokens and nodes of each live step, by the position where it begins."""
    law = next(iter(growth.laws))
    rule = verify.greedy if law is Law.DETERMINISTIC else verify.rrsw
    steps = decode(
        ModelTarget(pair.target), ModelDrafter(pair.draft, growth, law, GREEDY), rule,
        torch.tensor(prompt), sampling=GREEDY, coins=TorchCoins(0), max_new_tokens=budget, stop=stop,
    )  # fmt: skip
    at, found = 0, {}
    for step in steps:
        found[at] = (step.verdict.accepted, len(step.tokens), step.tree.shape.size)
        at += step.verdict.emitted
    return found


def compared(pair, growth, trace, prompts, budget, stop=lambda ids: False):
    """Count sure steps, unsure steps, and unsure steps that differ from a live run."""
    replayed, counts = replay_growth(trace, growth), [0, 0, 0]
    for i, prompt in enumerate(prompts):
        live_steps, at = live(pair, growth, prompt, budget, stop), 0
        for step in range(*replayed.offsets[i : i + 2]):
            replayed_step = (replayed.accepted[step], replayed.kept[step], replayed.sizes[step])
            if replayed.sure[step]:
                counts[0] += 1
                if at in live_steps:  # an earlier unsure step may have gone elsewhere
                    assert replayed_step == live_steps[at], (growth, i, at)
            else:
                counts[1] += 1
                counts[2] += at not in live_steps or replayed_step != live_steps[at]
            at += replayed.accepted[step] + 1
        if all(replayed.sure[slice(*replayed.offsets[i : i + 2])]):
            steps = replayed.offsets[i + 1] - replayed.offsets[i]
            assert steps == len(live_steps)
    return counts


@pytest.mark.parametrize("growth", GROWTHS, ids=lambda growth: type(growth).__name__)
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10_000), spread=st.sampled_from([0.5, 1.5, 3.0]))
def test_sure_steps_are_those_of_a_live_run(without_shape_checks, growth, seed, spread):
    pair, prompts = tables(6, seed, spread), [(0,), (1, 2)]
    stop = stop_at_tokens([5])
    trace = recorded(pair, prompts, 7, stop=stop)
    sure, unsure, _ = compared(pair, growth, trace, prompts, 7, stop)
    assert sure + unsure


def test_few_steps_are_unsure(without_shape_checks):
    """The beam is as wide as the growth; with a narrower beam more steps are unsure, and marked so."""
    pair, prompts = tables(8, 3), [(i,) for i in range(8)]
    wide, narrow = recorded(pair, prompts, 12), recorded(pair, prompts, 12, beam=2)
    for growth in GROWTHS[:3]:
        sure, unsure, wrong = compared(pair, growth, wide, prompts, 12)
        assert sure > 9 * unsure, growth
        assert wrong <= unsure
    poor = Eagle2(2, 4, 12)
    starved = recorded(pair, prompts, 12, beam=2, beam_depth=4)
    assert compared(pair, poor, starved, prompts, 12)[0] > 0
    assert narrow.draft_rows.width == 2
    wider = SpecExec(12, 2, 4)  # of more nodes than a level's two best
    assert compared(pair, wider, narrow, prompts, 12)[1] > 0


def test_growths_that_draw_are_chains_at_temperature_0(without_shape_checks):
    pair, prompts = tables(6, 1), [(0,), (1,)]
    trace = recorded(pair, prompts, 9, beam=0)
    for growth in (DySpec(4), DySpec(9, 3)):
        replayed = replay_growth(trace, growth)
        for i, prompt in enumerate(prompts):
            steps = slice(*replayed.offsets[i : i + 2])
            mine = zip(
                replayed.accepted[steps], replayed.kept[steps], replayed.sizes[steps], strict=True
            )
            assert list(mine) == list(live(pair, growth, prompt, 9).values())


@pytest.fixture(scope="module")
def embedded():
    return load_pair("embedded", dtype="float32")


def test_the_embedded_pair(embedded, without_shape_checks):
    """Live rows come from other passes, so their last digits differ, but no step does."""
    from treespec.experiments.config.schema import EmbeddedPrompts
    from treespec.experiments.run.prompts import encode, read_prompts

    config = EmbeddedPrompts(kind="embedded", count=1, tokens=32)
    prompts = [list(p.ids) for p in encode(read_prompts(config)[:1], config, embedded.tokenizer)]
    trace = recorded(embedded, prompts, 12, beam=4, beyond=5, beam_depth=5, width=4)
    for growth in (
        Eagle2(4, 5, 12),
        SpecExec(12, 4, 5),
        OptTree(5, 0.0, 5),
        CostAware(TIMES, 12, 5, 4),
    ):
        compared(embedded, growth, trace, prompts, 12)


def test_above_temperature_0_steps_have_the_law_of_a_live_run(monkeypatch, without_shape_checks):
    """Enumerate all coins on both sides: the number of tokens that the first step accepts."""
    pair, growth = tables(3, 4), Eagle2(2, 2, 4)
    for rule in (verify.naive, verify.onehot):

        def play(coins, rule=rule):
            monkeypatch.setattr(recording, "TorchCoins", lambda seed: coins)
            trace = recorded(
                pair, [(0,)], 1, rule=rule, sampling=WARM, width=2, beyond=1, beam=3, beam_depth=2
            )
            return int(replay_growth(trace, growth).accepted[0])

        def play_live(coins, rule=rule):
            steps = decode(
                ModelTarget(pair.target), ModelDrafter(pair.draft, growth, Law.DETERMINISTIC, WARM), rule,
                torch.tensor([0]), sampling=WARM, coins=coins, max_new_tokens=1,
            )  # fmt: skip
            return next(iter(steps)).verdict.accepted

        laws = []
        for game in (play, play_live):
            laws.append([0.0] * 3)
            for weight, accepted in outcomes(game):
                laws[-1][accepted] += weight
        np.testing.assert_allclose(laws[0], laws[1], atol=1e-6)
        assert min(laws[0]) > 0.01


def test_files_hold_the_rows_and_older_ones_are_read(tmp_path, without_shape_checks):
    pair = tables(6, 2)
    trace = recorded(pair, [(0,), (1,)], 6)
    again = Trace.load(trace.save(tmp_path / "rows.npz"))
    rows = trace.draft_rows
    assert (rows.width, rows.depth, rows.positions) == (3, 4, len(trace.tokens))
    assert np.diff(rows.offsets).tolist() == [1 + 3 * 3] * rows.positions
    for name in ("offsets", "parents", "ranks", "text_ranks"):
        np.testing.assert_array_equal(getattr(again.draft_rows, name), getattr(rows, name))
    np.testing.assert_allclose(again.draft_rows.probs, rows.probs, atol=1e-7)
    np.testing.assert_array_equal(rows.text_ranks, np.minimum(trace.ranks, 3))
    without = recorded(pair, [(0,), (1,)], 6, beam=0)
    assert Trace.load(without.save(tmp_path / "none.npz")).draft_rows is None


def changed(trace, **fields):
    from dataclasses import replace

    return replace(trace, **fields)


def test_what_cannot_be_replayed_is_refused(without_shape_checks):
    pair, prompts = tables(6, 2), [(0,)]
    trace, growth = recorded(pair, prompts, 6), Eagle2(2, 3, 6)
    bare = recorded(pair, prompts, 6, beam=0)
    short = recorded(pair, prompts, 1, beyond=1)
    for given_, grown, words in (
        (bare, growth, "no draft rows: record it again with --beam 8"),
        (
            trace,
            Eagle2(4, 3, 6),
            "asks for 4 children of a node, but the trace's draft rows hold 3",
        ),
        (trace, Eagle2(2, 5, 6), "grows to depth 5, but the trace has draft rows for 4 levels"),
        (short, growth, "text 0 of the trace has 2 positions"),
        (changed(trace, forced=True), growth, "of given texts"),
        (changed(trace, law="iid", rule="rrs"), growth, "of law 'iid' and rule 'rrs'"),
        (changed(trace, sampling={"temperature": 1.0}), DySpec(4), "draws its children"),
        (trace, DDTree(6, 3), "'DDTree' takes the children of all nodes of a level from one row"),
    ):
        with pytest.raises(InvalidTrace, match=words):
            replay_growth(given_, grown)


def test_what_cannot_be_recorded_is_refused():
    pair = tables(4)
    with pytest.raises(InvalidTrace, match="the law is 'iid'"):
        recorded(pair, [(0,)], 4, law=Law.IID, rule=verify.rrs, sampling=WARM)
    with pytest.raises(InvalidTrace, match=r"500,004 positions.*MiB"):
        recorded(pair, [(0,)], 500_000)
    with pytest.raises(InvalidTree, match="vocabulary has 4"):
        recorded(pair, [(0,)], 4, beam=5)


def test_rows_that_do_not_fit_are_refused():
    rows = recorded(tables(6, 2), [(0,)], 3).draft_rows
    for name, value in (
        ("probs", np.where(rows.probs > 0, 0.6, 0)),
        ("parents", np.zeros_like(rows.parents)),
        ("ranks", rows.ranks + 3),
        ("text_ranks", rows.text_ranks + 9),
        ("offsets", rows.offsets[:-1]),
        ("text_ranks", rows.text_ranks[1:]),
        ("probs", [["x"]]),
    ):
        with pytest.raises(InvalidTrace, match=r"draft_rows\.\w+ (does not fit|= )"):
            changed(rows, **{name: value})
    trace = recorded(tables(6, 2), [(0,)], 4)
    with pytest.raises(InvalidTrace, match="draft_rows has"):
        changed(trace, draft_rows=rows)
