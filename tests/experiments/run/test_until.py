"""Runs with `until`: looks, resumption, refusals."""

import json

import polars as pl
import pytest
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.config.schema import Until
from treespec.experiments.errors import ConfigError, PromptError
from treespec.experiments.measure.searched_run import dry_run
from treespec.experiments.report import sequential
from treespec.experiments.report.run import load_run
from treespec.experiments.run import runner
from treespec.experiments.run import until as looks_module
from treespec.experiments.run.until import look_at
from treespec.tree import TreeShape

CHAIN = {"kind": "tree", "shape": {"kind": "chain", "depth": 2}}
TREE = {"kind": "tree", "shape": {"kind": "expansion", "branching": [2]}}
WIDE = {"half_width": 9.0}


@pytest.fixture(autouse=True)
def early(monkeypatch):
    """First looks after 8 prompts instead of 12 keep these runs short."""
    monkeypatch.setattr(sequential, "FIRST_LOOK", 8)


@pytest.fixture
def many(tmp_path):
    """Fourteen prompts: looks after 8, 12 and 14."""
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": f"def f{i}(x):\n    x"}) + "\n" for i in range(14))
    )
    return {
        "prompts": {"kind": "jsonl", "path": str(path)},
        "max_new_tokens": 3,
        "alone": 0,
        "samplings": [{"temperature": 0}, {"temperature": 1.0}],
        "methods": [{"kind": "plain"}, CHAIN, TREE],
    }


def manifest_of(result):
    return json.loads((result.folder / "manifest.json").read_text())


def rows_of(result):
    return pl.read_parquet(result.folder / "prompts.parquet")


def clear_after(monkeypatch, least, seen=None):
    """Make looks clear from this number of prompts on, whatever they see."""
    real = looks_module.look_at

    def look_at(run, until, prompts):
        if seen is not None:
            seen.append(prompts)
        return [look | {"decided": prompts >= least} for look in real(run, until, prompts)]

    monkeypatch.setattr(looks_module, "look_at", look_at)


@pytest.mark.usefixtures("clear_at_once")
def test_a_run_ends_at_the_first_look_that_is_clear(start, many):
    result = start(many | {"until": WIDE, "repeats": 2})
    manifest = manifest_of(result)
    assert manifest["planned"] == {"prompts": 14, "samples": 14}
    assert manifest["finished"]
    assert [(look["prompts"], look["sampling"]) for look in manifest["looks"]] == [
        (8, "T=0"),
        (8, "T=1"),
    ]
    for look in manifest["looks"]:
        assert look["samples"] == 8
        assert look["low"] < look["ratio"] < look["high"]
        assert look["boundary"] > 2
        assert look["decided"] is True
    assert set(rows_of(result)["prompt"]) == set(range(8))
    assert (
        len(rows_of(result)) == 8 * 2 * 2 * 4
    )  # all repeats of a prompt come before the next prompt
    assert start(many | {"until": WIDE, "repeats": 2}).already_finished


@pytest.mark.usefixtures("clear_at_once")
def test_what_a_look_saw_is_the_verdict(start, many):
    run = load_run(start(many | {"until": WIDE}).folder)
    for look in run.manifest["looks"]:
        duel = run.comparisons[look["sampling"]][0]
        bounds = duel.ratio.estimate, duel.ratio.low, duel.ratio.high
        assert bounds == pytest.approx((look["ratio"], look["low"], look["high"]))
    lines = run.verdicts["T=0"]
    assert "repeated 95 % interval" in lines[0]
    assert any("stopped after 8 of 14 prompts: half the interval is narrower" in x for x in lines)


def test_a_run_that_is_never_clear_decodes_every_prompt(start, many):
    result = start(many | {"until": {"half_width": 1e-9}})
    looks = manifest_of(result)["looks"]
    assert [look["prompts"] for look in looks] == [8, 8, 12, 12, 14, 14]
    assert not any(look["decided"] for look in looks)
    assert set(rows_of(result)["prompt"]) == set(range(14))
    assert start(many | {"until": {"half_width": 1e-9}}).already_finished


