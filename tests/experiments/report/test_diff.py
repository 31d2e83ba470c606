import io
import json
import re
from dataclasses import replace

import polars as pl
import pytest
from rich.console import Console
from run_folders.folders import SyntheticMethod, write_run
from typer.testing import CliRunner

from treespec.experiments.cli.main import app
from treespec.experiments.errors import RunFolderError
from treespec.experiments.report.diff import COLUMNS, MethodDiff, compare_runs, print_diff
from treespec.experiments.report.run import load_run
from treespec.search.intervals import Interval
from treespec.tree import TreeShape

PLAIN = SyntheticMethod("plain", "plain", stage_ms=(0.0, 24.0, 0.5, 0.5), other_ms=0.0)
CHAIN = SyntheticMethod("chain 3", "tree", TreeShape.chain(3), (1.0,), (4.0, 30.0, 1.0, 1.0), 4.0)
QUICK = SyntheticMethod("chain 3", "tree", TreeShape.chain(3), (1.0,), (4.0, 14.0, 1.0, 1.0), 0.0)
KARY = SyntheticMethod("kary", "tree", TreeShape.kary(2, 2), (1.0,))


def make(folder, methods, hash_="a" * 64, **settings):
    """Write a run, and overwrite the manifest entries that `differences` compares."""
    manifest_changes = settings.pop("manifest", {})
    write_run(folder, methods, **{"temperatures": [0.0]} | settings)
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text()) | {"prompts_hash": hash_}
    for key, value in manifest_changes.items():
        manifest[key] = {**manifest[key], **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(manifest))
    return folder


def change_rows(folder, change):
    """Change the rows of a finished run."""
    path = folder / "prompts.parquet"
    change(pl.read_parquet(path)).write_parquet(path)


def printed(a, b, width=120):
    console = Console(file=io.StringIO(), width=width)
    print_diff(compare_runs(load_run(a), load_run(b)), console)
    return console.file.getvalue()


def test_ratios_of_known_runs(tmp_path):
    a = make(tmp_path / "a", [PLAIN, CHAIN], jitter=0.01)
    b = make(tmp_path / "b", [PLAIN, QUICK], jitter=0.01, seed=1)
    diff = compare_runs(load_run(a), load_run(b))
    assert not diff.warnings
    plain, chain = diff.methods
    assert (plain.method, chain.method) == ("plain", "chain 3")
    assert plain.speed.contains(1.0)
    assert chain.speed.estimate == pytest.approx(40 / 20, rel=0.02)  # milliseconds of a step
    assert chain.speed.low < chain.speed.estimate < chain.speed.high
    assert chain.speed.half_width < 0.05
    assert chain.tokens_per_step.estimate == 1.0
    assert (chain.prompts, chain.same_tokens, chain.texts) == (12, 12, 12)
    back = compare_runs(load_run(b), load_run(a)).methods[1]
    assert back.speed.estimate == pytest.approx(1 / chain.speed.estimate)


def test_a_run_equals_itself(tmp_path):
    a = make(tmp_path / "a", [PLAIN, CHAIN])
    diff = compare_runs(load_run(a), load_run(a))
    assert [entry.speed.estimate for entry in diff.methods] == [1.0, 1.0]
    assert (diff.config, diff.warnings, diff.only_a) == ((), (), ())
    text = printed(a, a)
    assert "WARNING" not in text
    assert "The configs are the same" in text


def test_methods_of_one_run_alone_are_listed(tmp_path):
    a = make(tmp_path / "a", [PLAIN, CHAIN])
    b = make(tmp_path / "b", [PLAIN, KARY])
    diff = compare_runs(load_run(a), load_run(b))
    assert [entry.method for entry in diff.methods] == ["plain"]
    assert (diff.only_a, diff.only_b) == (("T=0: chain 3",), ("T=0: kary",))
    text = printed(a, b)
    assert "Only in A:\n  T=0: chain 3" in text
    assert "Only in B:\n  T=0: kary" in text


def test_other_prompts_are_compared_by_id_and_said(tmp_path):
    a = make(tmp_path / "a", [PLAIN, CHAIN], prompts=12)
    b = make(tmp_path / "b", [PLAIN, CHAIN], prompts=7, hash_="b" * 64)
    diff = compare_runs(load_run(a), load_run(b))
    assert {entry.prompts for entry in diff.methods} == {7}
    assert "WARNING: the runs measured different prompts" in printed(a, b)


def test_hardware_versions_and_config_are_told(tmp_path):
    changes = {
        "hardware": {"cpu": "Faster CPU", "threads": 8},
        "versions": {"torch": "2.14.0"},
        "config": {"max_new_tokens": 128},
        "git_hash": "def",
    }
    a = make(tmp_path / "a", [PLAIN, CHAIN])
    b = make(tmp_path / "b", [PLAIN, CHAIN], manifest=changes)
    text = " ".join(printed(a, b).split())
    assert 'WARNING: the hardware differs: cpu: "Synthetic CPU" -> "Faster CPU"' in text
    assert 'the versions differ: git_hash: "abc1234" -> "def"; torch: "2.13.0" -> "2.14.0"' in text
    assert "max_new_tokens: 64 -> 128" in text


