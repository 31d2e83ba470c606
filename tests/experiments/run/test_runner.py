"""The runner on real (tiny) models: records, resumption after SIGKILL, errors, refusals."""

import json
import multiprocessing
import os
import random
import signal
from pathlib import Path

import polars as pl
import pytest
import torch

from treespec.experiments.config.schema import Config
from treespec.experiments.errors import PromptError
from treespec.experiments.measure.searched_run import run
from treespec.experiments.records import folder as folder_module
from treespec.experiments.records.rows import (
    SCHEMA_VERSION,
    PromptRow,
    StepRow,
    TreeRow,
    read_lines,
)
from treespec.experiments.run import datastores, preparation
from treespec.experiments.run import unit as unit_module

IDS = ["prompt", "sampling", "method", "order", "tokens", "steps", "accepted", "seed"]


@pytest.fixture(scope="module")
def whole(settings, loaded_pair, tmp_path_factory):
    """The folder of an uninterrupted run. Read only."""
    path = tmp_path_factory.mktemp("whole") / "run"
    config = Config.model_validate(settings)
    return run(config, folder=path, load=lambda models: loaded_pair).folder


def ids(path):
    return pl.read_parquet(path / "prompts.parquet").select(IDS).rows()


def test_records_follow_the_schema(whole):
    prompts = pl.read_parquet(whole / "prompts.parquet")
    steps = pl.read_parquet(whole / "steps.parquet")
    manifest = json.loads((whole / "manifest.json").read_text())
    assert (manifest["together"], manifest["twins"]) == (6, {"generate (twin)": "generate"})
    assert len(prompts) == 2 * 2 * 6
    twin, copied = (prompts.filter(pl.col("method") == m) for m in ("generate (twin)", "generate"))
    assert twin["tokens"].to_list() == copied["tokens"].to_list()
    assert twin["alone_s"].null_count() == len(twin)
    assert copied["alone_s"].null_count() == 0
    greedy = prompts.filter(pl.col("sampling") == "T=0")
    assert greedy["equal_to_plain"].to_list() == [True] * 12
    assert prompts.filter(pl.col("sampling") == "T=1")["equal_to_plain"].null_count() == 12
    for row in prompts.iter_rows(named=True):
        method_steps = steps.filter(
            (pl.col("prompt") == row["prompt"])
            & (pl.col("sampling") == row["sampling"])
            & (pl.col("method") == row["method"])
        )
        assert len(row["tokens"]) == row["new_tokens"] == 6
        assert row["emitted"] == row["accepted"] + row["steps"]
        assert 0 < row["prefill_s"] < row["total_s"]
        assert row["decode_s"] == pytest.approx(row["total_s"] - row["prefill_s"])
        assert method_steps["step"].to_list() == list(range(row["steps"]))
        assert method_steps["step_s"].sum() == pytest.approx(row["decode_s"])
        assert method_steps["kept"].sum() == row["new_tokens"]
        assert method_steps["accepted"].sum() == row["accepted"]
        assert method_steps["path_ranks"].list.len().to_list() == method_steps["accepted"].to_list()
        assert (method_steps["size"] - 1).sum() == row["drafted"]
        if row["verify_s"] is None:
            assert row["method"].startswith(("generate", "assisted"))
            assert method_steps["draft_s"].null_count() == len(method_steps)
            continue
        stages = sum(row[f"{stage}_s"] for stage in ("draft", "verify", "accept", "commit"))
        assert stages < row["decode_s"]
    accepted = dict(prompts.group_by("method").agg(pl.col("accepted").sum()).iter_rows())
    assert accepted["chain 3"] > 0
    assert accepted["expansion 2x2"] > 0
    orders = prompts.sort("prompt", "sampling", "order").group_by("prompt", "sampling")
    assert len({tuple(names) for names in orders.agg("method")["method"]}) > 1


def test_the_manifest_says_what_was_run(whole):
    manifest = json.loads((whole / "manifest.json").read_text())
    assert manifest["schema_version"] == SCHEMA_VERSION
    assert manifest["finished"]
    assert manifest["config"]["max_new_tokens"] == 6
    assert (
        manifest["versions"]["torch"] == torch.__version__.split("+")[0] or "+" in torch.__version__
    )
    assert manifest["models"]["target"]["architecture"] == "LlamaForCausalLM"
    assert manifest["models"]["target"]["parameters"] > 10_000
    assert [s["name"] for s in manifest["samplings"]] == ["T=0", "T=1"]
    tree = manifest["methods"][-1]
    assert tree["parents"] == [-1, 0, 0, 1, 1, 2, 2]
    assert tree["rule"] == {"T=0": "greedy", "T=1": "rrsw"}
    assert manifest["tuning"]["assisted"]["assisted"]["T=1"]["chosen"] == {
        "length": 3,
        "threshold": 0.0,
    }


