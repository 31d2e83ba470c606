"""A config with a small grid, and a sweep's folder with synthetic runs whose true values are known."""

import pytest
import yaml
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.sweep.grid import load_grid
from treespec.experiments.sweep.sweep_folder import SweepFolder
from treespec.tree import TreeShape

GRID = {"seed": [0, 1], "methods[1].shape.depth": [2, 3]}


@pytest.fixture
def grid_file(settings, tmp_path):
    """Write the tiny config with a grid and changes, and return its path."""

    def write(sweep=None, **changes):
        methods = [{"kind": "plain"}, {"kind": "tree", "shape": {"kind": "chain", "depth": 3}}]
        data = settings | {"methods": methods, "max_new_tokens": 4} | changes
        data["sweep"] = GRID if sweep is None else sweep
        path = tmp_path / "grid.yaml"
        path.write_text(yaml.safe_dump(data, sort_keys=False))
        return path

    return write


@pytest.fixture
def grid(grid_file):
    """The four jobs of the tiny grid."""
    return load_grid(grid_file())


@pytest.fixture
def planned(grid, tmp_path):
    """A planned sweep's folder, before any job has run."""
    with SweepFolder(tmp_path / "sweep") as records:
        records.start(grid, {"executor": "process"})
    return tmp_path / "sweep"


@pytest.fixture
def pretend(planned, grid):
    """Pretend that a job has run: write a synthetic run to its folder."""

    def run(job, seed=0, errors=frozenset()):
        chain = SyntheticMethod("chain 3", "tree", TreeShape.chain(3), (0.6,), errors=errors)
        methods = [SyntheticMethod("plain", "plain"), chain]
        return write_run(
            planned / "jobs" / job / "run", methods, prompts=4, new_tokens=16, seed=seed, jitter=0.1
        )

    return run
