"""Rehearsals of parts of `make gpu` that take seconds: each goes to its end, and its file becomes a table.

Runs itself in a process with TRITON_INTERPRET=1 (`test_through_the_interpreter`).
"""

import json
import os
from io import StringIO

import pytest
from rich.console import Console

from treespec.experiments.research.benchmarks.gpu import (
    a_a,
    decode_times,
    draft_times,
    layer_times,
    step_kernels,
)
from treespec.experiments.research.benchmarks.gpu.gpu_session import Session
from treespec.experiments.research.benchmarks.gpu.gpu_tables import render

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="see test_through_the_interpreter")
plain = pytest.mark.skipif(INTERPRETED, reason="runs in the process outside")


@interpreted
@pytest.mark.usefixtures("without_shape_checks", "quick_interpreter")
@pytest.mark.parametrize(
    ("part", "module", "measured", "title"),
    [
        ("layers", layer_times, "nodes", "A captured pass"),
        ("draft", draft_times, "ms", "Drafting a tree"),
        ("profile", step_kernels, "launches", "Kernels of a step"),
        ("aa", a_a, "half_width", "A method against itself"),
    ],
)
def test_a_rehearsal(part, module, measured, title, tmp_path):
    told = StringIO()
    session = Session(True, tmp_path, 1.0, Console(file=told, width=200))
    module.run(session, float("inf"))
    (path,) = tmp_path.glob(f"gpu_{part}-*.json")
    data = json.loads(path.read_text())
    assert len(data["cells"]) == len(module.cases(True))
    assert all(cell[measured] for cell in data["cells"].values())
    assert not session.failures
    render(tmp_path, session.console)
    assert title in told.getvalue()
    if part == "layers":
        for cell in data["cells"].values():
            assert 0 < cell["error_max"] < cell["bound"] < 1
    if part in ("layers", "profile"):
        own, wide = data["cells"].values()
        assert (own["words"], wide["words"]) == (None, decode_times.DRY_WORDS)
        assert 0 < wide["mass_of_further_words"] < 1e-3
        words = " ".join(told.getvalue().split())
        assert f" {decode_times.DRY_WORDS} " in words
        assert ("as a real text" in words) == (part == "profile")
    if part == "draft":
        by_way = {cell["way"]: cell["nodes"] for cell in data["cells"].values()}
        assert by_way == {"one graph": 5, "by levels": 5}


@plain
def test_through_the_interpreter(interpret):
    assert "failed" not in interpret(__file__)
