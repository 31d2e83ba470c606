"""Which families of methods are compared, and that the answers are those of the halves."""

from dataclasses import replace

import numpy as np
import pytest
from run_folders.measured import measurements

from treespec.experiments.report.comparisons import (
    between,
    compare,
    speculation,
    trees_against_chains,
)


def test_a_clear_winner_is_found_and_named():
    rng = np.random.default_rng(2)
    noise = np.exp(rng.normal(0, 0.05, (4, 12)))
    data = measurements(
        {"g": 4 * noise[0], "a": 2.5 * noise[1], "c": 2 * noise[2], "t": 1.5 * noise[3]}
    )
    duel = compare(data, trees_against_chains(data))
    assert duel.winner is duel.left
    assert duel.ratio.estimate == pytest.approx(4 / 3, rel=0.05)
    assert duel.right.chosen == ("c",)
    assert duel.left_over_all.method == "t"
    assert 1 < duel.left_over_all.least < duel.ratio.low
    assert duel.right_over_all is None
    gain = compare(data, speculation(data))
    assert gain.left.label == "t"
    assert gain.ratio.estimate == pytest.approx(4 / 1.5, rel=0.05)


def test_too_few_prompts_or_an_empty_side_give_no_comparison():
    data = measurements({"t": [1, 1, 1], "c": [2, 2, 2]})
    assert compare(data, between(("trees", ["t"]), ("chains", ["c"]))) is None
    data = measurements({"t": [1, 1, 1, 1]})
    assert compare(data, between(("trees", ["t"]), ("chains", []))) is None


def test_excerpts_of_one_file_are_one_sample():
    data = measurements(
        {"t1": [1, 1, 4, 4, 1, 1, 4, 4], "t2": [2, 2, 3, 3, 2, 2, 3, 3], "c": [1] * 8}
    )
    sides = between(("trees", ["t1", "t2"]), ("chains", ["c"]))
    of_files = compare(replace(data, files=(0, 0, 1, 1, 2, 2, 3, 3)), sides)
    summed = compare(measurements({"t1": [2, 8, 2, 8], "t2": [4, 6, 4, 6], "c": [2] * 4}), sides)
    assert of_files.ratio == pytest.approx(summed.ratio)
    assert (of_files.prompts, of_files.samples) == (8, 4)


def test_excerpts_of_three_files_are_too_few():
    data = measurements({"t": [1.0] * 6, "c": [2.0] * 6})
    sides = between(("trees", ["t"]), ("chains", ["c"]))
    assert compare(data, sides).samples == 6
    assert compare(replace(data, files=(0, 0, 1, 1, 2, 2)), sides) is None


def test_a_repeated_interval_names_fewer_winners():
    rng = np.random.default_rng(3)
    data = measurements(
        {"t": np.exp(rng.normal(0, 0.1, 12)), "c": np.exp(rng.normal(0.12, 0.1, 12))}
    )
    sides = between(("trees", ["t"]), ("chains", ["c"]))
    assert compare(data, sides).winner.family.name == "trees"
    early = compare(replace(data, boundary=6.0), sides)
    assert early.winner is None
    assert early.ratio.estimate == pytest.approx(compare(data, sides).ratio.estimate)


def test_ten_halvings_of_six_prompts_are_one_answer():
    """Chains looked faster in two of the ten halvings of such a run, and in eight there was no winner."""
    rng = np.random.default_rng(5)
    noise = np.exp(rng.normal(0, 0.03, (4, 6)))
    names = ("t1", "t2", "c1", "c2")
    found = set()
    for _ in range(50):
        order = rng.permutation(6)
        data = measurements({name: row[order] for name, row in zip(names, noise, strict=True)})
        duel = compare(data, trees_against_chains(data))
        assert duel.winner is None
        found.add(duel.ratio)
    assert len(found) == 1