def test_prompts_that_failed_in_one_run_count_in_neither(tmp_path):
    failing = SyntheticMethod("chain 3", "tree", CHAIN.shape, (1.0,), errors=frozenset({1, 4}))
    a = make(tmp_path / "a", [PLAIN, failing])
    b = make(tmp_path / "b", [PLAIN, CHAIN])
    found = {e.method: e.prompts for e in compare_runs(load_run(a), load_run(b)).methods}
    assert found == {"plain": 12, "chain 3": 10}


def test_an_id_that_stands_for_two_prompts_is_not_compared(tmp_path):
    a = make(tmp_path / "a", [PLAIN], prompts=4)
    b = make(tmp_path / "b", [PLAIN], prompts=4, hash_="b" * 64)
    twice = pl.col("prompt_id").replace("module_1.py", "module_0.py")
    change_rows(b, lambda rows: rows.with_columns(twice))
    (plain,) = compare_runs(load_run(a), load_run(b)).methods
    assert plain.prompts == 2


def test_nothing_in_common_is_refused(tmp_path):
    a = make(tmp_path / "a", [PLAIN])
    for b in (
        make(tmp_path / "b", [KARY]),
        make(tmp_path / "c", [PLAIN], temperatures=[1.0]),
    ):
        with pytest.raises(RunFolderError, match="share nothing that both finished"):
            compare_runs(load_run(a), load_run(b))


def test_the_command_prints_a_table_or_json(tmp_path):
    a = make(tmp_path / "a", [PLAIN, CHAIN], prompts=1)
    b = make(tmp_path / "b", [PLAIN, QUICK], prompts=1)
    found = CliRunner().invoke(app, ["diff", str(a), str(b)])
    assert found.exit_code == 0, found.output
    assert re.search(r"T=0: chain 3\s+1\s+2\.00", found.output)
    found = CliRunner().invoke(app, ["diff", str(a), str(b), "--json"])
    data = json.loads(found.output)
    speed = data["methods"][1]["speed"]
    assert speed["estimate"] == pytest.approx(2.0)
    assert speed["low"] is None  # one prompt has no interval
    found = CliRunner().invoke(app, ["diff", str(a), str(tmp_path / "nowhere")])
    assert found.exit_code == 2
    assert "is not a run folder" in found.output


def test_trees_that_differ_under_one_name_are_told(tmp_path):
    def method(shape):
        return SyntheticMethod(
            "optimal 4 for T=0", "tree", shape, (0.6, 0.2), (1.0, 10.0, 0.1, 0.1)
        )

    plain = SyntheticMethod("plain", "plain")
    a, b = (
        load_run(write_run(tmp_path / name, [plain, method(shape)], prompts=4, temperatures=(0.0,)))
        for name, shape in (("a", TreeShape.chain(3)), ("b", TreeShape.expansion([3])))
    )
    found = compare_runs(a, b)
    assert found.trees
    assert all(line.startswith("optimal 4 for T=0.parents[") for line in found.trees)
    assert compare_runs(a, a).trees == ()


def test_runs_that_cannot_have_equal_texts_say_so(tmp_path):
    changes = {"config": {"max_new_tokens": 32}}
    a = make(tmp_path / "a", [PLAIN, CHAIN])
    b = make(tmp_path / "b", [PLAIN, CHAIN], new_tokens=32, manifest=changes)
    diff = compare_runs(load_run(a), load_run(b))
    (why,) = diff.warnings
    assert why.startswith("texts end after 64 tokens in A and after 32 in B")
    assert {(entry.same_tokens, entry.texts) for entry in diff.methods} == {(0, 0)}
    text = printed(a, b)
    assert "WARNING: texts end after 64 tokens in A" in text
    assert not re.search(r"\d/0", text)
    early = pl.when(prompt=2).then(pl.lit([7, 8])).otherwise("tokens").alias("tokens")
    for folder in (a, b):  # a text that ends early can be equal
        change_rows(folder, lambda rows: rows.with_columns(early))
    diff = compare_runs(load_run(a), load_run(b))
    assert {(entry.same_tokens, entry.texts) for entry in diff.methods} == {(1, 1)}


def test_other_models_seeds_and_prompts_say_that_texts_cannot_be_equal(tmp_path):
    a = make(tmp_path / "a", [PLAIN], temperatures=[0.0, 1.0])
    b = make(tmp_path / "b", [PLAIN], temperatures=[0.0, 1.0], seed=1, hash_="b" * 64)
    change = pl.when(prompt=3).then(99).otherwise("prompt_tokens").alias("prompt_tokens")
    change_rows(b, lambda rows: rows.with_columns(change.cast(pl.Int64)))
    path = b / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["models"]["target"]["name"] = "other"
    path.write_text(json.dumps(manifest))
    diff = compare_runs(load_run(a), load_run(b))
    _, models, seeds = diff.warnings
    assert "(embedded and other)" in models
    assert "(0 and 1)" in seeds
    assert {entry.texts for entry in diff.methods} == {11}


