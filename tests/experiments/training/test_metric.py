"""The metric of a training: its replays are live runs, and it records what the slow way records."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from head_formats import fitted_head, head_of, target
from marginal_heads import random_block, random_medusa
from rich.console import Console
from tiny_models import perturbed

from treespec import Law, Sampling, TorchCoins, decode, verify
from treespec.draft import BlockDraft, Eagle3, Medusa, ModelDrafter, NoDrafter
from treespec.errors import InvalidArgument, InvalidTree
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure import forest_recording
from treespec.experiments.measure.head_recording import TracedHead, record_head
from treespec.experiments.measure.recording import record
from treespec.experiments.report.terminal import print_table
from treespec.experiments.training.held_out_answers import BEYOND, HeldOut, TargetSays, answered
from treespec.experiments.training.metric import (
    DEPTH,
    RATES,
    STATIC,
    WIDTH,
    measure,
    recorded,
)
from treespec.experiments.training.metric_check import compared
from treespec.features import Features, reads_of
from treespec.models.transformers_model import TransformersModel
from treespec.search.choice.growth_replay import replay_growth
from treespec.search.growth import SpecExec
from treespec.search.value.optimal import optimal_tree
from treespec.stopping import stop_at_tokens
from treespec.target import ModelTarget

COLD = Sampling(temperature=0.0)
PROMPTS = [[5, 17, 80, 2], [41, 63, 9], [33, 7], [12, 90, 3]]
FAMILIES = ("eagle3", "medusa", "block", "model")
pytestmark = pytest.mark.usefixtures("without_shape_checks")


def draft(name, says):
    """A drafter's maker; heads are fitted to parts of the answers, so that they are sometimes right."""
    model = says.target
    parts = zip(says.held_out.prompts, says.held_out.answers, strict=True)
    text = [token for prompt, answer in parts for token in [*prompt, *answer[:10]]]
    kind, head = {
        "eagle3": lambda: (Eagle3, fitted_head(model, text, Features((1, 2, 3)))),
        "medusa": lambda: (Medusa, random_medusa(model, text)),
        "block": lambda: (BlockDraft, random_block(model, text)),
        "model": lambda: (ModelDrafter, TransformersModel(perturbed(model.model, 0.1))),
    }[name]()
    return lambda tree: kind(head, tree, Law.DETERMINISTIC, COLD)


@pytest.fixture(autouse=True)
def _several_passes(monkeypatch):
    """Answers are longer than what one tree of the model holds, as they are in a training."""
    monkeypatch.setattr(forest_recording, "POSITIONS_PER_PASS", 5)


@pytest.fixture(scope="module")
def says():
    return TargetSays(target(), answered(target(), PROMPTS, positions=48))


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, says):
    return SimpleNamespace(name=request.param, says=says, make=draft(request.param, says))


def along(drafter, path):
    """The drafter's logits at the root and after the answer's next token."""
    parents, tokens = [-1, 0, 0, 1], [*path, -1, -1]
    rows = drafter.draw_into(parents, tokens, {0: [2], 1: [3]}, {}, TorchCoins(0))
    return [rows[0], rows[1]]


def test_replays_are_live_runs_step_by_step(family):
    """Float32, eager, temperature 0: steps begin where the replay's do, and accept as much."""
    found = [*compared(family.says, family.make)]
    assert [each.tree for each in found] == [
        "chain_4",
        "static_16",
        "best_first_16",
        "best_first_64",
    ]
    for each in found:
        assert each.differences == ()
        assert each.live == pytest.approx(each.replayed, abs=1e-12)
    assert found[-1].live > 1.2


def test_a_difference_is_told_with_its_gap(says):
    """One answer's token is changed, and one draft: both are found, each with the tie that it would be."""
    held, make = says.held_out, draft("medusa", says)
    changed = (*held.answers[0][:4], (held.answers[0][4] + 1) % 90, *held.answers[0][5:])
    wrong = held.model_copy(update={"answers": (changed, *held.answers[1:])})
    (other, *_) = next(compared(TargetSays(target(), wrong), make)).differences
    assert (other.text, other.cause) == (0, "target")
    assert other.gap > 0
    worse = draft("medusa", TargetSays(target(), answered(target(), PROMPTS[::-1], positions=12)))
    drafts = iter([make, *[worse] * 99])
    (mine, *_) = next(compared(says, lambda tree: next(drafts)(tree))).differences
    assert (mine.cause, mine.replayed == mine.live) == ("draft", False)


