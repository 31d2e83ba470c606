"""A training on a lent machine that goes on, on another one, with what came back."""

from pathlib import Path

import pytest

from treespec.experiments.errors import ConfigError
from treespec.experiments.run.progress import Reporter
from treespec.experiments.training.loop import OutOfTime
from treespec.experiments.training.on_a_gpu.deadline import Deadline, WholeParts
from treespec.experiments.training.on_a_gpu.lent_run import LentRun
from treespec.experiments.training.on_a_gpu.parcels import unpacked
from treespec.experiments.training.on_a_gpu.plan import Plan, tokens_within
from treespec.experiments.training.settings import load_training
from treespec.experiments.training.texts.write_texts import Recipe
from treespec.experiments.training.training_run import Pace

SMALL = (
    *("length=64", "batch_tokens=128", "vocabulary=512", "held_out.count=2"),
    *("metric.positions=24", "learning_rate=0.01"),
    "drafts=[{family: eagle3, inner: 32, boundaries: [2, 3, 4], steps: 2}]",
)
WORK, OUT = Path("work"), Path("out")
RECIPE = Recipe("embedded", tokens=200, batch=4, answer=48)
QUIET = Reporter(None)


class Asked(Deadline):
    """Says to stop when it is asked the n-th time."""

    def __init__(self, times: int) -> None:
        super().__init__(1e12)
        self.times = times

    @property
    def left(self) -> float:
        return 60.0

    def __call__(self) -> bool:
        self.times -= 1
        return self.times == 0


def lent(times: int) -> bytes:
    LentRun("embedded", SMALL, WORK, OUT, "cpu", RECIPE, QUIET).run(Asked(100), Asked(times))
    return (WORK / "training" / "eagle3" / "head" / "model.safetensors").read_bytes()


def test_goes_on_elsewhere_with_what_came_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned(seconds: float, config: object, paces: dict[str, Pace]) -> Plan:
        assert seconds == 60.0
        assert paces["eagle3"].token_seconds > 0
        return Plan(tokens=1024, every=512, seconds=seconds, paces={})

    monkeypatch.setattr("treespec.experiments.training.on_a_gpu.lent_run.tokens_within", planned)
    places = [tmp_path / name for name in ("first", "second")]
    for place in places:
        place.mkdir()
    monkeypatch.chdir(places[0])
    with pytest.raises(OutOfTime, match=r"after \d+ of 1,024 tokens"):
        lent(3)
    monkeypatch.chdir(places[1])
    assert not unpacked(places[0] / OUT, WORK)
    assert not (WORK / "training" / "eagle3" / "head").exists()
    assert (WORK / "training" / "eagle3" / "checkpoint.pt").exists()
    resumed = lent(100)
    monkeypatch.chdir(places[0])
    assert lent(100) == resumed
    assert sorted(path.name for path in OUT.iterdir()) == [
        *("heads.zip.1-of-1", "state.zip.1-of-1", "texts.zip.1-of-1")
    ]


def test_time_is_up_and_no_batch_is_begun_that_would_end_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 4.0, 4.0, 9.0, 9.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    writing = WholeParts(10.0)
    assert not writing()  # 4 s for a batch, and 6 s are left
    assert writing()  # 5 s, and 1 s is left
    monkeypatch.setattr("time.monotonic", lambda: 9.9)
    assert not Deadline(10.0)()
    assert Deadline(9.9)()


def test_the_budget_fills_the_time_and_is_the_same_for_all() -> None:
    config = load_training(
        "embedded", [*SMALL[:-2], "tokens=128", "metric.every=128", "tuning={rates: [0.1, 0.2]}"]
    )
    paces = {"fast": Pace(1e-4, 1.0), "slow": Pace(3e-4, 2.0)}
    plan = tokens_within(100.0, config, paces)
    # 90 s, less five measurements of both; two rates are tried on a tenth each.
    assert plan.tokens == int((90 - 5 * 3) / (4e-4 * 1.2) / 128) * 128
    with pytest.raises(ConfigError, match=r"too few to train 2 drafts .*: give more --minutes"):
        tokens_within(10.0, config, paces)
