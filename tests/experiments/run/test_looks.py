"""Whether a look finds a run clear, on runs with known times."""

import json

import pytest
from run_folders.folders import SyntheticMethod, write_run
from treespec.experiments.run.looks import look_at

from treespec.experiments.config.schema import Until
from treespec.experiments.report.run import load_run
from treespec.tree import TreeShape


@pytest.fixture
def run(tmp_path, request):
    """Twelve prompts; the tree keeps 1.38 times the tokens, and its drafting time is set by the test."""
    rates, ms = (0.6, 0.2), (1.0, 20.0, 0.3, 0.3)
    drafting = getattr(request, "param", 1.0)
    path = write_run(
        tmp_path / "run",
        [
            SyntheticMethod("plain", "plain"),
            SyntheticMethod("chain", "tree", TreeShape.chain(3), rates, ms),
            SyntheticMethod("tree", "tree", TreeShape.kary(2, 3), rates, (drafting, *ms[1:])),
        ],
        prompts=12,
        temperatures=[0.0],
        jitter=0.02,
    )
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["config"]["until"] = {"decided": False, "half_width": 0.1, "at_most": None}
    manifest |= {"planned": {"prompts": 12, "samples": 12}, "looks": []}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return load_run(path)


@pytest.mark.parametrize("share", [0.9, 1.1])
def test_a_width_is_clear_from_just_above_it(run, share):
    (look,) = look_at(run, Until(half_width=0.1), 12)
    wide = (look["high"] - look["low"]) / 2
    (again,) = look_at(run, Until(half_width=share * wide), 12)
    assert again["decided"] is (share > 1)


def test_no_prompt_is_not_clear(run):
    assert [look["decided"] for look in look_at(run, Until(half_width=9.0), 0)] == [False]


@pytest.mark.parametrize(("run", "decided"), [(1.0, True), (9.0, False)], indirect=["run"])
def test_a_winner_is_clear(run, decided):
    (look,) = look_at(run, Until(decided=True), 12)
    assert look["decided"] is decided