def test_it_records_what_the_slow_way_records(family):
    says, held = family.says, family.says.held_out
    trace = recorded(says, family.make).trace
    settings = {
        "sampling": COLD, "rule": verify.greedy, "width": WIDTH, "max_new_tokens": max(held.kept),
        "beyond": BEYOND, "follow": held.answers,
    }  # fmt: skip
    if family.name == "model":
        draft_model = family.make(STATIC).given
        pair = SimpleNamespace(target=says.target, draft=draft_model)
        slow = record(
            pair, held.prompts, law=Law.DETERMINISTIC, beam=WIDTH, beam_depth=3, **settings
        )
    else:
        slow = record_head(
            TracedHead(says.target, family.make), held.prompts, beam=WIDTH, beam_depth=4, **settings
        )
    inside = slow.inside
    np.testing.assert_array_equal(trace.offsets, slow.offsets)
    np.testing.assert_array_equal(trace.tokens, slow.tokens)
    np.testing.assert_array_equal(trace.ranks[inside], slow.ranks[inside])
    np.testing.assert_allclose(trace.probs[inside], slow.probs[inside], atol=1e-5)
    assert (trace.ranks[inside] < WIDTH).any()
    if family.name != "model":
        levels = slow.path_ranks.shape[1]
        np.testing.assert_array_equal(trace.path_ranks[inside, :levels], slow.path_ranks[inside])
    growth, sure = SpecExec(12, 4, 3), 0
    mine, other = replay_growth(trace, growth), replay_growth(slow, growth)
    assert mine.sure.all()
    if other.sure.all():
        np.testing.assert_array_equal(mine.accepted, other.accepted)
        sure = len(mine.accepted)
    assert sure or family.name == "eagle3"


def test_a_head_with_rows_for_some_tokens_too(says, tmp_path):
    """Its rows are over 40 of the target's 96 tokens while it is recorded."""
    head = head_of("eagle3", tmp_path, says.target)
    assert head.net.kept is not None
    assert head.of_its_tokens().net.kept is None

    def make(tree):
        return Eagle3(head, tree, Law.DETERMINISTIC, COLD)

    trace, held = recorded(says, make).trace, says.held_out
    slow = record_head(
        TracedHead(says.target, make), held.prompts, sampling=COLD, rule=verify.greedy, width=WIDTH,
        max_new_tokens=max(held.kept), beyond=BEYOND, follow=held.answers, beam=2, beam_depth=2,
    )  # fmt: skip
    inside = slow.inside
    np.testing.assert_array_equal(trace.path_ranks[inside, :2], slow.path_ranks[inside])
    np.testing.assert_allclose(trace.probs[inside], slow.probs[inside], atol=1e-5)
    assert (trace.ranks[inside] < WIDTH).any()


def test_acceptance_and_loss_are_those_of_a_drafter_led_along_the_answer(family):
    """The children of a rank, and the divergence at two depths, by the drafter's own rows."""
    says = TargetSays(family.says.target, family.says.held_out, torch.arange(80))
    found = recorded(says, family.make)
    hits, positions, shared, losses = np.zeros((2, 2)), 0, 0.0, np.zeros(2)
    features_of = says.features(reads_of(family.make(STATIC)))
    for (prompt, answer), kept, rows, features in zip(
        says.texts, says.held_out.kept, says.logits, features_of, strict=True
    ):
        ids = torch.cat([prompt, answer])
        for at in range(kept):
            root = len(prompt) + at
            drafter = family.make(STATIC)
            own = () if features is None else (features[: root - 1],)
            drafter.prefill(ids[:root], *own)
            logits = along(drafter, ids[root - 1 : root + 1].tolist())
            for depth, row in enumerate(logits):
                ranks = row.topk(2).indices.tolist()
                hits[depth] += [token == int(ids[root + depth]) for token in ranks]
                target_logs = rows[at + depth][:80].log_softmax(-1)
                away = target_logs - row[:80].log_softmax(-1)
                losses[depth] += float((target_logs.exp() * away).sum())
            shared += float(torch.minimum(logits[0].softmax(-1), rows[at].softmax(-1)).sum())
            positions += 1
    np.testing.assert_allclose(
        [row[:2] for row in found.acceptance[:2]], hits / positions, atol=1e-12
    )
    near = found.near
    np.testing.assert_allclose(near.by_depth[:2], losses / positions, rtol=1e-4)
    assert near.loss.estimate == pytest.approx(np.mean(near.by_depth), rel=1e-9)
    covered = torch.cat([rows[:kept].softmax(-1)[:, :80].sum(-1) for rows, kept in zip(
        says.logits, says.held_out.kept, strict=True)])  # fmt: skip
    assert near.covered == pytest.approx(float(covered.mean()), abs=1e-6)
    assert near.overlap.estimate == pytest.approx(shared / positions, abs=1e-5)
    assert 0 < hits[1].sum() < positions


