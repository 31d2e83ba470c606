import json

import numpy as np
import pytest

from treespec.experiments.benchmarks.results_file import RESULTS
from treespec.experiments.studies import until_simulation as module
from treespec.experiments.studies.until_simulation import WORLDS, simulate


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_the_ratio_is_what_many_prompts_give(world):
    tokens, tree_s, b_tokens, chain_s = world.runs(np.random.default_rng(0), 1, 1_000_000, 1.1)
    ratio = (tokens.sum() / tree_s.sum()) / (b_tokens.sum() / chain_s.sum())
    assert ratio == pytest.approx(1.1, rel=2e-3)


@pytest.mark.parametrize("most", module.MOST_PROMPTS)
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_equals_are_rarely_told_apart(world, most):
    """2,000 runs: the standard error of 5 % is 0.5 %."""
    found = simulate(world, most, 1.0, module.RUNS)
    assert found["decided"] <= module.MOST_FALSE_VERDICTS
    assert found["naive"] > 2 * found["decided"]


def test_student_alone_finds_noise_where_few_prompts_are_dear():
    assert simulate(WORLDS[-1], 24, 1.0, module.RUNS)["symmetric"] > 0.08


def test_nine_looks_with_fixed_intervals_find_noise():
    assert 0.2 <= simulate(WORLDS[0], 200, 1.0, module.RUNS)["naive"] <= 0.3


def test_a_large_difference_ends_a_run_early():
    found = simulate(WORLDS[0], 60, 1.2, 400)
    assert found["decided"] > 0.99
    assert found["wrong"] == 0
    assert found["prompts"] < 25
    assert simulate(WORLDS[0], 60, 1.2, 400) == found


def test_boundaries_that_ignore_the_looks_are_seen(monkeypatch):
    fixed = lambda samples, *_, last: module.student(1.96, samples)  # noqa: E731
    monkeypatch.setattr(module, "boundary_at", fixed)
    assert simulate(WORLDS[0], 60, 1.0, 1000)["decided"] > 0.1


def test_tables_of_the_docstring_are_those_of_the_latest_file():
    files = [json.loads(path.read_text()) for path in RESULTS.glob("until_simulation-*.json")]
    rows = max(files, key=lambda data: data["measured"])["figures"]["rows"]

    def shares(row, *columns):
        return [f"{100 * row[column]:.1f}" for column in columns]

    equals, needed = set(), dict[tuple[str, int], list[str]]()
    for row in rows:
        key = row["world"], row["at_most"]
        if row["ratio"] == 1.0:
            figures = shares(row, "decided", "symmetric", "naive", "once", "width")
            equals.add((*key[0].split(), str(key[1]), str(row["looks"]), *figures))
        else:
            needed.setdefault(key, []).extend([f"{row['prompts']:.0f}", *shares(row, "decided")])
    lines = [line for line in module.__doc__.splitlines() if line.startswith("    ")]
    head = next(i for i, line in enumerate(lines) if "at ratio" in line)
    assert {tuple(line.split()) for line in lines[2:head]} == equals
    world = ""
    for line in lines[head + 1 :]:
        if "at most" not in line:
            world = line.strip()
            continue
        _, _, most, *figures = line.split()
        assert figures == needed[world, int(most)], line
