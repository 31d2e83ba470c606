"""Rounds of timing between the prompts of a run."""

import io
import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError, PromptError, RunFolderError
from treespec.experiments.records.measured import load_between
from treespec.experiments.records.own_files import OwnFiles
from treespec.experiments.report.page import write_report
from treespec.experiments.report.run import load_run
from treespec.experiments.search_then_run import between
from treespec.experiments.search_then_run.between import moments
from treespec.experiments.search_then_run.run import run
from treespec.search.latency.errors import InvalidLatency


@given(st.integers(1, 60), st.integers(1, 80), st.integers(1, 4))
def test_moments_are_spread_evenly_and_over_all_settings(rounds, prompts, samplings):
    units = prompts * samplings
    found = sorted(moments(rounds, units, samplings))
    assert len(found) == min(rounds, units)
    assert found[0] == 0
    assert found[-1] < units
    gaps = [b - a for a, b in pairwise(found)]
    assert not gaps or max(gaps) - min(gaps) <= 2 * samplings
    if samplings * 2 <= rounds <= units // samplings and units % rounds == 0:
        assert {unit % samplings for unit in found} == set(range(samplings))


def test_no_rounds_no_moments():
    assert moments(0, 8, 2) == set()


@pytest.fixture
def searching(settings):
    """A config that times parts between its prompts."""
    methods = [
        {"kind": "plain"},
        {"kind": "tree", "shape": {"kind": "kary", "branching": 2, "depth": 2}},
        {"kind": "tree", "shape": {"kind": "opt_tree", "size": 12, "branching": 2, "depth": 3}},
    ]
    search = {
        "prompts": settings["prompts"] | {"tokens": 8},
        "max_new_tokens": 6,
        "width": 2,
        "depth": 2,
        "sizes": [1, 2, 4, 8, 16],
        "repeats": 1,
        "between": 3,
    }
    return settings | {"methods": methods, "search": search, "max_new_tokens": 4}


def test_rounds_time_what_is_predicted(searching, loaded_pair, tmp_path):
    config = Config.model_validate(searching)
    done = run(config, folder=tmp_path / "run", load=lambda models: loaded_pair)
    units = len(config.samplings) * 2
    rounds = load_between(done.folder / "search")
    assert len(rounds) == 3
    assert len(config.samplings) == 2
    names = sorted(path.name for path in (done.folder / "search").glob("between-*"))
    assert names == [f"between-{unit:05}.json" for unit in sorted(moments(3, units, 2))]
    for one in rounds:
        assert (
            one.max_size == 8
        )  # covers the 2-ary tree of 7; of one that grows nothing is predicted
        assert set(one.laws) == {"deterministic", "without_replacement", "iid"}
        assert one.about["rounds"] == 1
    assert load_run(done.folder).pace[0] == 3
    assert all(row.step_at_pace_s > 0 for row in load_run(done.folder).predictions)


def test_none_where_none_are_wanted(searching, loaded_pair, tmp_path):
    searching["search"]["between"] = 0
    config = Config.model_validate(searching)
    done = run(config, folder=tmp_path / "run", load=lambda models: loaded_pair)
    assert load_between(done.folder / "search") == []
    rows = load_run(done.folder).predictions
    assert rows
    assert {row.step_at_pace_s for row in rows} == {None}
    assert load_run(done.folder).pace is None


def test_a_damaged_round_is_named(tmp_path):
    (tmp_path / "between-00003.json").write_text(json.dumps({"version": 1}))
    with pytest.raises(InvalidLatency, match=r"between-00003\.json"):
        load_between(tmp_path)


@pytest.mark.parametrize("sizes", [[1, 2, 4], [3, 16]], ids=["too small", "odd"])
def test_trees_that_the_search_did_not_time_do_no_harm(searching, loaded_pair, tmp_path, sizes):
    """Their step is not predicted, as before; everything else is, and the report is written."""
    searching["search"]["sizes"] = sizes
    config = Config.model_validate(searching)
    done = run(config, folder=tmp_path / "run", load=lambda models: loaded_pair)
    names = {row.method for row in load_run(done.folder).predictions}
    assert ("2-ary 2" in names) == (max(sizes) >= 7)
    assert "plain" in names
    assert "plain" in write_report(load_run(done.folder)).read_text()


