"""A run says so if its trees were searched with times of other kinds of passes than its own."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from treespec.experiments.config.schema import Config
from treespec.experiments.run.timed_passes import cautions_of_times
from treespec.models.load import NoDraftModel
from treespec.search import LatencyModel

TIMES = LatencyModel.from_tables(verify={1: 0.02, 64: 0.03}, draft=0.001)


@pytest.fixture
def compiled(tmp_path):
    """A file with pass times of both models, compiled."""
    about = {role: {"passes": "compiled"} for role in ("target", "draft")}
    models = {"target": "big", "draft": "small", "passes": "auto", "draft_passes": "auto"}
    times = replace(TIMES, about={"models": models, **about})
    times.save(tmp_path / "times.json")
    return tmp_path / "times.json"


def growing(path, **draft):
    shape = {"kind": "cost_aware", "size": 8, "branching": 2, "depth": 3, "latency": str(path)}
    return {"kind": "tree", "shape": shape, **draft}


def test_a_run_with_eager_passes(start, compiled, capsys):
    changes = {"methods": [{"kind": "plain"}, growing(compiled)], "samplings": [{"temperature": 0}]}
    start(changes, console=Console(width=400))
    (caution,) = [
        line for line in capsys.readouterr().out.splitlines() if "Caution: this run has" in line
    ]
    assert "eager passes of the target and eager passes of the draft" in caution
    assert f"the times of {compiled} are of compiled ones" in caution
    assert "run with models.passes=compiled models.draft_passes=compiled" in caution


def test_what_is_compared(settings, loaded_pair, compiled, tiny_pair, tmp_path):
    def said(methods, pair=loaded_pair, measured=None):
        config = Config.model_validate(settings | {"methods": [{"kind": "plain"}, *methods]})
        return cautions_of_times(config, pair, measured)

    method = growing(compiled)
    assert len(said([method, method | {"name": "again"}])) == 1
    chain = {"kind": "tree", "shape": {"kind": "chain", "depth": 2}}
    assert said([chain]) == []
    draft = {"source": "model", "model": str(tiny_pair / "draft")}
    (of_target,) = said([method | {"draft": draft}])
    assert "of the draft" not in of_target
    kinds = SimpleNamespace(kind="compiled", asked="compiled")
    target = SimpleNamespace(passes=kinds, device=SimpleNamespace(type="cpu"))
    same = SimpleNamespace(target=target, draft=SimpleNamespace(passes=kinds))
    assert said([method], same) == []
    alone = SimpleNamespace(target=target, draft=NoDraftModel(9))
    assert said([method], alone) == []
    (earlier,) = said([], measured=SimpleNamespace(latency=LatencyModel.load(compiled)))
    assert earlier.endswith("measure again with --fresh")
    TIMES.save(tmp_path / "unknown.json")
    assert said([growing(tmp_path / "unknown.json")]) == []
