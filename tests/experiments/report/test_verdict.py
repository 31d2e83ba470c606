import json
from dataclasses import replace

import numpy as np
import pytest
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.records.loading import Method
from treespec.experiments.report import times, verdict
from treespec.experiments.report.measurements import BY_PROMPTS, Measurements
from treespec.experiments.report.run import load_run
from treespec.experiments.report.sequential import ENDED_EARLY
from treespec.experiments.report.verdict import compare, comparisons
from treespec.search.intervals import Interval
from treespec.tree import TreeShape

CHAIN, TREE = (-1, 0, 1), (-1, 0, 0)


def measurements(seconds):
    """64 tokens per prompt; `seconds` by name: t... is a tree, c... a chain, a assisted, g generate."""
    kinds = {
        "t": ("tree", TREE),
        "c": ("tree", CHAIN),
        "a": ("assisted", None),
        "g": ("generate", None),
    }
    methods = tuple(Method(name, *kinds[name[0]], {}, {}, True) for name in seconds)
    prompts = len(next(iter(seconds.values())))
    values = {}
    for name, of_prompts in seconds.items():
        values[name, "new_tokens"] = np.full(prompts, 64.0)
        values[name, "decode_s"] = np.asarray(of_prompts, dtype=float)
    return Measurements("T=0", methods, tuple(range(prompts)), prompts, values, ())


def test_excerpts_of_one_file_are_one_sample():
    data = measurements(
        {"t1": [1, 1, 4, 4, 1, 1, 4, 4], "t2": [2, 2, 3, 3, 2, 2, 3, 3], "c": [1] * 8}
    )
    sides = ("trees", ["t1", "t2"]), ("chains", ["c"])
    of_files = compare(replace(data, files=(0, 0, 1, 1, 2, 2, 3, 3)), *sides)
    summed = compare(measurements({"t1": [2, 8, 2, 8], "t2": [4, 6, 4, 6], "c": [2] * 4}), *sides)
    assert of_files.ratio == pytest.approx(summed.ratio)
    assert (of_files.prompts, of_files.samples) == (8, 4)


def test_excerpts_of_three_files_are_too_few():
    data = measurements({"t": [1.0] * 6, "c": [2.0] * 6})
    sides = ("trees", ["t"]), ("chains", ["c"])
    assert compare(data, *sides).samples == 6
    assert compare(replace(data, files=(0, 0, 1, 1, 2, 2)), *sides) is None


def test_a_repeated_interval_names_fewer_winners():
    rng = np.random.default_rng(3)
    data = measurements(
        {"t": np.exp(rng.normal(0, 0.1, 12)), "c": np.exp(rng.normal(0.12, 0.1, 12))}
    )
    sides = ("trees", ["t"]), ("chains", ["c"])
    assert compare(data, *sides).winner.family == "trees"
    early = compare(replace(data, boundary=6.0), *sides)
    assert early.winner is None
    assert early.ratio.estimate == pytest.approx(compare(data, *sides).ratio.estimate)


def test_the_file_of_an_excerpt_is_read_from_its_id(tmp_path):
    path = write_run(tmp_path / "run", prompts=8)
    manifest = json.loads((path / "manifest.json").read_text())
    assert load_run(path).files is None
    manifest["config"]["prompts"] = {"kind": "embedded", "excerpts": {"doc": 0, "code": 40}}
    manifest["finished"] = None  # rows are read from the log
    (path / "manifest.json").write_text(json.dumps(manifest))
    rows = [json.loads(line) for line in (path / "prompts.jsonl").read_text().splitlines()]
    for row in rows:
        category = "doc" if row["prompt"] % 2 else "code"
        row |= {"prompt_id": f"file {row['prompt'] // 2}, {category}", "category": category}
    (path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = load_run(path)
    assert run.files == {prompt: prompt // 2 for prompt in range(8)}
    data = run.measurements["T=0"]
    assert (data.samples, data.totals.prompts) == (4, 4)
    assert "8 prompts of 4 files" in run.verdicts["T=0"][0]


def test_a_clear_winner_is_found_and_named():
    rng = np.random.default_rng(2)
    noise = np.exp(rng.normal(0, 0.05, (4, 12)))
    data = measurements(
        {"g": 4 * noise[0], "a": 2.5 * noise[1], "c": 2 * noise[2], "t": 1.5 * noise[3]}
    )
    found = {(c.left.family, c.right.label): c for c in comparisons(data)}
    duel = found["the best tree", "c"]
    assert duel.winner is duel.left
    assert duel.ratio.estimate == pytest.approx(4 / 3, rel=0.05)
    ours = found["the best of our chains and trees", "g"]
    assert ours.left.label == "t"
    assert ours.ratio.estimate == pytest.approx(4 / 1.5, rel=0.05)


def test_too_few_prompts_or_an_empty_side_give_no_comparison():
    data = measurements({"t": [1, 1, 1], "c": [2, 2, 2]})
    assert compare(data, ("trees", ["t"]), ("chains", ["c"])) is None
    data = measurements({"t": [1, 1, 1, 1]})
    assert compare(data, ("trees", ["t"]), ("chains", [])) is None


def fixed(name, shape, draft, **more):
    return SyntheticMethod(name, "tree", shape, (1.0,), (draft, 1.0, 0.0, 0.0), 0.0, **more)


def test_sentences_name_the_winner_with_its_interval(tmp_path):
    methods = [
        SyntheticMethod("generate", "generate", stage_ms=(0, 20, 0, 0), other_ms=0),
        fixed("chain", TreeShape.chain(3), 39.0),
        fixed("tree", TreeShape.kary(2, 3), 31.0),
    ]
    run = load_run(write_run(tmp_path / "run", methods, temperatures=[0.0]))
    duel, gain, by_prompts = run.verdicts["T=0"]
    assert by_prompts == f"Caution: {BY_PROMPTS}."
    assert duel == (
        "Trees beat chains: the best tree (tree) runs 1.25 times as fast as the best chain (chain), "
        "95 % interval 1.25 to 1.25, 12 prompts."
    )
    assert gain.startswith(
        "Speculation pays: tree runs 2.50 times as fast as plain decoding (generate"
    )


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.69, 0.9968, "0.690 to 0.997"),
        (0.69, 1.0032, "0.690 to 1.003"),
        (0.9, 1.1, "0.90 to 1.10"),
        (1.0, 1.0, "1.000 to 1.000"),
    ],
)
def test_bounds_near_one_have_a_third_digit(low, high, said):
    data = measurements({"t": [1]})
    assert verdict._interval(Interval(1.0, low, high), data) == f"95 % interval {said}"


