import json

import pytest
from run_folders.folders import SyntheticMethod, write_run
from run_folders.measured import measurements

from treespec.experiments.report import times, verdict
from treespec.experiments.report.measurements import BY_PROMPTS
from treespec.experiments.report.run import load_run
from treespec.experiments.report.sequential import ENDED_EARLY
from treespec.search.intervals import Interval
from treespec.tree import TreeShape


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
    assert (data.samples, data.totals.samples) == (4, 4)
    assert "8 prompts of 4 files" in run.verdicts["T=0"][0]


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
        "Trees beat chains: tree runs 1.25 times as fast as chain, 95 % interval 1.25 to 1.25, 12 prompts."
    )
    assert gain.startswith(
        "Speculation pays: the best speculative method (tree), as chosen on half of such prompts, runs "
        "2.50 times as fast as plain decoding (generate)"
    )
    assert gain.endswith(
        "tree is faster than plain decoding: at least 2.50 times as fast, jointly over 2 pairs."
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
    assert run.verdicts["T=1"][0].startswith("Trees beat chains: tree runs")


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
    sides = "trees and chains, and speculation and plain"
    assert [line.startswith(f"Caution: {sides} differ") for line in cautions] == [True] * (
        noise > 1
    )


def duels_of(folder, samplings=("T=0",)):
    run = load_run(folder)
    return [run.verdicts[sampling][0] for sampling in samplings]


@pytest.mark.parametrize(
    ("prompts", "said"), [(2, "No verdict: 2 prompts"), (6, "No winner is named")]
)
def test_few_prompts_have_no_winner(tmp_path, prompts, said):
    """However far apart the two are."""
    methods = [fixed("chain", TreeShape.chain(3), 31.0), fixed("tree", TreeShape.kary(2, 3), 9.0)]
    path = write_run(tmp_path / "run", methods, prompts=prompts, temperatures=[0.0], jitter=0.1)
    (line,) = duels_of(path)
    assert line.startswith(said)
    run = load_run(path)
    assert not any(duel.winner for duel in run.comparisons["T=0"])
    assert not any(row.among_fastest for row in run.summaries[0].rows)
    if prompts == 6:
        assert "about" in line
        assert "prompts tell a difference of 5 % apart" in line
    else:
        assert not run.summaries[0].rows[0].tokens_per_step.bounded


def asking(path, *questions):
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["config"]["compare"] = [
        dict(zip(("left", "right"), q, strict=True)) for q in questions
    ]
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def test_questions_of_ones_own_are_answered_in_place_of_trees_and_chains(tmp_path):
    methods = [
        SyntheticMethod("plain", "plain"),
        fixed("lookup 3", TreeShape.chain(3), 39.0),
        fixed("lookup 2", TreeShape.chain(2), 45.0),
        fixed("suffix 3", TreeShape.chain(3), 31.0),
    ]
    path = write_run(tmp_path / "run", methods, temperatures=[0.0], jitter=0.02)
    path = asking(path, ("suffix *", "lookup *"), ({"name": "suf*"}, "plain"))
    first, second, third, *_ = load_run(path).verdicts["T=0"]
    assert first.startswith("suffix * is faster than lookup *: suffix 3 runs 1.2")
    assert "the best of lookup *, as chosen on half of such prompts (lookup 3)" in first
    assert "suffix 3 is faster than every method of lookup *" in first
    assert second.startswith(("plain is faster than name suf*", "name suf* is faster than plain"))
    assert third.startswith(("Speculation pays", "Speculation does not pay"))


def test_trees_and_chains_of_one_source_are_compared_beside_other_questions(tmp_path):
    methods = [fixed("chain", TreeShape.chain(3), 31.0), fixed("tree", TreeShape.kary(2, 3), 31.0)]
    path = write_run(tmp_path / "run", methods, temperatures=[0.0])
    lines = load_run(asking(path, ("chain", "tree"))).verdicts["T=0"]
    assert lines[0].startswith("No winner between chain and tree")
    assert lines[1].startswith("No winner between trees and chains")


def test_an_early_look_counts_prompts_as_one_look_would(tmp_path):
    """A killed run of 200 planned prompts: its repeated interval is infinitely wide, its spread is not."""
    methods = [fixed("chain", TreeShape.chain(3), 31.0), fixed("tree", TreeShape.kary(2, 3), 30.0)]
    path = write_run(tmp_path / "run", methods, prompts=6, temperatures=[0.0], jitter=0.1)
    alone = load_run(path).verdicts["T=0"][0].rpartition("about ")[2]
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["config"]["until"] = DECIDED
    manifest |= {"planned": {"prompts": 200, "samples": 200}, "looks": []}
    (path / "manifest.json").write_text(json.dumps(manifest))
    line = load_run(path).verdicts["T=0"][0]
    assert "repeated 95 % interval" in line
    assert line.endswith(alone)


def test_only_the_side_with_several_methods_was_chosen(tmp_path):
    methods = [
        fixed("one", TreeShape.kary(2, 3), 30.0),
        fixed("chain 3", TreeShape.chain(3), 39.0),
        fixed("chain 4", TreeShape.chain(4), 60.0),
    ]
    line = load_run(write_run(tmp_path / "run", methods, temperatures=[0.0])).verdicts["T=0"][0]
    assert ": one runs " in line
    assert "the best chain, as chosen on half of such prompts (chain" in line


def test_a_lossy_method_answers_only_where_it_is_asked_for(tmp_path):
    methods = [
        fixed("a fast", TreeShape.chain(3), 3.0, lossless=False),
        fixed("a slow", TreeShape.chain(3), 45.0),
        fixed("b", TreeShape.chain(3), 39.0),
    ]
    path = write_run(tmp_path / "run", methods, temperatures=[1.0])
    assert (
        load_run(asking(path, ("a *", "b"))).verdicts["T=1"][0].startswith("b is faster than a *")
    )
    lines = load_run(asking(path, ("a fast", "b"))).verdicts["T=1"]
    assert lines[0].startswith("a fast is faster than b")