def test_a_draft_with_some_rows_has_the_loss_of_the_same_draft_with_all(says, tmp_path):
    """Its own tokens are those that are compared: what it draws for others does not count."""
    head = head_of("eagle3", tmp_path, says.target)
    kept = head.net.kept

    def make(tree):
        return Eagle3(head, tree, Law.DETERMINISTIC, COLD)

    own = recorded(says, make).near
    among = recorded(TargetSays(says.target, says.held_out, kept), make).near
    assert own == among
    assert 0 < own.covered < 1
    mine = recorded(TargetSays(says.target, says.held_out, kept), draft("model", says)).near
    assert mine.covered == own.covered
    assert mine.loss != recorded(says, draft("model", says)).near.loss


def test_answers_are_the_targets_own_and_can_be_kept(tmp_path):
    model = target()
    free = answered(model, PROMPTS, positions=40)
    assert (free.kept, free.positions) == ((10,) * 4, 40)
    for prompt, answer in zip(free.prompts, free.answers, strict=True):
        steps = decode(
            ModelTarget(model), NoDrafter(), verify.greedy, torch.tensor(prompt), sampling=COLD,
            coins=TorchCoins(0), max_new_tokens=10 + BEYOND,
        )  # fmt: skip
        assert list(answer) == [token for step in steps for token in step.tokens]
    ends = free.answers[1][4]
    stopped = answered(model, PROMPTS, positions=40, stop=stop_at_tokens([ends]))
    assert stopped.kept[1] <= 5
    assert len(stopped.answers[1]) == stopped.kept[1] + BEYOND
    path = tmp_path / "held_out.json"
    free.save(path)
    assert HeldOut.load(path) == free
    data = json.loads(path.read_text())
    for damaged, said in (
        ({**data, "kept": [9]}, "as many"),
        ({**data, "kept": [99, 1, 1, 1]}, r"kept\[0\]"),
        ({**data, "prompts": [[1], *data["prompts"][1:]]}, r"prompts\[0\]"),
        ([], "must be an object"),
    ):
        path.write_text(json.dumps(damaged))
        with pytest.raises(ConfigError, match=f"held_out.json.*{said}"):
            HeldOut.load(path)
    for none in ([], [[4]]):
        with pytest.raises(InvalidArgument, match="at least two tokens"):
            answered(model, none)


def test_the_metric_is_a_line_of_numbers_and_tables(family):
    found = measure(family.says, family.make)
    row = found.row()
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert row["positions"] == 48
    assert row["steps_chain_4"] == found.trees["chain_4"].steps
    assert row["tokens_per_step_best_first_64"] >= row["tokens_per_step_best_first_16"] - 1e-9
    assert row["held_out_loss"] == pytest.approx(
        np.mean([row[f"held_out_loss_{d}"] for d in range(1, 5)])
    )
    assert row["covered"] == pytest.approx(1)
    assert row["accepted_1_1"] == found.acceptance[0][0]
    assert len(found.acceptance) == (4 if family.name in ("medusa", "block") else DEPTH)
    assert row["nodes_spine"] + row["nodes_sibling"] > 0
    console = Console(width=90, record=True)
    for table in found.tables():
        print_table(table, console)
    text = console.export_text()
    assert f"{row['tokens_per_step_static_16']:.3f}" in text
    assert "48 positions" in text


def test_the_static_tree_is_the_best_for_its_rates():
    assert optimal_tree(RATES, 16, depth=4) == STATIC


def test_a_head_less_deep_than_the_chain_is_refused(says):
    heads = random_medusa(says.target, [5, 6, 7] * 9, heads=3)
    with pytest.raises(InvalidTree, match="the head predicts 3 positions"):
        measure(says, lambda tree: Medusa(heads, tree, Law.DETERMINISTIC, COLD))