def test_trees_and_chains_that_are_told_apart_end_a_run(start, many, monkeypatch):
    clear_after(monkeypatch, 12)
    result = start(many | {"until": "decided"})
    assert [look["prompts"] for look in manifest_of(result)["looks"]] == [8, 8, 12, 12]
    assert set(rows_of(result)["prompt"]) == set(range(12))


@pytest.mark.parametrize("at", [5, 8, 10])
def test_a_run_that_was_interrupted_goes_on_to_the_same_end(start, many, monkeypatch, at):
    seen = []
    clear_after(monkeypatch, 12, seen)
    real = runner.run_unit

    def interrupted(bench, unit, *arguments):
        if unit.prompts[0].index == at:
            raise KeyboardInterrupt
        return real(bench, unit, *arguments)

    monkeypatch.setattr(runner, "run_unit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start(many | {"until": "decided"})
    monkeypatch.setattr(runner, "run_unit", real)
    result = start(many | {"until": "decided"})
    assert seen == [8, 12]  # no look is taken twice
    assert [look["prompts"] for look in manifest_of(result)["looks"]] == [8, 8, 12, 12]
    assert set(rows_of(result)["prompt"]) == set(range(12))
    assert start(many | {"until": "decided"}).already_finished


@pytest.mark.usefixtures("clear_at_once")
def test_what_failed_is_decoded_again_and_looked_at_again(start, many, monkeypatch):
    from treespec.experiments.run import unit

    real = unit.decode_ours

    def fragile(pair, method, sampling, ids, **arguments):
        if method.name == "chain 2" and sampling == "T=0":
            raise ArithmeticError("boom")
        return real(pair, method, sampling, ids, **arguments)

    monkeypatch.setattr(unit, "decode_ours", fragile)
    result = start(many | {"until": WIDE})
    assert len(result.failures) == 14  # a look without a chain is not clear
    monkeypatch.setattr(unit, "decode_ours", real)
    again = start(many | {"until": WIDE}, retry=True)
    assert not again.failures
    looks = [look for look in manifest_of(again)["looks"] if look["sampling"] == "T=0"]
    assert [look["samples"] for look in looks] == [8, 12, 14]  # it had already run to the end


@pytest.mark.usefixtures("clear_at_once")
def test_excerpts_of_a_file_are_one_sample(start, many, loaded_pair):
    prompts = {"kind": "embedded", "tokens": 8, "excerpts": {"a": 30, "b": 70}}
    short = {"max_new_tokens": 6, "samplings": [{"temperature": 0}]}
    result = start(many | short | {"prompts": prompts, "until": WIDE | {"at_most": 9}})
    manifest = manifest_of(result)
    assert manifest["planned"] == {"prompts": 18, "samples": 9}
    assert [(look["prompts"], look["samples"]) for look in manifest["looks"]] == [(16, 8)]
    run = load_run(result.folder)
    data = run.measurements["T=0"]
    assert (len(data.prompts), data.samples, data.totals.samples) == (16, 8, 8)
    assert data.files == tuple(i // 2 for i in range(16))
    assert "16 prompts of 8 files" in run.verdicts["T=0"][0]


@pytest.mark.usefixtures("clear_at_once")
def test_equal_prompts_are_one_sample(start, many, tmp_path):
    path = tmp_path / "twice.jsonl"
    numbers = [0, 1, 0, 2, 2, 3, 4, 5, 6, 1, 7, 8, 9]
    lines = (json.dumps({"prompt": f"def f{i}(x):\n    x"}) + "\n" for i in numbers)
    path.write_text("".join(lines))
    short = {"max_new_tokens": 6, "samplings": [{"temperature": 0}]}
    prompts = {"kind": "jsonl", "path": str(path)}
    result = start(many | short | {"prompts": prompts, "until": WIDE | {"at_most": 13}})
    manifest = manifest_of(result)
    assert manifest["planned"] == {"prompts": 13, "samples": 10}
    # the eighth different prompt is the eleventh, and the twelfth is new
    assert [(look["prompts"], look["samples"]) for look in manifest["looks"]] == [(11, 8)]


PLAIN = [{"kind": "plain"}]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"until": "decided", "methods": PLAIN}, ["until: decided", "no tree and no chain"]),
        ({"until": "decided", "methods": [*PLAIN, TREE]}, ["no chain or assisted generation"]),
        ({"until": WIDE, "methods": PLAIN}, ["until.half_width = 9", "no tree and no chain"]),
        ({"until": WIDE, "methods": [TREE]}, ["no chain", "no plain decoding"]),
    ],
)
def test_nothing_to_decide_is_refused(start, many, changes, parts):
    with pytest.raises(ConfigError) as refused:
        start(many | changes)
    assert all(part in str(refused.value) for part in parts)


