import io
import json
import re

import polars as pl
import pytest
from rich.console import Console
from typer.testing import CliRunner

from experiments.cli_records import app
from experiments.diff import compare_runs
from experiments.diff_text import print_diff
from experiments.errors import RunFolderError
from experiments.loading import load_run
from experiments.testing import SyntheticMethod, write_run
from treespec.tree import TreeShape

PLAIN = SyntheticMethod("plain", "plain", stage_ms=(0.0, 24.0, 0.5, 0.5), other_ms=0.0)
CHAIN = SyntheticMethod("chain 3", "tree", TreeShape.chain(3), (1.0,), (4.0, 30.0, 1.0, 1.0), 4.0)
QUICK = SyntheticMethod("chain 3", "tree", TreeShape.chain(3), (1.0,), (4.0, 14.0, 1.0, 1.0), 0.0)
KARY = SyntheticMethod("kary", "tree", TreeShape.kary(2, 2), (1.0,))


def make(folder, methods, hash_="a" * 64, **settings):
    """A run, with what `differences` looks at changed by hand."""
    manifest_changes = settings.pop("manifest", {})
    write_run(folder, methods, **{"temperatures": [0.0]} | settings)
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text()) | {"prompts_hash": hash_}
    for key, value in manifest_changes.items():
        manifest[key] = {**manifest[key], **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(manifest))
    return folder


def printed(a, b, width=120):
    console = Console(file=io.StringIO(), width=width)
    print_diff(compare_runs(load_run(a), load_run(b)), console)
    return console.file.getvalue()


def test_ratios_of_known_runs(tmp_path):
    a = make(tmp_path / "a", [PLAIN, CHAIN], jitter=0.01)
    b = make(tmp_path / "b", [PLAIN, QUICK], jitter=0.01, seed=1)
    diff = compare_runs(load_run(a), load_run(b))
    assert diff.same_prompts
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
    assert (diff.config, diff.versions, diff.hardware, diff.only_a) == ((), (), (), ())
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
    assert not diff.same_prompts
    assert {entry.prompts for entry in diff.methods} == {7}
    assert "WARNING: the runs measured other prompts" in printed(a, b)


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


def test_texts_that_differ_are_counted(tmp_path):
    off = SyntheticMethod("chain 3", "tree", CHAIN.shape, (1.0,), diverges={2: 0.1, 3: 0.1})
    a = make(tmp_path / "a", [PLAIN, CHAIN])
    b = make(tmp_path / "b", [PLAIN, off])
    found = {e.method: e.same_tokens for e in compare_runs(load_run(a), load_run(b)).methods}
    assert found == {"plain": 12, "chain 3": 10}


def test_an_id_that_stands_for_two_prompts_is_not_compared(tmp_path):
    a = make(tmp_path / "a", [PLAIN], prompts=4)
    b = make(tmp_path / "b", [PLAIN], prompts=4, hash_="b" * 64)
    frame = pl.read_parquet(b / "prompts.parquet")
    twice = pl.col("prompt_id").replace("module_1.py", "module_0.py")
    frame.with_columns(twice).write_parquet(b / "prompts.parquet")
    (plain,) = compare_runs(load_run(a), load_run(b)).methods
    assert plain.prompts == 2


def test_an_unfinished_run_is_compared_as_far_as_it_got(tmp_path):
    a = make(tmp_path / "a", [PLAIN, CHAIN])
    b = make(tmp_path / "b", [PLAIN, CHAIN], finished=False)
    assert f"{b} is not finished" in printed(a, b, width=400)


def test_nothing_in_common_is_refused(tmp_path):
    a = make(tmp_path / "a", [PLAIN])
    for b in (
        make(tmp_path / "b", [KARY]),
        make(tmp_path / "c", [PLAIN], temperatures=[1.0]),
    ):
        with pytest.raises(RunFolderError, match="nothing in common"):
            compare_runs(load_run(a), load_run(b))


def test_the_command_prints_a_table_or_json(tmp_path):
    a = make(tmp_path / "a", [PLAIN, CHAIN], prompts=1)
    b = make(tmp_path / "b", [PLAIN, QUICK], prompts=1)
    found = CliRunner().invoke(app, [str(a), str(b)])
    assert found.exit_code == 0, found.output
    assert re.search(r"T=0: chain 3\s+1\s+2\.00", found.output)
    found = CliRunner().invoke(app, [str(a), str(b), "--json"])
    data = json.loads(found.output)
    speed = data["methods"][1]["speed"]
    assert speed["estimate"] == pytest.approx(2.0)
    assert speed["low"] is None  # one prompt has no interval
    found = CliRunner().invoke(app, [str(a), str(tmp_path / "nowhere")])
    assert found.exit_code == 2
    assert "no run folder" in found.output


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
    assert all(line.startswith("optimal 4 for T=0.parents") for line in found.trees)
    assert compare_runs(a, a).trees == ()
