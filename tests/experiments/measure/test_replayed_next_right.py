"""Replays say as often as live runs that the next token is right."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, load_pair, verify
from treespec.draft import ModelDrafter, PromptLookup
from treespec.experiments.measure.recording import record
from treespec.experiments.measure.replays import plain_rows, replay_tables, replay_traces
from treespec.experiments.measure.source_recording import record_source
from treespec.experiments.run.right_marks import fresh_right, next_right
from treespec.plugins import Budget
from treespec.search import Trace
from treespec.search.choice.growth_replay import replay_growth
from treespec.search.growth import Eagle2
from treespec.search.traces.next_right import accepted_nodes
from treespec.search.traces.replay import replay, replay_budget
from treespec.target import ModelTarget
from treespec.testing import TabularModel, random_table

COLD, WARM = Sampling(temperature=0.0), Sampling()
TEXTS = ("for i in range(10):\n    print(i)\nfor j in", "def add(a, b):\n    return a + b\n\ndef ")
SHAPES = [
    TreeShape.chain(3), TreeShape.expansion([3, 2, 1]), TreeShape.kary(2, 2),
    TreeShape((-1, 0, 0, 0, 2, 2, 5)),
]  # fmt: skip
BUDGETS = [Budget(12, 6, 3), Budget(5, 3, 1), Budget(6, 4, 2)]


@pytest.fixture(scope="module")
def known():
    pair = load_pair("embedded", dtype="float32")
    return SimpleNamespace(pair=pair, prompts=[pair.tokenizer.encode(text) for text in TEXTS])


def live(target, make, prompts, tokens):
    """Depth, whether on the spine, and marks of all accepted nodes of live runs at temperature 0."""
    nodes = []
    for text, prompt in enumerate(prompts):
        drafter, ids, outcomes, of_text = make(), torch.tensor(prompt), [], []
        for step in decode(
            ModelTarget(target), drafter, verify.greedy, ids, sampling=COLD, coins=TorchCoins(0),
            max_new_tokens=tokens,
        ):  # fmt: skip
            found = next_right(drafter, step)
            of_text += [
                (text, depth, depth <= found.spine, mark) for depth, mark in enumerate(found.right)
            ]
            outcomes.append(SimpleNamespace(text=step.tokens, kept=len(step.tokens)))
        fresh = "".join(fresh_right(ModelTarget(target), make(), COLD, ids, outcomes))
        nodes += [(*node, new) for node, new in zip(of_text, fresh, strict=True)]
    return nodes


def replayed(trace, found):
    nodes = accepted_nodes(trace, found)
    marks = {1: "1", 0: "0", -1: "-"}
    columns = (nodes.text, nodes.depth, nodes.spine, nodes.right, nodes.fresh)
    return [
        (text, depth, spine, marks[right], marks[fresh])
        for text, depth, spine, right, fresh in zip(*(c.tolist() for c in columns), strict=True)
    ]


def test_of_trees_and_growths_at_temperature_0(known, without_shape_checks):
    pair, growth = known.pair, Eagle2(k=3, depth=3, size=8)
    trace = record(
        pair, known.prompts, sampling=COLD, law=Law.DETERMINISTIC, rule=verify.greedy, width=4,
        max_new_tokens=24, beyond=4, beam=6, beam_depth=3,
    )  # fmt: skip
    assert trace.target_best is None
    seen = set()
    for tree in (*SHAPES, growth):
        found = replay(trace, tree) if isinstance(tree, TreeShape) else replay_growth(trace, tree)
        assert found.sure.all()
        nodes = live(
            pair.target,
            lambda tree=tree: ModelDrafter(pair.draft, tree, Law.DETERMINISTIC, COLD),
            known.prompts, 24,
        )  # fmt: skip
        assert replayed(trace, found) == nodes
        seen |= {(spine, right) for _, _, spine, right, _ in nodes}
    assert seen == {(spine, right) for spine in (True, False) for right in "10-"}


def test_of_a_text_source_at_temperature_0(known, tmp_path):
    def lookup(budget):
        return PromptLookup(depth=budget.depth, size=budget.size, branching=budget.branching)

    made = record_source(
        known.pair.target, lookup(BUDGETS[0]), known.prompts, sampling=COLD, rule=verify.greedy,
        max_new_tokens=24, beyond=5,
    )  # fmt: skip
    trace = Trace.load(made.save(tmp_path / "x.npz"))
    for budget in BUDGETS:
        nodes = live(known.pair.target, lambda b=budget: lookup(b), known.prompts, 24)
        assert replayed(trace, replay_budget(trace, budget)) == nodes
        assert {"1", "0", "-"} == {right for *_, right, _ in nodes}


def test_above_temperature_0_the_trace_holds_both_best_tokens(tmp_path):
    vocab = 5
    target, draft = (TabularModel(random_table(vocab, seed), vocab) for seed in (3, 4))
    pair = SimpleNamespace(target=target, draft=draft)
    trace = record(
        pair, [(0,), (1, 2)], sampling=WARM, law=Law.IID, rule=verify.rrs, width=3, max_new_tokens=40,
        beyond=3,
    )  # fmt: skip
    trace = Trace.load(trace.save(tmp_path / "x.npz"))
    assert trace.target_best is not None
    found = replay(trace, TreeShape.kary(2, 3))
    nodes = accepted_nodes(trace, found)
    expected = []
    for start, accepted, kept in zip(found.starts, found.accepted, found.kept, strict=True):
        spine = True
        for depth in range(kept):
            at = start + depth
            right = int(trace.target_best[at] == trace.draft_best[at])
            leaf = depth == found.max_depth
            expected.append((depth, spine, -1 if leaf else right, right))
            spine = spine and trace.tokens[at] == trace.draft_best[at]
        assert accepted + 1 >= kept
    columns = (nodes.depth, nodes.spine, nodes.right, nodes.fresh)
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == expected
    for position, token in enumerate(trace.tokens[:40].tolist()):
        text = [0, *trace.tokens[:position].tolist()]
        for model, best in ((target, trace.target_best), (draft, trace.draft_best)):
            fresh = model.fresh()
            fresh.prefill(torch.tensor(text[:-1], dtype=torch.long))
            logits = fresh.run(torch.tensor(text[-1:]), (-1,)).logits
            assert int(logits[0].argmax()) == best[position], (position, token)


def test_old_traces_above_temperature_0_do_not_tell(tmp_path):
    count = 6
    trace = Trace(
        offsets=[0, count], tokens=[0] * count, ranks=[0] * count, probs=np.full((count, 2), 0.5),
        accepted=np.full((count, 2), 0.5), law="iid", rule="rrs", sampling={}, width=2, kept=[4],
    )  # fmt: skip
    path = trace.save(tmp_path / "old.npz")
    rows = replay_traces([path], "chain:2")
    assert rows[0]["next_right"] is None
    assert plain_rows(rows)[0]["next_right"] is None
    assert len(replay_tables(rows)) == 1


def test_the_command_shows_and_writes_the_numbers(known, tmp_path):
    trace = record(
        known.pair, known.prompts, sampling=COLD, law=Law.DETERMINISTIC, rule=verify.greedy, width=3,
        max_new_tokens=24, beyond=4,
    )  # fmt: skip
    rows = replay_traces([trace.save(tmp_path / "x.npz")], "chain:3,expansion:3x2x1")
    _, table = replay_tables(rows)
    shown = [[str(cell) for cell in cells[:2]] for cells in table.rows]
    assert shown == [
        ["chain:3", "on the spine"],
        ["expansion:3x2x1", "on the spine"],
        ["expansion:3x2x1", "after a sibling"],
        ["expansion:3x2x1", "sibling less spine"],
    ]
    shares = plain_rows(rows)[1]["next_right"]["shares"]
    assert sum(share["nodes"] for share in shares if share["depth"] != "below the root") == 48
