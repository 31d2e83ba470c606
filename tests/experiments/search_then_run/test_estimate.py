"""`treespec estimate`: acceptance rates from traces and runs."""

import json
from dataclasses import replace

import numpy as np
import pytest
from run_folders.folders import SyntheticMethod, write_run
from typer.testing import CliRunner

from treespec.experiments.cli.main import app
from treespec.search import AcceptanceEstimate, Trace, estimate_acceptance
from treespec.tree import TreeShape


@pytest.fixture
def trace(tmp_path):
    rng, texts, length = np.random.default_rng(0), 5, 80
    rates = np.tile([0.5, 0.2], (texts * length, 1))
    found = Trace(
        offsets=np.arange(texts + 1) * length, tokens=np.zeros(texts * length, dtype=np.int64),
        ranks=rng.choice(3, texts * length, p=[0.5, 0.2, 0.3]), probs=rates, accepted=rates,
        law="deterministic", rule="greedy", sampling={}, width=2,
    )  # fmt: skip
    found.save(tmp_path / "trace.npz")
    return tmp_path / "trace.npz"


def _call(*words):
    result = CliRunner().invoke(app, ["estimate", *map(str, words)])
    return result.exit_code, result.output


def test_a_trace_gives_a_table_and_a_file_that_reads_back(trace, tmp_path):
    out = tmp_path / "rates.json"
    code, text = _call(trace, "--by", "depth", "--depth", 2, "--shrinkage", 20, "--out", out)
    assert code == 0, text
    assert "levels shrunk to their mean by 20 counts" in text
    found = AcceptanceEstimate.from_json(out.read_text())
    again = estimate_acceptance(Trace.load(trace), by="depth", depth=2, shrinkage=20)
    assert found.rates.tolist() == again.rates.tolist()
    assert _call(trace, "--out", out)[0] == 2  # it already exists
    assert json.loads(_call(trace, "--json")[1])["by"] == "rank"


def test_what_a_sample_cannot_support_is_said(trace):
    code, text = _call(trace, "--by", "depth", "--for", "chain:6")
    assert code == 0
    assert "note: " in text
    left_out = "Deeper levels have fewer than 30 trials each; --depth N shows N levels."
    assert left_out not in text
    assert left_out in _call(trace, "--by", "depth")[1]
    assert left_out not in _call(trace, "--by", "depth", "--starts", "chain:2")[1]
    assert left_out not in _call(trace)[1]


def test_by_depth_is_a_table_of_levels_and_children(trace):
    known = Trace.load(trace)
    replace(known, ranks=np.minimum(known.ranks, 1)).save(trace)  # nothing is rejected: deep levels
    code, text = _call(trace, "--by", "depth")
    assert code == 0, text
    found = estimate_acceptance(Trace.load(trace), by="depth", interval="wilson")
    levels = len(found.rates)
    assert levels > 10
    rows = [
        line.split() for line in text.splitlines() if line.split()[:1] and line.split()[0].isdigit()
    ]
    assert [row[0] for row in rows] == [str(depth) for depth in range(1, 9)]
    assert rows[2] == ["3", str(found.trials[2, 0]), *(f"{rate:.3f}" for rate in found.rates[2])]
    bounds = f"{found.low[2, 1]:.2f}–{found.high[2, 1]:.2f}".replace("0.", ".")
    assert bounds in text
    said = f"Levels 9 to {levels} are not shown; --all shows every level"
    assert said in text
    every = _call(trace, "--by", "depth", "--all")[1]
    assert "not shown" not in every
    assert len(every.splitlines()) > 2 * levels
    ten = _call(trace, "--by", "depth", "--depth", 10)[1]
    assert "not shown" not in ten
    nine = _call(trace, "--by", "depth", "--for", "expansion:2x2x2x2x2x2x2x2x2")[1]
    assert "Level 9 is not shown" in nine


def test_steps_of_a_run(tmp_path):
    tree = SyntheticMethod("2-ary 2", "tree", TreeShape.kary(2, 2), (0.6, 0.2), (1, 10, 0.1, 0.1))
    folder = write_run(tmp_path / "run", [SyntheticMethod("plain", "plain"), tree])
    code, text = _call(folder, "--method", "2-ary 2", "--sampling", "T=1", "--isotonic")
    assert code == 0, text
    assert "isotonic over ranks" in text
    by_depth = _call(folder, "--method", "2-ary 2", "--sampling", "T=1", "--by", "depth")[1]
    assert "Deeper levels" not in by_depth  # a run shows what its tree has
    assert "on-policy" in text


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--method", "x"], "leave them out for a trace"),
        (["--for", "chain:2,chain:3"], "name one tree"),
        (["--by", "tree"], "by"),
        (["--ranks", "5"], "ranks = 5"),
    ],
)
def test_wrong_options_are_named(trace, more, message):
    code, text = _call(trace, *more)
    assert code == 2
    assert message in text


def test_a_folder_needs_a_method(tmp_path):
    code, text = _call(tmp_path)
    assert code == 2
    assert "--method and --sampling" in text


def test_steps_of_a_tree_alone(trace, tmp_path):
    out = tmp_path / "rates.json"
    code, text = _call(trace, "--by", "depth", "--starts", "expansion:2x1", "--out", out)
    assert code == 0, text
    found = AcceptanceEstimate.from_json(out.read_text())
    shape = TreeShape.expansion([2, 1])
    again = estimate_acceptance(Trace.load(trace), by="depth", starts=shape)
    assert found.trials.tolist() == again.trials.tolist()
    assert found.about["starts"] == list(shape.parents)
    code, text = _call(trace, "--starts", "tree:7")
    assert code == 2
    assert "--starts: 'tree:7' is not a tree" in text
    code, text = _call(trace, "--for", "tree:7")
    assert "--for: 'tree:7' is not a tree" in text
    assert "name one tree" in _call(trace, "--starts", "chain:2,chain:3")[1]
    tree = SyntheticMethod("2-ary 2", "tree", TreeShape.kary(2, 2), (0.6, 0.2), (1, 10, 0.1, 0.1))
    folder = write_run(tmp_path / "run", [SyntheticMethod("plain", "plain"), tree])
    code, text = _call(folder, "--method", "2-ary 2", "--sampling", "T=1", "--starts", "chain:2")
    assert code == 2
    assert "starts applies to traces only" in text


def test_the_calibration_of_deterministic_children_is_said(trace, tmp_path):
    """Every prediction is right here, and 0.1 off if the first child is predicted to be less likely."""
    line = "expected calibration error 0.00 of the draft's probabilities"
    assert line in _call(trace)[1]
    given = Trace.load(trace)
    wrong = replace(given, probs=given.probs - [0.1, 0.0])
    wrong.save(tmp_path / "wrong.npz")
    found = json.loads(_call(tmp_path / "wrong.npz", "--json")[1])
    assert found["expected_calibration_error"] == pytest.approx(0.05)
    assert "error 0.05 of" in _call(tmp_path / "wrong.npz")[1]
    drawn = replace(given, law="iid", rule="rrs")
    drawn.save(tmp_path / "drawn.npz")
    text = _call(tmp_path / "drawn.npz", "--json")[1]
    assert json.loads(text)["expected_calibration_error"] is None
    assert AcceptanceEstimate.from_json(text).law == "iid"
    assert "calibration" not in _call(tmp_path / "drawn.npz")[1]
