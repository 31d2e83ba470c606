import json

import pytest
from rendered import section_html
from rich.console import Console
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.report.budgets import budget_finding
from treespec.experiments.report.page import print_run
from treespec.experiments.report.run import load_run
from treespec.tree import TreeShape

RATES, STAGES = (0.6, 0.2), (1.0, 10.0, 0.1, 0.1)


def _method(name, shape, ms=STAGES):
    return SyntheticMethod(name, "tree", shape, RATES, ms)


METHODS = (
    SyntheticMethod("plain", "plain"),
    _method("chain 2", TreeShape.chain(2)),
    _method("chain 6", TreeShape.chain(6)),
    _method("wide", TreeShape.kary(2, 2)),  # 7 nodes, 2 levels
    _method("slow wide", TreeShape.expansion([3, 1]), (1.0, 40.0, 0.1, 0.1)),  # 7 nodes, 2 levels
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return load_run(write_run(folder, METHODS, prompts=16, temperatures=(0.0,)))


def test_every_budget_that_both_sides_can_meet_is_compared(run):
    rows = run.budgets
    assert [row.name for row in rows] == ["7 nodes", "2 draft passes", "time"]
    nodes, passes, time = rows
    assert set(nodes.duel.right.chosen) <= {"chain 2", "chain 6"}  # at most so many nodes
    assert set(passes.duel.right.chosen) == {"chain 2"}
    assert set(time.duel.left.chosen) == {"wide"}
    assert (nodes.measure, time.measure) == ("tokens per step", "tokens per second")


def test_tokens_per_step_do_not_depend_on_time(tmp_path, run):
    slower = [
        SyntheticMethod(m.name, m.kind, m.shape, m.acceptance, tuple(9 * x for x in m.stage_ms))
        for m in METHODS
    ]
    again = load_run(write_run(tmp_path / "run", slower, prompts=16, temperatures=(0.0,)))
    for budget, slower_budget in zip(run.budgets[:2], again.budgets[:2], strict=True):
        assert budget.duel.ratio == slower_budget.duel.ratio


def test_shown_in_terminal_and_report(run, capsys):
    print_run(run, Console(width=120))
    assert "2 draft passes" in capsys.readouterr().out
    assert "7 nodes" in section_html(budget_finding(run.budgets))


def test_nothing_is_printed_without_an_equal_budget_but_time(tmp_path, capsys):
    methods = [METHODS[0], METHODS[1], _method("4 wide", TreeShape.expansion([4]))]
    other = load_run(write_run(tmp_path / "run", methods, temperatures=(0.0,)))
    assert [row.name for row in other.budgets] == ["time"]
    print_run(other, Console(width=120))
    assert "equal budgets" not in capsys.readouterr().out
    alone = load_run(write_run(tmp_path / "chains", METHODS[:3], temperatures=(0.0,)))
    assert section_html(budget_finding(alone.budgets)) == ""


def test_a_tree_that_grows_has_no_fixed_number_of_passes(tmp_path):
    folder = write_run(tmp_path / "run", METHODS, prompts=16, temperatures=(0.0,))
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    for method in data["methods"]:
        if method["name"] in ("wide", "slow wide"):
            method |= {"parents": None, "growth": {"kind": "dyspec"}}
    path.write_text(json.dumps(data))
    assert [row.name for row in load_run(folder).budgets] == ["7 nodes", "time"]