def test_a_finished_run_is_not_repeated(start):
    plain = {"methods": [{"kind": "plain"}]}
    first = start(plain)
    assert not first.already_finished
    before = (first.folder / "prompts.parquet").stat().st_mtime_ns
    assert start(plain).already_finished
    assert (first.folder / "prompts.parquet").stat().st_mtime_ns == before
    assert not start(plain, fresh=True).already_finished


def test_same_seed_same_ids_whatever_the_methods(start, whole):
    """Coins depend on seed, prompt, sampling and method, not on what else runs."""
    methods = [{"kind": "tree", "shape": {"kind": "expansion", "branching": [2, 2]}}]
    key = ["prompt", "sampling", "tokens"]

    def tokens(path):
        frame = pl.read_parquet(path / "prompts.parquet")
        return frame.filter(pl.col("method") == "expansion 2x2").select(key).rows()

    alone = start({"methods": methods, "name": "alone"}, out="alone").folder
    other = start({"methods": methods, "seed": 8}, out="other").folder
    assert tokens(alone) == tokens(whole) != tokens(other)


def test_tuning_uses_prompts_that_are_not_measured(start):
    methods = [{"kind": "assisted", "lengths": [1, 4], "thresholds": [0.0, 0.4], "tune_prompts": 1}]
    manifest = json.loads((start({"methods": methods}).folder / "manifest.json").read_text())
    tuned = manifest["tuning"]["assisted"]["assisted"]["T=0"]
    assert len(tuned["table"]) == 4
    best = max(tuned["table"], key=lambda row: row["tokens_per_second"])
    assert tuned["chosen"] == {k: best[k] for k in ("length", "threshold")}
    with pytest.raises(PromptError, match="tuning assisted generation needs 3 prompts"):
        start({"methods": [methods[0] | {"tune_prompts": 3}]}, out="greedy")


# -- SIGKILL ------------------------------------------------------------------------------------


def _child(config, path, pair, die):
    """Run in a forked process; `die` may arrange for it to be killed."""
    torch.set_num_threads(1)
    die()
    run(config, folder=path, load=lambda models: pair)


def _fork(config, path, pair, die=lambda: None):
    process = multiprocessing.get_context("fork").Process(
        target=_child, args=(config, path, pair, die)
    )
    process.start()
    return process


def _die_in_write(number, part):
    """Kill this process in the middle of the write with the given number."""
    real, count = folder_module.append_lines, iter(range(1_000))

    def append(path, rows):
        if next(count) < number:
            return real(path, rows)
        data = "".join(row.model_dump_json() + "\n" for row in rows).encode()
        with path.open("ab") as file:
            file.write(data[: int(part * len(data))])
        return os.kill(os.getpid(), signal.SIGKILL)

    folder_module.append_lines = append


@pytest.mark.parametrize(("number", "part"), [(0, 0.5), (1, 1.0), (2, 0.4), (2, 1.0), (9, 0.7)])
def test_killed_in_the_middle_of_a_write(
    settings, loaded_pair, start, whole, tmp_path, number, part
):
    config, path = Config.model_validate(settings), tmp_path / "killed"
    process = _fork(config, path, loaded_pair, lambda: _die_in_write(number, part))
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    _resume_and_compare(start, whole, path)


def test_killed_at_random_times(settings, loaded_pair, start, whole, tmp_path):
    frame = pl.read_parquet(whole / "prompts.parquet")
    lasted = min(3.0, frame["total_s"].sum())
    config, chance = Config.model_validate(settings), random.Random(1)
    path = tmp_path / "killed"
    for _ in range(4):
        process = _fork(config, path, loaded_pair)
        process.join(0.05 + chance.random() * lasted / 2)
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join(60)
    _resume_and_compare(start, whole, path)


class _NoFrame:
    """Stand-in for a table in forked processes: the threads of polars do not survive a fork."""

    def write_parquet(self, file, **more):
        file.write(b"not read: this process dies before it says that the run is finished")


def _die_at_call(number):
    """Kill this process just before the call with the given number among those that change the folder."""
    folder_module.to_frame = lambda rows, kind: _NoFrame()
    count = iter(range(10_000))

    def deadly(real):
        def call(*arguments, **more):
            if next(count) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **more)

        return call

    os.fsync = deadly(os.fsync)
    for name in ("replace", "unlink", "open"):
        setattr(Path, name, deadly(getattr(Path, name)))


SMALL = {"methods": [{"kind": "plain"}], "samplings": [{"temperature": 1}]}


@pytest.mark.parametrize(
    ("fresh", "stride"),
    [
        (False, 5),
        (True, 9),
        pytest.param(False, 1, marks=pytest.mark.slow),
        pytest.param(True, 1, marks=pytest.mark.slow),
    ],
)
def test_killed_before_any_call_that_changes_the_folder(
    settings, loaded_pair, start, tmp_path, fresh, stride
):
    config = Config.model_validate(settings | SMALL)

    def tokens(result):
        rows = read_lines(result.folder / "prompts.jsonl", PromptRow)
        return sorted((*row.unit, row.method, row.seed, *row.tokens) for row in rows)

    expected = tokens(start(SMALL, out="whole"))
    for number in range(0, 200, stride):
        path = tmp_path / f"killed-{number}"
        if fresh:
            start(SMALL | {"seed": 8}, out=path.name)

        def again(path=path):
            return run(config, folder=path, fresh=fresh, load=lambda models: loaded_pair)

        process = multiprocessing.get_context("fork").Process(
            target=lambda number=number, again=again: (_die_at_call(number), again())
        )
        process.start()
        process.join(60)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        assert tokens(again()) == expected
    assert 10 < number < 199, "the calls were not all tried"