def test_a_context_too_short_for_the_timing_is_said_and_the_run_goes_on(
    searching, loaded_pair, tmp_path, monkeypatch
):
    def refused(*arguments):
        raise ConfigError("prefix 450 is left out")

    monkeypatch.setattr(between, "plan_profile", refused)
    console = Console(file=io.StringIO(), width=200)
    config = Config.model_validate(searching)
    done = run(config, folder=tmp_path / "run", load=lambda models: loaded_pair, console=console)
    assert load_run(done.folder).finished
    assert (
        "parts of a step are not timed between the prompts: prefix 450" in console.file.getvalue()
    )


def test_a_pace_of_the_end_alone_is_not_that_of_the_run(searching, loaded_pair, tmp_path):
    """As in a run that was begun before rounds were timed, and resumed."""
    done = run(
        Config.model_validate(searching), folder=tmp_path / "run", load=lambda models: loaded_pair
    )
    rounds = sorted((done.folder / "search").glob("between-*"))
    rounds[0].unlink()
    assert load_run(done.folder).pace[0] == 2
    rounds[1].unlink()
    assert load_run(done.folder).pace is None
    assert {row.step_at_pace_s for row in load_run(done.folder).predictions} == {None}


def test_a_round_that_fails_does_not_end_the_run(searching, loaded_pair, tmp_path, monkeypatch):
    """Not while it warms up, nor later: it is said, and no more are timed."""
    real, left = between.Rounds.measure, [0]

    def fragile(self, into, progress=lambda what: None):
        left[0] -= 1
        if left[0] < 0:
            raise MemoryError("no room")
        real(self, into, progress)

    monkeypatch.setattr(between.Rounds, "measure", fragile)
    console = Console(file=io.StringIO(), width=200)
    config = Config.model_validate(searching)
    for folder, timed in (("later", 1), ("at once", 0)):
        left[0] = 2 + 1 + timed if timed else 2  # two of the profile, one that warms up
        done = run(
            config, folder=tmp_path / folder, load=lambda models: loaded_pair, console=console
        )
        assert load_run(done.folder).finished
        assert len(load_between(done.folder / "search")) == timed
        assert left[0] == -1
    said = console.file.getvalue()
    assert said.count("not timed between the prompts: out of memory: no room") == 2


def test_a_round_that_cannot_be_written_loses_nothing(
    searching, loaded_pair, tmp_path, monkeypatch
):
    real, rounds = OwnFiles.write, []

    def write(self, name, content):
        if "between" in name:
            rounds.append(name)
        if len(rounds) > 1:
            raise FileNotFoundError(2, "No such file or directory")
        return real(self, name, content)

    monkeypatch.setattr(OwnFiles, "write", write)
    config = Config.model_validate(searching)
    with pytest.raises(RunFolderError, match="Every finished prompt is kept"):
        run(config, folder=tmp_path / "run", load=lambda models: loaded_pair)
    assert (tmp_path / "run" / "prompts.jsonl").read_bytes()
    monkeypatch.undo()
    assert load_run(run(config, folder=tmp_path / "run", load=lambda models: loaded_pair).folder)


def test_texts_that_are_gone_by_now_stop_no_resumed_run(
    searching, loaded_pair, tmp_path, monkeypatch
):
    """All that they were needed for is in the folder."""
    texts = tmp_path / "texts.jsonl"
    texts.write_bytes(Path(searching["prompts"]["path"]).read_bytes())
    searching["search"]["prompts"]["path"] = str(texts)
    config = Config.model_validate(searching)
    folder = run(config, folder=tmp_path / "run", load=lambda models: loaded_pair).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"finished": None}))
    lines = (folder / "prompts.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "prompts.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
    texts.unlink()
    assert load_run(run(config, folder=folder, load=lambda models: loaded_pair).folder).finished
    with pytest.raises(PromptError, match=r"texts\.jsonl"):
        run(config, folder=folder, fresh=True, load=lambda models: loaded_pair)
    assert load_run(folder).finished  # refused before anything was deleted
