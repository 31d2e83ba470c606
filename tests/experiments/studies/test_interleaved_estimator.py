"""Tables of the simulation of the slowdown estimator."""

import json

import numpy as np
import pytest
from treespec.experiments.studies.estimator_excerpts import EXCERPT, excerpt, excerpts
from treespec.experiments.studies.interleaved_estimator import (
    HARD_WORLDS,
    MACHINES,
    WAYS,
    WORLDS,
    spread,
)
from treespec.experiments.studies.trust_sections import estimator

FIGURES = ("bias", "sd", "half-width", "coverage")


def written(path, kinds):
    figures = {"experiments": 1000, "prompts": 12, "kinds": kinds}
    head = {"measured": "2026-01-02T03:04:05+00:00", "git_hash": "0123456789"}
    path.write_text(json.dumps(head | {"figures": figures}))
    return path


def kind(world, machine, ways=WAYS):
    figures = {f"{way}, {name}": i / 100 for i, way in enumerate(ways) for name in FIGURES}
    return {"world": world, "machine": machine, "remarks": 0.0, **figures}


def test_an_excerpt_holds_what_the_file_has(tmp_path):
    path = written(tmp_path / "some.json", [kind("A/A", "bursts"), kind("A/A", "quiet")])
    head, *rows, origin, name = excerpt(path).splitlines()
    columns = ["prompts", "totals", "nearest", "adjusted", "bias", "half-width", "coverage"]
    assert head.split() == ["methods", "machine", *columns]
    figures = ["0.00", "1.00", "3.00", "4.00", "+4.00", "4.00", "4.0"]
    assert [row.split() for row in rows] == [["A/A", "quiet", *figures], ["bursts", *figures]]
    assert {len(row) for row in rows} == {len(head)}
    assert origin == "1,000 runs per row, measured 2026-01-02, commit 0123456:"
    assert name == "some.json"


def test_a_file_older_than_the_scheme_of_nearest_steps_has_no_column_of_it(tmp_path):
    ways = ("by prompts", "totals", "adjusted")
    head, row, *_ = excerpt(written(tmp_path / "old", [kind("A/A", "quiet", ways)])).splitlines()
    assert "nearest" not in head
    assert row.split() == ["A/A", "quiet", "0.00", "1.00", "2.00", "+2.00", "2.00", "2.0"]


def test_excerpts_fit_a_docstring_and_name_worlds_and_machines_that_there_are(tmp_path):
    kinds = [kind(world, machine) for world, shown in EXCERPT.items() for machine in shown]
    whole = excerpt(written(tmp_path / "all", kinds)).splitlines()
    assert max(map(len, whole)) <= 104  # four more in a docstring
    assert len(whole) == len(kinds) + 3
    assert set(EXCERPT) == {world.name for world in (*WORLDS, *HARD_WORLDS)}
    assert {machine for shown in EXCERPT.values() for machine in shown} == set(MACHINES)
    assert len(excerpts().split("\n\n")) == 2


def test_how_slow_a_recorded_machine_was_is_saved_and_shown(tmp_path):
    np.savez(
        tmp_path / "bursts.npz",
        at=np.arange(100.0),
        seconds=np.repeat([2.0, 3.0, 8.0], [40, 50, 10]),
    )
    trace = spread(tmp_path / "bursts.npz")
    assert trace == pytest.approx({"usual": 1.5, "slow": 4.0})
    figures = {"experiments": 1000, "prompts": 12, "kinds": [kind("A/A", "bursts")]}
    assert len(estimator({"figures": figures})[""]) == 2
    *_, note = estimator({"figures": figures | {"traces": {"bursts": trace}}})[""]
    assert note.endswith("at the 95th percentile: bursts 1.50 and 4.00.")