def test_a_fresh_start_that_cannot_start_loses_nothing(start):
    before = ids(start(SMALL).folder)
    with pytest.raises(PromptError):
        start(SMALL | {"max_new_tokens": 10_000}, fresh=True)
    assert start(SMALL).already_finished
    assert ids(start(SMALL).folder) == before


@pytest.mark.parametrize("part", ["make_meters", "tune", "_warm_up", "model_data", "new_manifest"])
@pytest.mark.parametrize("kind", [PromptError, RuntimeError, KeyboardInterrupt])
def test_what_fails_before_the_first_unit_loses_nothing(start, monkeypatch, part, kind):
    """The earlier run is deleted last, right before the manifest of the new run is written."""
    folder = start(SMALL).folder
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def fails(*arguments, **more):
        raise kind("no")

    with monkeypatch.context() as patch:
        patch.setattr(preparation, part, fails)
        with pytest.raises(kind):
            start(SMALL | {"seed": 8}, fresh=True)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert start(SMALL).already_finished


def test_a_retry_that_fails_before_the_first_unit_keeps_the_errors(start, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(unit_module, "decode_ours", None)
        folder = start(SMALL).folder
    rows = (folder / "prompts.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "_warm_up", None)
        with pytest.raises(TypeError):
            start(SMALL, retry=True)
    assert (folder / "prompts.jsonl").read_bytes() == rows
    assert not start(SMALL, retry=True).failures


def _resume_and_compare(start, whole, path):
    lines = (path / "prompts.jsonl").read_bytes() if (path / "prompts.jsonl").exists() else b""
    resumed = start(out=path.name).folder
    after = (resumed / "prompts.jsonl").read_bytes()
    methods = 6  # the twin of generate among them
    kept = b"".join(lines.splitlines(keepends=True)[: lines.count(b"\n") // methods * methods])
    assert after.startswith(kept), "a finished prompt was repeated or lost"
    assert ids(resumed) == ids(whole)
    rows = read_lines(resumed / "prompts.jsonl", PromptRow)
    steps = read_lines(resumed / "steps.jsonl", StepRow)
    assert len(rows) == len({(*row.unit, row.method) for row in rows}) == 24
    assert len(steps) == len({(*row.unit, row.method, row.step) for row in steps})
    trees = read_lines(resumed / "trees.jsonl", TreeRow)
    ours = [row for row in steps if row.verify_s is not None]
    assert {(*row.unit, row.method, row.step) for row in trees} == {
        (*row.unit, row.method, row.step) for row in ours
    }
    assert len(trees) == len(ours)
    assert json.loads((resumed / "manifest.json").read_text())["finished"]


def test_every_source_of_a_config_gives_the_ids_of_generate(tmp_path, monkeypatch):
    """The shipped comparison of sources, made small, at temperature 0."""
    from transformers import GenerationConfig

    from treespec.experiments.config.file import load_config
    from treespec.experiments.report.run import load_run
    from treespec.models.load import load_pair

    small = ("models.enlarge=null", "models.dtype=float32", "prompts.count=1", "max_new_tokens=16")
    small += ("meters=[]", "warmup=0", "alone=0", "trees=0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datastores, "installed_code", lambda: [Path(__file__)])
    config = load_config("draft_sources", small)
    pair = load_pair("embedded")
    path = run(config, folder=tmp_path / "run", load=lambda models: pair).folder
    rows = pl.read_parquet(path / "prompts.parquet")
    greedy = GenerationConfig(max_new_tokens=16, do_sample=False, pad_token_id=0)
    (text,) = json.loads((path / "manifest.json").read_text())["prompt_texts"]
    ids = torch.tensor([pair.tokenizer.encode(text)])
    with pair.target.as_transformers() as plain:
        made = plain.generate(ids, generation_config=greedy)[0, ids.shape[1] :]
    assert [row["tokens"] for row in rows.iter_rows(named=True)] == [made.tolist()] * len(rows)
    assert rows.filter(pl.col("method").str.starts_with("lookup"))["drafted"].sum() > 0
    assert rows["equal_to_plain"].to_list() == [True] * len(rows)
    begun = dict(rows.select("method", "state").iter_rows())
    learners = ("suffix_tree", "token_recycling", "lookahead")
    assert begun == {name: "cold" if name.startswith(learners) else None for name in begun}
    (summary,) = load_run(path).summaries
    assert len(summary.rows) == len(config.methods) == 23
    assert all(row.speedup is not None for row in summary.rows)
