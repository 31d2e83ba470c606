"""The benchmark of draft sources uses the same stretch for every size, and counts operations exactly."""

import pytest
import torch

from treespec.draft import PromptLookup
from treespec.experiments.research.benchmarks import draft_sources
from treespec.experiments.research.benchmarks.draft_sources import (
    SOURCES,
    Operations,
    Steps,
    followers,
    growth,
    measured,
)


@pytest.fixture
def short(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(50, (1600,), generator=generator).tolist()
    for name, value in {"STEPS": 20, "COUNTED": 10, "TEXT": text}.items():
        monkeypatch.setattr(draft_sources, name, value)


def test_operations_are_counted_exactly():
    def work(times):
        for _ in range(times):
            pass

    def counted(times):
        operations = Operations()
        with operations.counting():
            work(times)
        return operations.count

    assert counted(100) == counted(100)
    assert counted(200) - counted(100) == 10 * (counted(110) - counted(100)) > 0


def test_what_the_stretch_has_is_accepted():
    text = [1, 2, 3, 4, 5] * 4
    source = PromptLookup(3, ngram=2)
    source.prefill(torch.tensor(text))
    steps = Steps(source, [*text, 9, 9])
    emitted = [steps.step(lambda part: part()) for _ in range(5)]
    assert emitted == [4] * 5
    assert steps.at == 20
    assert steps.drafted == 15
    assert source._text.text == text * 2


def test_followers_are_the_latest():
    ids = [1, 2, 1, 3, 1, 4, 1, 3, 9]
    assert followers(ids, 1, 2)[1] == [(4,), (3,)]
    assert followers(ids, 2, 3)[2] == [(1, 3)]


@pytest.mark.usefixtures("short", "without_shape_checks")
@pytest.mark.slow
def test_every_source_is_measured_and_shown():
    rows = [
        {"source": name, "tokens": size, **measured(name, size, 1000)}
        for name in SOURCES
        for size in (200, 1000)
    ]
    assert all(row["read_operations"] > 0 and row["propose_p99_us"] > 0 for row in rows)
    ratios = growth(rows)
    assert [row["source"] for row in ratios] == list(SOURCES)