def test_no_winner_where_the_interval_contains_one(tmp_path):
    methods = [fixed("chain", TreeShape.chain(3), 31.0), fixed("tree", TreeShape.kary(2, 3), 31.0)]
    run = load_run(write_run(tmp_path / "run", methods, temperatures=[1.0], jitter=0.1))
    duel, _ = run.verdicts["T=1"]
    assert duel.startswith("No winner between trees and chains: ")
    assert duel.endswith("12 prompts, and that contains 1.")


def test_a_lossy_method_cannot_win(tmp_path):
    methods = [
        fixed("chain", TreeShape.chain(3), 39.0),
        fixed("tree", TreeShape.kary(2, 3), 31.0),
        fixed("fast", TreeShape.kary(2, 3), 3.0, lossless=False),
    ]
    run = load_run(write_run(tmp_path / "run", methods, temperatures=[1.0]))
    assert "the best tree (tree)" in run.verdicts["T=1"][0]


def test_an_unexplained_divergence_is_a_caution(tmp_path):
    methods = [
        fixed("chain", TreeShape.chain(3), 39.0, diverges={2: 0.01}),
        fixed("tree", TreeShape.kary(2, 3), 31.0, diverges={1: 3.0}),
    ]
    run = load_run(write_run(tmp_path / "run", methods, temperatures=[0.0]))
    cautions = [line for line in run.verdicts["T=0"] if line.startswith("Caution")]
    assert len(cautions) == 2
    assert "tree departs from plain decoding" in cautions[0]


DECIDED = {"decided": True, "half_width": None, "at_most": None}


@pytest.mark.parametrize(
    ("draft_ms", "until", "changes", "early"),
    [
        (15.0, DECIDED, {}, True),
        (39.0, DECIDED, {}, False),  # no winner: that did not end the run
        (15.0, DECIDED, {"planned": {"prompts": 12, "samples": 12}}, False),
        (15.0, DECIDED, {"finished": None}, False),
        (15.0, DECIDED | {"decided": False, "half_width": 0.1}, {}, False),
    ],
    ids=["early", "no winner", "to the end", "still running", "by width"],
)
def test_an_estimate_that_ended_its_run_is_said_to_lie_too_far_from_one(
    tmp_path, draft_ms, until, changes, early
):
    methods = [
        SyntheticMethod("generate", "generate", stage_ms=(0, 20, 0, 0), other_ms=0),
        fixed("chain", TreeShape.chain(3), 39.0),
        fixed("tree", TreeShape.kary(2, 3), draft_ms),
    ]
    path = write_run(tmp_path / "run", methods, temperatures=[0.0], jitter=0.02)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["config"]["until"] = until
    manifest["planned"] = {"prompts": 60, "samples": 60}
    seen = {"sampling": "T=0", "ratio": 1.2, "low": 1.1, "high": 1.3, "boundary": 3.0}
    manifest["looks"] = [seen | {"prompts": n, "samples": n, "decided": n == 12} for n in (8, 12)]
    (path / "manifest.json").write_text(json.dumps(manifest | changes))
    lines = load_run(path).verdicts["T=0"]
    assert lines[0].startswith("No winner" if draft_ms == 39.0 else "Trees beat chains")
    assert "repeated 95 % interval" in lines[0]
    assert (lines[1] == ENDED_EARLY) is early
    assert (ENDED_EARLY in lines) is early


@pytest.mark.parametrize("noise", [1.0, 4.5])
def test_winners_that_are_no_better_than_identical_methods_are_doubted(
    tmp_path, monkeypatch, noise
):
    methods = [
        SyntheticMethod("plain", "plain"),
        SyntheticMethod("chain", "tree", TreeShape.chain(3), (0.3,)),
        SyntheticMethod("tree", "tree", TreeShape.kary(2, 3), (0.9, 0.9)),
    ]
    run = load_run(write_run(tmp_path / "run", methods, temperatures=[0.0]))
    twins = Interval(1.0, 1 / noise, noise)
    monkeypatch.setattr(times, "resolution", lambda data: twins)
    cautions = [line for line in run.verdicts["T=0"] if "two identical methods" in line]
    assert run.verdicts["T=0"][0].startswith("Trees beat chains")
    sides = "trees and chains, and speculation and plain decoding"
    assert [line.startswith(f"Caution: {sides} differ") for line in cautions] == [True] * (
        noise > 1
    )
