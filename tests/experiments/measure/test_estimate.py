"""`treespec estimate`: acceptance rates from traces."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from treespec.experiments.cli.main import app
from treespec.search import AcceptanceEstimate, Trace, estimate_acceptance, formats


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


def test_rates_by_rank_are_written_as_sequoias_vector(trace, tmp_path):
    out = tmp_path / "vector.pt"
    code, text = _call(trace, "--out", out)
    assert code == 0, text
    rates = estimate_acceptance(Trace.load(trace)).rates
    assert formats.load_rates(out.read_bytes()) == pytest.approx(rates)
    code, text = _call(trace, "--by", "depth", "--out", tmp_path / "levels.pt")
    assert code == 2
    assert "--by rank" in text
    assert not (tmp_path / "levels.pt").exists()


def test_what_a_sample_cannot_support_is_said(trace):
    code, text = _call(trace, "--by", "depth", "--depth", 6)
    assert code == 0
    assert "note: " in text


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
    assert f"levels 9 to {levels} are not shown: --depth {levels} shows them" in text
    ten = _call(trace, "--by", "depth", "--depth", 10)[1]
    assert "not shown" not in ten


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--by", "tree"], "by"),
        (["--ranks", "5"], "ranks = 5"),
    ],
)
def test_wrong_options_are_named(trace, more, message):
    code, text = _call(trace, *more)
    assert code == 2
    assert message in text


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
