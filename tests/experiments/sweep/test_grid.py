import os
import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec.experiments.config.file import load_config
from treespec.experiments.errors import ConfigError
from treespec.experiments.records.manifest import config_data, config_hash
from treespec.experiments.sweep.grid import LONGEST_NAME, _names, load_grid


def refused(path, *overrides):
    with pytest.raises(ConfigError) as caught:
        load_grid(path, overrides)
    return str(caught.value)


def test_the_product_in_order(grid_file):
    path = grid_file({"seed": [5, 6], "methods[1].shape.depth": [2, 4, 8]})
    grid = load_grid(path)
    assert [job.name for job in grid.jobs] == [
        f"seed={seed},methods.1.shape.depth={depth}" for seed in (5, 6) for depth in (2, 4, 8)
    ]
    for job in grid.jobs:
        assert job.config.seed == job.values["seed"]
        assert job.config.methods[1].shape.depth == job.values["methods.1.shape.depth"]
        assert job.config.max_new_tokens == 4
    assert grid.axes == {"seed": (5, 6), "methods.1.shape.depth": (2, 4, 8)}


def test_a_job_is_what_overrides_would_make(grid_file, tmp_path):
    grid = load_grid(grid_file())
    data = yaml.safe_load(grid_file().read_text())
    del data["sweep"]
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(data))
    for job in grid.jobs:
        same = load_config(tmp_path / "one.yaml", [f"{k}={v}" for k, v in job.values.items()])
        assert config_hash(same) == config_hash(job.config)


def test_overrides_reach_base_and_grid(grid_file):
    path = grid_file()
    grid = load_grid(
        path, ["max_new_tokens=3", "sweep.methods.1.shape.depth=[7]", "sweep.warmup=[0,1]"]
    )
    assert {job.config.max_new_tokens for job in grid.jobs} == {3}
    assert grid.axes == {"seed": (0, 1), "methods.1.shape.depth": (7,), "warmup": (0, 1)}
    assert load_grid(path).hash != grid.hash
    assert load_grid(path).hash == load_grid(path).hash


@pytest.mark.parametrize(
    ("sweep", "parts"),
    [
        ({"sede": [1, 2]}, ["sweep.sede", "unknown key 'sede'", "did you mean 'seed'"]),
        ({"models.dtpe": ["x"]}, ["dtpe: unknown key", "did you mean 'dtype'", "models.dtpe=x"]),
        ({"seed": []}, ["sweep.seed = []", "empty list"]),
        ({"seed": 3}, ["sweep.seed = 3: must be a list", "[3]"]),
        ({"seed": [1, 2, 1]}, ["sweep.seed: 1 appears twice"]),
        ({"seed": ["x"]}, ["seed = 'x'", "integer"]),
        ({"methods[9].shape.depth": [1]}, ["sweep.methods.9.shape.depth: methods is a list of 2"]),
        ({"name.first": [1]}, ["sweep.name.first: name is 'tiny' and has no key 'first'"]),
        ({"name": ["a", "b"]}, ["sweep.name: cannot be swept"]),
        ({"output": ["a", "b"]}, ["sweep.output: cannot be swept"]),
        ({"models": [{"target": "a"}], "models.dtype": ["float32"]}, ["models and models.dtype overlap"]),
        ({"methods[1].shape.depth": [2], "methods.1.shape.depth": [3]}, ["two of its keys are the same"]),
        ({"samplings[0].temperature": [0.5, 1.0]}, ["samplings[1]: T=1 appears twice", "temperature=1.0"]),
        ({"methods[1].rule": ["rrs", "rsw"]}, ["methods[1]", "'rsw'", "methods.1.rule=rsw"]),
        ({"seed": list(range(200)), "warmup": list(range(200))}, ["40,000 jobs", "10,000"]),
        ([1], ["sweep = [1]: must be a mapping"]),
        ({}, ["no `sweep:`", "treespec run"]),
    ],
)  # fmt: skip
def test_bad_grids_name_file_and_key(grid_file, sweep, parts):
    text = refused(grid_file(sweep))
    assert text.startswith(os.fspath(grid_file(sweep)))
    for part in parts:
        assert part in text


def test_bad_overrides_of_a_grid(grid_file):
    assert "name a key of the grid" in refused(grid_file(), "sweep=[1]")
    assert refused(grid_file(), "sweep.seed=3").startswith(
        "override 'sweep.seed=3': sweep.seed = 3"
    )
    text = refused(grid_file(), "sweep.sed=[3]")
    assert text.startswith("override 'sweep.sed=[3]': sweep.sed: unknown key 'sed'")
    text = refused(grid_file(), "max_new_tokns=3")
    assert text.startswith("override 'max_new_tokns=3': max_new_tokns: unknown key")
    assert len(text.splitlines()) == 1


def test_a_wrong_base_is_told_once(grid_file):
    assert len(refused(grid_file(max_new_tokens=0)).splitlines()) == 1


def test_one_experiment_is_refused_where_there_are_several(grid_file):
    with pytest.raises(ConfigError, match="treespec sweep"):
        load_config(grid_file())


def test_no_output_in_the_jobs(grid_file):
    grid = load_grid(grid_file(output="here"))
    assert grid.base["output"] == "here"
    assert {config_data(job.config)["output"] for job in grid.jobs} == {None}


WORDS = ["a", "A", "a/b", "a b", "ab", "../x", "", "é", "x" * 200, "x" * 201, "{}", "null"]
VALUES = st.one_of(
    st.integers(0, 3), st.sampled_from(WORDS), st.lists(st.sampled_from(WORDS), max_size=2)
)


@settings(max_examples=40)
@given(st.lists(VALUES, min_size=1, max_size=6, unique_by=repr))
def test_names_are_different_and_safe(values):
    names = _names([{"prompts.path": value} for value in values])
    assert len({name.lower() for name in names}) == len(values)
    for name in names:
        assert re.fullmatch(r"[\w.,=+-]+", name, flags=re.ASCII)
        assert len(name) <= LONGEST_NAME