def test_methods_of_the_config_go_by_their_names(tmp_path):
    def config(*depths, **changes):
        trees = [{"kind": "tree", "shape": {"kind": "chain", "depth": depth}} for depth in depths]
        named = {"kind": "tree", "name": "mine", "shape": {"kind": "chain", "depth": 9}} | changes
        return {"config": {"methods": [{"kind": "plain"}, *trees, named]}}

    a = make(tmp_path / "a", [PLAIN], manifest=config(2, 4, 6))
    b = make(tmp_path / "b", [PLAIN], manifest=config(4, 8, law="iid"))
    assert compare_runs(load_run(a), load_run(b)).config == (
        "methods: chain 2 -> none",
        "methods: chain 6 -> none",
        "methods: none -> chain 8",
        'mine.law: null -> "iid"',
    )


def test_a_method_that_failed_everywhere_in_one_run_is_told(tmp_path):
    failing = SyntheticMethod("chain 3", "tree", CHAIN.shape, (1.0,), errors=frozenset(range(12)))
    a = make(tmp_path / "a", [PLAIN, failing])
    b = make(tmp_path / "b", [PLAIN, CHAIN])
    reason = "T=0: chain 3: no prompt that both finished (12 errors in A, 0 errors in B)"
    diff = compare_runs(load_run(a), load_run(b))
    assert [entry.method for entry in diff.methods] == ["plain"]
    assert (diff.not_compared, diff.only_a, diff.only_b) == ((reason,), (), ())
    assert f"Not compared:\n  {reason}" in printed(a, b)
    found = CliRunner().invoke(app, ["diff", str(a), str(b), "--json"])
    assert json.loads(found.output)["not_compared"] == [reason]


def test_repeats_that_one_run_lacks_count_in_neither(tmp_path):
    """Prompts weigh the same on both sides, and a failure in a repeat that only one run has is ignored."""
    a = make(tmp_path / "a", [PLAIN], jitter=0.5)
    b = make(tmp_path / "b", [PLAIN], jitter=0.5)

    def with_more(rows):
        again = rows.filter(pl.col("prompt") < 2).with_columns(pl.lit(1).alias("repeat"))
        failed = pl.when(prompt=1).then(pl.lit("out of memory")).alias("error")
        return pl.concat([rows, again.cast(rows.schema).with_columns(failed)])

    change_rows(b, with_more)
    for left, right in ((a, b), (b, a)):
        (plain,) = compare_runs(load_run(left), load_run(right)).methods
        assert (plain.prompts, plain.texts) == (12, 12)
        assert plain.speed.estimate == plain.tokens_per_step.estimate == 1.0


def describe(folder, **changes):
    """The run with changes to the manifest entry of its last method."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["methods"][-1] |= changes
    path.write_text(json.dumps(manifest))
    return load_run(folder)


def test_files_of_a_growth_count_by_what_is_in_them(tmp_path):
    def grown(name, calibration, **more):
        growth = {"kind": "dyspec", "size": 8, "calibration": f"{name}/search/calibration-0.json"}
        files = {"calibration": calibration}
        folder = make(tmp_path / name, [PLAIN, CHAIN], prompts=2)
        return describe(folder, **{"growth": growth, "files": files} | more)

    a = grown("a", "1" * 64)
    assert compare_runs(a, grown("b", "1" * 64)).trees == ()
    (line,) = compare_runs(a, grown("c", "2" * 64)).trees
    assert line == f'chain 3.files.calibration: "{"1" * 64}" -> "{"2" * 64}"'
    bigger = {"kind": "dyspec", "size": 9, "calibration": "elsewhere.json"}
    (line,) = compare_runs(a, grown("d", "1" * 64, growth=bigger)).trees
    assert line == "chain 3.growth.size: 8 -> 9"
    for name, files in (("old", None), ("unreadable", {"calibration": None})):
        (line,) = compare_runs(a, grown(name, "", files=files)).trees  # only the paths are known
        assert line.startswith("chain 3.growth.calibration: ")


def test_settings_of_a_rule_that_differ_are_told(tmp_path):
    a, b, old = (make(tmp_path / name, [PLAIN, CHAIN], prompts=2) for name in ("a", "b", "old"))
    strict, lenient = (
        describe(folder, settings={"lenience": value}) for folder, value in ((a, 1.0), (b, 0.5))
    )
    assert compare_runs(strict, lenient).trees == ("chain 3.settings.lenience: 1.0 -> 0.5",)
    assert compare_runs(load_run(old), lenient).trees == ()  # an older manifest does not say


def test_few_prompts_have_no_winner():
    decided = COLUMNS[-1].write
    many = MethodDiff(
        "T=0", "tree", 12, Interval(1.5, 1.2, 1.9), Interval(1.0, 1.0, 1.0), 0, 12, 12
    )
    assert decided(many) == "B is faster"
    assert decided(replace(many, samples=11)) == "fewer than 12 prompts"
