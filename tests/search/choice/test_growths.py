"""Trees that grow in a ranking: replayed, timed step by step, and chosen like static trees."""

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from treespec import Law, Sampling, TreeShape, verify
from treespec.experiments.cli.main import app
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure.fastest import Advised
from treespec.experiments.measure.recording import record
from treespec.search import LatencyModel, best_tree
from treespec.search.choice.candidates import Limits, room_for
from treespec.search.choice.growth_replay import replay_growth
from treespec.search.choice.growths import DECIDING, _grid, grown
from treespec.search.choice.trace_speed import TraceSpeed
from treespec.search.growth import Eagle2, EqualGrowth
from treespec.search.latency.latency import Times
from treespec.search.latency.step_parts import levels_of, seconds_of
from treespec.testing import TabularModel, random_table

pytestmark = pytest.mark.usefixtures("without_shape_checks")

TIMES = LatencyModel.from_tables(
    verify={1: 0.020, 8: 0.022, 64: 0.060}, draft={1: 0.0005, 64: 0.0007}, draw={1: 0.0, 64: 1e-5}
)


@pytest.fixture(scope="module")
def trace():
    """A trace of a draft that is certain in half of the texts and uniform in the other half."""
    target, other = random_table(8, 0, 3.0), random_table(8, 1, 3.0)
    draft = TabularModel(lambda context: target(context) + 0.6 * other(context), 8)
    pair = SimpleNamespace(target=TabularModel(target, 8), draft=draft)
    return record(
        pair, [(i, j) for i in range(3) for j in range(2)], sampling=Sampling(temperature=0.0),
        law=Law.DETERMINISTIC, rule=verify.greedy, width=4, max_new_tokens=20, beyond=16, beam=4,
        beam_depth=5,
    )  # fmt: skip


@pytest.fixture(scope="module")
def ranking(trace):
    return best_tree(trace, TIMES, max_size=16, draws=200)


def side_of(trace, latency=TIMES):
    return TraceSpeed("deterministic", trace, Times(latency, None, 1, 100, 0))


def test_the_first_is_the_fastest_on_all_texts_valued_on_other_halves(trace):
    side, limits = side_of(trace), Limits(max_size=16)
    entries, _ = grown(side, limits, room_for(side.rates, side.parts, limits))
    speeds = {}
    for name, growth in grid_of(side).items():
        found = replay_growth(trace, growth)
        levels = [[Counter(level) for level in step] for step in found.levels]
        taken = seconds_of(side.parts.drafted(levels, found.sizes.tolist()))
        speeds[name] = found.emitted.sum() / taken.sum()
    assert entries[0].growth.name == max(speeds, key=lambda name: speeds[name])
    assert entries[0].speed.rate < max(speeds.values())
    for entry in entries[1:]:
        assert entry.speed.rate == pytest.approx(speeds[entry.growth.name])


def grid_of(side):
    limits = Limits(max_size=16)
    room = room_for(side.rates, side.parts, limits)
    return {one.name: make() for one, make in _grid(side, limits, room)}


def test_each_growth_has_its_own_replay(trace, ranking):
    growths = grid_of(side_of(trace))
    rows = [row for row in ranking.rows if row.kind == "growth"]
    assert {row.growth.name for row in rows} == set(growths)
    kinds = {row.growth.config["kind"] for row in rows}
    assert kinds == {"eagle2", "specexec", "opt_tree", "equal_growth", "cost_aware"}
    assert [row.basis for row in rows] == ["other texts"] + ["replay"] * (len(rows) - 1)
    for row in rows[1:]:
        found = replay_growth(trace, growths[row.growth.name])
        assert row.tokens_per_step.estimate == pytest.approx(found.tokens_per_step)
        assert row.growth.nodes == pytest.approx(found.nodes_per_step)
        assert row.growth.sure == pytest.approx(found.sure.mean())
    assert any(DECIDING in note for note in ranking.notes)


def test_growths_that_know_times_know_those_of_the_batch(trace):
    """Where eight texts make every node dear, a growth by times drafts hardly any."""
    dear = LatencyModel.from_tables(
        verify={1: 0.020, 64: 6.0}, draft={1: 0.0005, 64: 0.0007}, draw=0.0, batch=8
    )
    both = LatencyModel.of_batches({1: TIMES, 8: dear})
    grown_to = {}
    for batch in (1, 8):
        found = best_tree(trace, both, max_size=16, draws=50, batch=batch)
        (row,) = (r for r in found.rows if r.growth and r.growth.config["kind"] == "cost_aware")
        grown_to[batch] = row.growth.nodes
    assert grown_to[8] < 2 < grown_to[1]


