"""Traces of trained heads: replays are the live runs step by step, and rows of one run's roots are not."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from head_formats import fitted_head, target
from marginal_heads import random_block, random_medusa, table_medusa
from tabular_heads import TabularHead
from typer.testing import CliRunner

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, load_pair, verify
from treespec.draft import BlockDraft, Eagle3, Medusa, NoDrafter
from treespec.experiments.cli.main import app
from treespec.experiments.config.build import build
from treespec.experiments.config.schema import Config
from treespec.experiments.config.trained import Eagle3Draft, MedusaDraft
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure import recording
from treespec.experiments.measure.head_recording import TracedHead, record_head
from treespec.experiments.measure.replays import UNBIASED, replay_tables, replay_traces
from treespec.experiments.measure.traces import trace as trace_command
from treespec.experiments.run.right_marks import fresh_right, next_right
from treespec.features import Features
from treespec.sampling.processors import Processors
from treespec.search import (
    DDTree,
    InvalidTrace,
    LatencyModel,
    Trace,
    best_tree,
    estimate_acceptance,
)
from treespec.search.choice.growth_replay import replay_growth
from treespec.search.growth import Eagle2, SpecExec
from treespec.search.traces.next_right import accepted_nodes
from treespec.search.traces.replay import replay
from treespec.search.traces.totals import TextTotals
from treespec.target import ModelTarget
from treespec.testing import TabularModel, outcomes, random_table

COLD, WARM = Sampling(temperature=0.0), Sampling()
PROMPTS = [[5, 17, 80, 2], [41, 63, 9], [33, 7], [12]]
NEW = 30
SHAPES = [
    TreeShape.chain(3), TreeShape.chain(1), TreeShape.expansion([3, 2, 1]), TreeShape.kary(2, 4),
    TreeShape((-1, 0, 0, 0, 2, 2, 5)),
]  # fmt: skip
GROWTHS = [Eagle2(3, 4, 9), SpecExec(8, 3, 4)]


def greedy(model, prompt, count):
    steps = decode(
        ModelTarget(model), NoDrafter(), verify.greedy, torch.tensor(prompt), sampling=COLD,
        coins=TorchCoins(0), max_new_tokens=count,
    )  # fmt: skip
    return [*prompt, *(token for step in steps for token in step.tokens)]


def made(name, dtype, sampling=COLD):
    """A head that is fitted to a part of the texts, so that its drafts are sometimes right."""
    model = target(dtype=dtype)
    text = [token for prompt in PROMPTS for token in greedy(model, prompt, 18)]
    kind, head = {
        "eagle3": lambda: (Eagle3, fitted_head(model, text, Features((1, 2, 3)))),
        "medusa": lambda: (Medusa, random_medusa(model, text)),
        "block": lambda: (BlockDraft, random_block(model, text)),
    }[name]()

    def drafter(tree):
        return kind(head, tree, Law.DETERMINISTIC, sampling)

    def record(**more):
        options = {
            "rule": verify.greedy,
            "width": 5,
            "beam": 5,
            "beam_depth": 4,
            "beyond": 4,
        } | more
        return record_head(
            TracedHead(model, drafter), PROMPTS, sampling=sampling, max_new_tokens=NEW, **options
        )  # fmt: skip

    return SimpleNamespace(
        model=model, drafter=drafter, record=record, trace=record(), sampling=sampling
    )


@pytest.fixture(scope="module")
def heads():
    kinds = {"eagle3": torch.float64, "medusa": torch.float64, "block": torch.float32}
    return {name: made(name, dtype) for name, dtype in kinds.items()}


def live(head, tree):
    """For each text, its steps as (accepted, kept, nodes)."""
    return [
        [
            (step.verdict.accepted, len(step.tokens), step.tree.shape.size)
            for step in decode(
                ModelTarget(head.model), head.drafter(tree), verify.greedy, torch.tensor(prompt),
                sampling=head.sampling, coins=TorchCoins(0), max_new_tokens=NEW,
            )
        ]
        for prompt in PROMPTS
    ]  # fmt: skip


def per_text(replayed, *columns):
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    return [rows[a:b] for a, b in zip(replayed.offsets[:-1], replayed.offsets[1:], strict=True)]


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", ["eagle3", "medusa", "block"])
def test_chains_and_trees_are_replayed_step_by_step(heads, name):
    head, most = heads[name], 0
    totals = TextTotals(head.trace)
    for shape in SHAPES:
        found = replay(head.trace, shape)
        steps = [[step[:2] for step in text] for text in live(head, shape)]
        assert per_text(found, found.accepted, found.kept) == steps
        emitted, count = totals.of([shape])
        assert emitted[0].tolist() == found.emitted.tolist()
        assert count[0].tolist() == found.steps.tolist()
        most = max(most, int(found.accepted.max()))
    assert most >= 2  # the rows below the root matter


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", ["eagle3", "medusa"])
def test_under_processors_too(name):
    """Rows depend on the path to each node, those of a head with one row for each depth too."""
    penalties = Sampling(temperature=0.0, processors=Processors(repetition_penalty=1.3))
    head = made(name, torch.float64, penalties)
    assert not head.trace.draft_rows.by_depth
    found = replay(head.trace, TreeShape.kary(2, 3))
    steps = [[step[:2] for step in text] for text in live(head, TreeShape.kary(2, 3))]
    assert per_text(found, found.accepted, found.kept) == steps
    assert found.accepted.max() > 0
    assert sure_steps(head, GROWTHS[0]) > 0.7 * len(found.accepted)


def sure_steps(head, growth):
    """How many steps before the first unsure one of each text are compared with those of a live run."""
    found, seen = replay_growth(head.trace, growth), 0
    steps = per_text(found, found.accepted, found.kept, found.sizes)
    for i, (mine, right, sure) in enumerate(
        zip(steps, live(head, growth), per_text(found, found.sure), strict=True)
    ):
        first = next((step for step, (known,) in enumerate(sure) if not known), len(sure))
        # After a prompt of one token, the last, a head may know nothing and draft the root alone.
        parts = slice(2 if len(PROMPTS[i]) == 1 else 3)
        assert [step[parts] for step in mine[:first]] == [step[parts] for step in right[:first]]
        seen += first
    return seen


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", ["eagle3", "medusa", "block"])
def test_sure_steps_of_growths_are_those_of_a_live_run(heads, name):
    """Of a head with one row for each depth all rows are known, and only `ddtree` may ask for more."""
    head = heads[name]
    for growth in GROWTHS:
        steps = len(replay_growth(head.trace, growth).accepted)
        assert sure_steps(head, growth) > (0.5 * steps if name == "eagle3" else steps - 1)
    if name != "eagle3":
        assert sure_steps(head, DDTree(4, 4)) > 0.5 * steps


def test_following_the_targets_own_texts_is_decoding(heads):
    trace = heads["medusa"].trace
    texts = [text.tolist() for text in np.split(trace.tokens, trace.offsets[1:-1])]
    again = heads["medusa"].record(follow=texts)
    assert not again.forced
    np.testing.assert_array_equal(again.path_ranks, trace.path_ranks)
    np.testing.assert_allclose(again.draft_rows.probs, trace.draft_rows.probs, atol=1e-12)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", ["eagle3", "medusa", "block"])
def test_rows_at_every_position_predict_another_shape_and_rows_at_roots_do_not(heads, name):
    """A head's drafts at the roots of one run alone are better or worse than those of another run's."""
    head, ran, other = heads[name], TreeShape.chain(1), TreeShape.kary(3, 3)
    right = [step[0] for text in live(head, other) for step in text]
    tokens = 1 + np.mean(right)
    assert replay(head.trace, other).tokens_per_step == pytest.approx(tokens, abs=1e-12)
    biased = at_roots(head.trace, replay(head.trace, ran).starts, other)
    assert biased > 1.05 * tokens


def at_roots(trace, starts, shape):
    """Tokens per step of a shape, if all its steps began at these roots of another run."""
    accepted = []
    for start in starts.tolist():
        node = 0
        for rank in trace.path_ranks[start].tolist():
            children = shape.children[node]
            if rank >= len(children):
                break
            node = children[rank]
        accepted.append(shape.depths[node])
    return 1 + float(np.mean(accepted))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", ["eagle3", "medusa"])
def test_replays_say_as_often_as_live_runs_that_the_next_token_is_right(heads, name):
    head, seen = heads[name], set()
    for shape in (TreeShape.chain(3), TreeShape.kary(2, 3)):
        nodes = accepted_nodes(head.trace, replay(head.trace, shape))
        marks = {1: "1", 0: "0", -1: "-"}
        columns = (nodes.text, nodes.depth, nodes.spine, nodes.right, nodes.fresh)
        found = [
            (text, depth, spine, marks[right], marks[fresh])
            for text, depth, spine, right, fresh in zip(*(c.tolist() for c in columns), strict=True)
        ]
        texts = slice(
            None, -1
        )  # a head that knows nothing, as at the start of the last, has no row
        right = [node for i in range(len(PROMPTS))[texts] for node in live_nodes(head, shape, i)]
        assert [node for node in found if node[0] < len(PROMPTS) - 1] == right
        seen |= {(spine, mark == new) for _, _, spine, mark, new in right}
    assert (False, False) in seen  # after a sibling, a fresh draft is another one


def live_nodes(head, shape, text):
    drafter, ids, nodes, outcomes = head.drafter(shape), torch.tensor(PROMPTS[text]), [], []
    for step in decode(
        ModelTarget(head.model), drafter, verify.greedy, ids, sampling=COLD, coins=TorchCoins(0),
        max_new_tokens=NEW,
    ):  # fmt: skip
        found = next_right(drafter, step)
        nodes += [
            (text, depth, depth <= found.spine, mark) for depth, mark in enumerate(found.right)
        ]
        outcomes.append(SimpleNamespace(text=step.tokens, kept=len(step.tokens)))
    fresh = "".join(fresh_right(ModelTarget(head.model), head.drafter(shape), COLD, ids, outcomes))
    return [(*node, new) for node, new in zip(nodes, fresh, strict=True)]


def test_files_hold_the_ranks_and_readers_use_them(heads, tmp_path):
    trace = heads["eagle3"].trace
    path = trace.save(tmp_path / "head.npz")
    again = Trace.load(path)
    np.testing.assert_array_equal(again.path_ranks, trace.path_ranks)
    assert (trace.levels, trace.draft_rows.by_depth) == (4, False)
    assert heads["medusa"].trace.draft_rows.by_depth
    rows = replay_traces([path], "chain:3,kary:2x3", ["{kind: eagle2, k: 3, depth: 4, size: 9}"])
    assert UNBIASED in replay_tables(rows)[0].said
    estimated = estimate_acceptance(trace, by="depth", depth=3)
    starts = np.flatnonzero(trace.inside)
    assert estimated.counts.hits[:, 0].sum() == (trace.ranks[starts] < trace.width).sum()
    followed = estimated.counts.hits[:, 1].sum()
    assert followed <= (trace.path_ranks[starts, 1] < trace.width).sum()
    assert 0 < followed < estimated.counts.hits[:, 0].sum()
    times = LatencyModel.from_tables(verify={1: 0.02, 64: 0.021}, draft={1: 0.0001, 64: 0.0001})
    best = best_tree(trace, times, max_size=9, depth=3, draws=50).rows
    for row in best:
        if row.basis == "replay" and row.growth is None:
            expected = replay(trace, row.shape).tokens_per_step
            assert row.speed.tokens == pytest.approx(expected, rel=0.2)


def test_what_cannot_be_recorded_or_replayed_is_refused(heads):
    head = heads["eagle3"]
    bare = head.record(beam=0)
    for refused, said in (
        (lambda: replay(bare, TreeShape.chain(5)), r"4 levels .* record it again with --beam-depth 5"),
        (lambda: estimate_acceptance(bare, by="depth", depth=9), "--beam-depth 9"),
        (lambda: replay_growth(bare, Eagle2(2, 3, 5)), "record it again with --beam 8"),
        (lambda: replay_growth(head.trace, DDTree(6, 4)), "holds a separate row for each node"),
        (lambda: replay_growth(head.trace, Eagle2(2, 5, 6)), "--beam-depth 5"),
        (lambda: replay_growth(heads["medusa"].trace, SpecExec(6, 2, 5)), "the head drafts no deeper"),
        (lambda: replace(bare, path_ranks=bare.path_ranks + 9), "path_ranks must hold"),
        (lambda: replace(bare, path_ranks=bare.path_ranks[:, 1:]), "path_ranks must hold"),
        (lambda: head.record(rule=verify.rrs), "law 'deterministic' with rule 'rrs' cannot be traced"),
        (lambda: head.record(beyond=10**6), r"rows of 5 children at each of 4,000,120 positions"),
        (lambda: head.record(beam_depth=0), "beam_depth = 0"),
    ):  # fmt: skip
        with pytest.raises(InvalidTrace, match=said):
            refused()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("kind", [Medusa, Eagle3])
def test_above_temperature_0_steps_have_the_law_of_a_live_run(kind, monkeypatch):
    """Enumerate all coins on both sides: the number of tokens that the first step accepts."""
    model, shape = TabularModel(random_table(3, 4, 1.5), 3), TreeShape.kary(2, 2)
    head: Any = table_medusa(3) if kind is Medusa else TabularHead(random_table(3, 9, 1.5), 3)

    def drafter(tree):
        return kind(head, tree, Law.DETERMINISTIC, WARM)

    for rule in (verify.naive, verify.onehot):

        def play(coins, rule=rule):
            monkeypatch.setattr(recording, "TorchCoins", lambda seed: coins)
            trace = record_head(
                TracedHead(model, drafter), [[0, 1]], sampling=WARM, rule=rule, width=2,
                max_new_tokens=1, beyond=1, beam_depth=2,
            )  # fmt: skip
            return int(replay(trace, shape).accepted[0])

        def play_live(coins, rule=rule):
            steps = decode(
                ModelTarget(model), drafter(shape), rule, torch.tensor([0, 1]), sampling=WARM,
                coins=coins, max_new_tokens=1,
            )  # fmt: skip
            return next(iter(steps)).verdict.accepted

        laws = []
        for game in (play, play_live):
            laws.append([0.0] * 3)
            for weight, accepted in outcomes(game):
                laws[-1][accepted] += weight
        np.testing.assert_allclose(laws[0], laws[1], atol=1e-6)
        assert min(laws[0]) > 0.01


@pytest.mark.usefixtures("without_shape_checks")
def test_the_command_records_a_method(monkeypatch, tmp_path):
    pair = load_pair("embedded", "none")
    for source, read in (
        (
            Eagle3Draft,
            lambda self, target: fitted_head(target, [5, 6, 7] * 20, Features((1, 2, 3))),
        ),
        (MedusaDraft, lambda self, target: random_medusa(target, [5, 6, 7] * 20)),
    ):
        monkeypatch.setattr(source, "read", read)
    methods = [
        {
            "kind": "tree",
            "name": name,
            "draft": {"source": name, "model": "fitted"},
            "shape": "kary:2x3",
        }
        for name in ("eagle3", "medusa")
    ]
    drawn = {**methods[0], "name": "drawn", "law": "iid", "rule": "rrs"}
    asked = Config.model_validate({
        "name": "heads", "models": {"target": "embedded", "draft": "none"},
        "prompts": {"kind": "embedded", "count": 2, "tokens": 24}, "max_new_tokens": 8,
        "samplings": [{"temperature": 0}, {"temperature": 1}], "methods": [*methods, drawn],
    })  # fmt: skip
    for method in build(asked).methods[:2]:
        made_ = trace_command(
            asked,
            method=method.name,
            sampling="T=0",
            beyond=2,
            beam_depth=3,
            load=lambda models: pair,
        )
        assert made_.about["draft"]["source"] == method.name
        assert made_.about["models"]["draft"].startswith(method.name)
        assert made_.levels == (3 if method.name == "eagle3" else 4)
        path = made_.save(tmp_path / f"{method.name}.npz")
        done = CliRunner().invoke(app, ["replay", str(path), "--shapes", "chain:2"])
        assert "no position bias" in " ".join(done.output.split())
    for name, sampling in (("drawn", "T=1"), ("eagle3", "T=1")):
        with pytest.raises(ConfigError, match=r"--method .* cannot be traced with a trained head"):
            trace_command(asked, method=name, sampling=sampling, load=lambda models: pair)
