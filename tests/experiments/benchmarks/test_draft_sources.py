"""The benchmark of draft sources uses the same stretch for every size, and counts operations exactly."""

import pytest
import torch

from treespec.draft import PromptLookup
from treespec.experiments.benchmarks import draft_sources
from treespec.experiments.benchmarks.draft_sources import (
    SOURCES,
    Operations,
    Steps,
    followers,
    growth,
    measured,
)
from treespec.experiments.studies import source_sections


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
    store = {
        "tokens": 10, "texts": 1, "build_s": 1.0, "build_peak_mb": 1.0, "file_mb": 1.0,
        "propose_p50_us": 1.0, "propose_p99_us": 1.0, "resident_mb": 1.0, "steps": 30,
    }  # fmt: skip
    figures = {"sources": rows, "growth": ratios, "datastore": store}
    text = "\n".join(source_sections.draft_sources({"figures": figures})[""])
    assert all(name in text for name in SOURCES)


def test_a_source_that_finds_more_is_shown_per_draft_token():
    """Five times as many nodes in five times the time: each costs the same."""
    same = ("read_us", "read_operations", "propose_p99_us", "propose_operations")
    costs = dict.fromkeys(same, 9.0) | {"bytes": None}
    rows = [
        {"source": name, "tokens": tokens, "propose_p50_us": us, "drafted": nodes}
        | costs
        for name, few in (("retrieval", 6.0), ("lookup", 0.0))
        for tokens, us, nodes in ((10, 90.0, few), (100, 450.0, 30.0))
    ]  # fmt: skip
    store = dict.fromkeys(
        ("tokens", "texts", "build_s", "build_peak_mb", "file_mb", "propose_p50_us", "propose_p99_us",
         "steps", "resident_mb"), 1,
    )  # fmt: skip
    figures = {"sources": rows, "growth": growth(rows), "datastore": store}
    parts = source_sections.draft_sources({"figures": figures})[""]
    (ratios,) = (part for part in parts if "time per draft token |" in part)
    assert "| retrieval | 1.00 | 1.00 | 5.00 | 1.00 | 5.00 | 1.00 |" in ratios
    assert "| lookup | 1.00 | 1.00 | 5.00 | 1.00 | – | – |" in ratios