def test_a_step_takes_what_it_drafts_and_verifies(trace, ranking):
    """By hand: a draft pass over the nodes of each level, and a target pass over the kept nodes."""
    growth = EqualGrowth(4, 5, 16)
    found = replay_growth(trace, growth)
    assert set(found.levels) == {((4,), *((4, 4, 4, 4),) * 4)}
    level = TIMES.draft_level_s(1) + 4 * TIMES.draft_level_s(4)
    drawn = 3 * (np.interp([1, 4], [1, 64], [0, 1e-5]) @ [1, 4])
    verified = np.mean([TIMES.verify_s(int(size)) for size in found.sizes])
    row = next(r for r in ranking.rows if r.growth and r.growth.name == "equal growth 4x5, 16")
    if row.basis == "replay":
        assert row.step_s.estimate == pytest.approx(level + drawn + verified, rel=1e-6)


def test_passes_are_those_of_the_growth(trace):
    found = replay_growth(trace, Eagle2(2, 3, 6))
    assert set(found.levels) == {((2,), (2, 2), (2, 2))}
    assert len(found.levels) == len(found.sizes)


def test_deciding_takes_time_too(trace):
    """Once before each level, by the nodes so far, and once for the nodes to keep."""
    data = json.loads(TIMES.to_json())
    law = next(iter(data["batches"]["1"]["laws"].values()))
    law["decide_ms"] = {"1": 0.0, "1001": 10.0}
    slow = LatencyModel.from_json(json.dumps(data))
    step = [Counter({4: 1}), Counter({4: 2})]
    for levels, deciding in ((step, 1e-5 * (0 + 4 + 12)), ([], 0.0)):
        parts = slow.at(law="deterministic")
        both = (seconds_of(terms([levels], [9])) for terms in (parts.grown, parts.drafted))
        assert next(both) - next(both) == pytest.approx(deciding)
    assert len(TIMES.at().grown([step], [9])) == len(TIMES.at().drafted([step], [9]))
    assert LatencyModel.from_json(slow.to_json()).to_json() == slow.to_json()
    fast, taken = (best_tree(trace, one, max_size=16, draws=40) for one in (TIMES, slow))
    assert any(DECIDING in note for note in fast.notes)
    assert not any(DECIDING in note for note in taken.notes)
    steps = [
        next(r.step_s.estimate for r in one.rows if r.growth and r.growth.name == "SpecExec 16")
        for one in (fast, taken)
    ]
    assert steps[1] > steps[0] + 1e-5


def test_a_static_tree_takes_as_long_by_its_levels():
    first = LatencyModel.from_tables(verify={1: 0.02, 64: 0.06}, draft=0.001, first=0.003)
    for times in (TIMES, first):
        parts, shapes = times.at(law="deterministic"), [TreeShape.kary(2, 3), TreeShape.chain(4)]
        levels, sizes = [levels_of(shape) for shape in shapes], [shape.size for shape in shapes]
        np.testing.assert_allclose(
            seconds_of(parts.drafted(levels, sizes)), seconds_of(parts.tree(shapes))
        )
        nothing = seconds_of(parts.drafted([[], [Counter({2: 1})]], [1, 3]))
        assert nothing[0] == pytest.approx(times.plain_s())
        assert nothing[1] == pytest.approx(times.step_s(TreeShape.expansion([2])))


def test_growths_are_contenders(ranking):
    firsts = {row.kind: row for row in reversed(ranking.rows)}
    assert set(firsts) == {"tree", "chain", "growth", "plain"}
    advice = ranking.advice
    named = {advice.first.kind, *(one.kind for one in advice.others)}
    assert named == set(firsts)
    data = json.loads(ranking.to_json())
    row = next(row for row in data["rows"] if row["kind"] == "growth")
    assert {"growth", "nodes", "depth", "sure"} <= set(row)
    assert "parents" not in row


def test_what_rows_or_times_do_not_cover_is_passed_over_by_name(trace):
    narrow = LatencyModel.from_tables(
        verify={1: 0.02, 16: 0.03}, draft={1: 0.001, 2: 0.001}, law="deterministic"
    )
    ranking = best_tree(trace, narrow, draws=40)
    rows = [row for row in ranking.rows if row.kind == "growth"]
    assert {row.growth.config["k"] for row in rows if "k" in row.growth.config} <= {1, 2}
    assert any("SpecExec" in note and "was skipped" in note for note in ranking.notes)
    assert not any(row.kind == "growth" for row in best_tree(trace, TIMES, sizes=[4]).rows)


def test_a_growth_is_shown_as_configs_write_it(ranking):
    growth = next(row for row in ranking.rows if row.kind == "growth")
    advised = Advised((replace(ranking, rows=(growth, *ranking.rows)),), "medusa")
    assert f"in a config: shape: {{kind: {growth.growth.config['kind']}, " in str(advised)
    with pytest.raises(ConfigError, match="a tree that grows, and no tree file can hold it"):
        _ = advised.shape


def test_commands_take_such_traces(trace, tmp_path):
    path, times = trace.save(tmp_path / "rows.npz"), TIMES.save(tmp_path / "times.json")
    done = CliRunner().invoke(app, ["search", str(path), "--latency", str(times), "--json"])
    assert done.exit_code == 0, done.output
    assert any("growth" in row for row in json.loads(done.stdout)["rows"])