@pytest.mark.usefixtures("clear_at_once")
@pytest.mark.parametrize("methods", [[*PLAIN, TREE], [*PLAIN, CHAIN]])
def test_a_width_against_plain_decoding_is_enough(start, many, methods):
    result = start(many | {"until": WIDE, "methods": methods})
    assert [look["decided"] for look in manifest_of(result)["looks"]] == [True, True]


def test_more_prompts_than_there_are_is_refused(start, many):
    with pytest.raises(PromptError, match=r"until\.at_most = 15, but .* has 14 prompts: lower it"):
        start(many | {"until": {"decided": True, "at_most": 15}})
    files = {"prompts": {"kind": "embedded", "tokens": 8, "excerpts": {"a": 0, "b": 40}}}
    with pytest.raises(PromptError, match=r"until\.at_most = 25, but .* has 24 files, and several"):
        start(many | files | {"until": {"decided": True, "at_most": 25}})


def test_at_most_stands_for_the_count(start, many):
    prompts = many["prompts"] | {"count": 4}
    changes = {"prompts": prompts, "until": {"half_width": 1e-9, "at_most": 9}}
    assert manifest_of(start(many | changes))["planned"]["prompts"] == 9


@pytest.mark.parametrize(
    "until",
    ["soon", {}, {"decided": False}, {"decided": True, "half_width": 0.1}, {"half_width": 0}],
)
def test_no_rule_is_refused(start, many, until):
    with pytest.raises(ValueError, match="until"):
        start(many | {"until": until})


def test_a_dry_run_says_the_most(settings, many, loaded_pair, tmp_path):
    from io import StringIO

    from rich.console import Console

    from treespec.experiments.config.schema import Config
    from treespec.experiments.run.dry_run import plan_data, print_plan

    config = Config.model_validate(settings | many | {"until": "decided"})
    plan = dry_run(config, folder=tmp_path / "run", load=lambda models: loaded_pair)
    data = plan_data(plan)
    assert (data["units"], data["until"]["decided"]) == (28, True)
    text = StringIO()
    print_plan(plan, Console(file=text, width=200))
    assert "at most 28 texts" in text.getvalue()


@pytest.fixture
def known(tmp_path, request):
    """Twelve prompts; the tree keeps 1.38 times the tokens, and its drafting time is set by the test."""
    rates, ms = (0.6, 0.2), (1.0, 20.0, 0.3, 0.3)
    drafting = getattr(request, "param", 1.0)
    path = write_run(
        tmp_path / "run",
        [
            SyntheticMethod("plain", "plain"),
            SyntheticMethod("chain", "tree", TreeShape.chain(3), rates, ms),
            SyntheticMethod("tree", "tree", TreeShape.kary(2, 3), rates, (drafting, *ms[1:])),
        ],
        prompts=12,
        temperatures=[0.0],
        jitter=0.02,
    )
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["config"]["until"] = {"decided": False, "half_width": 0.1, "at_most": None}
    manifest |= {"planned": {"prompts": 12, "samples": 12}, "looks": []}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return load_run(path)


@pytest.mark.parametrize("share", [0.9, 1.1])
def test_a_width_is_clear_from_just_above_it(known, share):
    (look,) = look_at(known, Until(half_width=0.1), 12)
    wide = (look["high"] - look["low"]) / 2
    (again,) = look_at(known, Until(half_width=share * wide), 12)
    assert again["decided"] is (share > 1)


def test_no_prompt_is_not_clear(known):
    assert [look["decided"] for look in look_at(known, Until(half_width=9.0), 0)] == [False]


@pytest.mark.parametrize(("known", "decided"), [(1.0, True), (9.0, False)], indirect=["known"])
def test_a_winner_is_clear(known, decided):
    (look,) = look_at(known, Until(decided=True), 12)
    assert look["decided"] is decided
