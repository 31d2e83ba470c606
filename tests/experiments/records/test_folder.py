import json
from pathlib import Path

import polars as pl
import pytest
from run_folders.rows import prompt_row, step_row

from treespec import experiments
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.changes import differences
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.manifest import config_data, config_hash
from treespec.experiments.records.rows import (
    PromptRow,
    StepRow,
    TreeRow,
    append_lines,
    read_lines,
)


def config(**changes):
    data = {
        "name": "x",
        "prompts": {"kind": "embedded", "count": 2},
        "max_new_tokens": 4,
        "samplings": [{"temperature": 0}],
        "methods": [{"kind": "plain"}, {"kind": "generate"}],
    }
    return Config.model_validate(data | changes)


def tree_row(prompt=0, method="plain", step=0):
    row = {"prompt": prompt, "sampling": "T=0", "method": method, "step": step}
    row |= {"repeat": 0, "parents": [-1], "tokens": [5], "pieces": ["a"], "path": [0], "bonus": 8}
    return TreeRow(**row, bonus_piece=" ü")


def started(path, config):
    with RunFolder(path) as folder:
        data = {"config": config_data(config), "config_hash": config_hash(config), "finished": None}
        data |= {"methods": [], "sessions": [], "together": 1, "tuning": {}}
        data |= {"prompts_hash": "", "git_hash": None}
        folder.keep_manifest(data | {"samplings": [{"name": "T=0"}]})
    return path


METHODS = ("plain", "generate")


def test_a_torn_last_line_is_dropped_at_any_byte(tmp_path):
    path = tmp_path / "p.jsonl"
    append_lines(path, [prompt_row(0)])
    content = path.read_bytes()
    for cut in range(0, len(content), 7):
        path.write_bytes(content + content[:cut])
        assert len(read_lines(path, PromptRow)) == 1
    path.write_bytes(content + content[:-1])
    assert len(read_lines(path, PromptRow)) == 1


@pytest.mark.parametrize(
    ("bad", "part"),
    [
        (b"{oops", "JSON"),
        (b"", "JSON"),
        (b'{"prompt": 1}', "column sampling"),
        (b"\x00\x00", "JSON"),
    ],
)
def test_a_corrupt_line_names_file_and_number(tmp_path, bad, part):
    path = tmp_path / "p.jsonl"
    append_lines(path, [prompt_row(0)])
    with path.open("ab") as file:
        file.write(bad + b"\n")
    append_lines(path, [prompt_row(1)])
    before = path.read_bytes()
    with pytest.raises(RunFolderError, match=r"p\.jsonl, line 2: not a valid row") as caught:
        read_lines(path, PromptRow)
    assert part in str(caught.value)
    assert path.read_bytes() == before


def test_recovery_keeps_finished_units_only(tmp_path):
    path = started(tmp_path / "run", config())
    with RunFolder(path) as folder:
        for prompt in (0, 1):
            rows = [prompt_row(prompt, method, steps=2) for method in METHODS]
            folder.append(rows, [step_row(prompt, m, step=i) for m in METHODS for i in range(2)])
        folder.append([prompt_row(2, "plain")], [step_row(2)])
        append_lines(path / "steps.jsonl", [step_row(3)])
        with (path / "prompts.jsonl").open("a") as file:
            file.write('{"prompt": 3, "samp')
        for _ in range(2):
            assert folder.recover(METHODS) == {(0, "T=0", 0), (1, "T=0", 0)}
            rows = read_lines(path / "prompts.jsonl", PromptRow)
            steps = read_lines(path / "steps.jsonl", StepRow)
            assert {row.prompt for row in rows} == {row.prompt for row in steps} == {0, 1}
            assert (len(rows), len(steps)) == (4, 8)


@pytest.mark.parametrize("log", ["steps", "trees"])
@pytest.mark.parametrize("damage", ["lost", "cut", "doubled"])
def test_a_unit_that_has_lost_a_step_is_not_finished(tmp_path, log, damage):
    path = started(tmp_path / "run", config())
    with RunFolder(path) as folder:
        for prompt in (0, 1):
            rows = [prompt_row(prompt, method, steps=2) for method in METHODS]
            steps = [step_row(prompt, m, step=i) for m in METHODS for i in range(2)]
            folder.append(rows, steps, [tree_row(prompt, step=i) for i in range(2)])
        assert folder.recover(METHODS) == {(0, "T=0", 0), (1, "T=0", 0)}
        file = path / f"{log}.jsonl"
        lines = file.read_bytes().splitlines(keepends=True)
        last = {"lost": b"", "cut": lines[-1][:30], "doubled": lines[-1] * 2}[damage]
        file.write_bytes(b"".join(lines[:-1]) + last)
        assert folder.recover(METHODS) == {(0, "T=0", 0)}
        assert all(row.prompt == 0 for row in read_lines(path / "steps.jsonl", StepRow))


def test_failed_units_can_be_dropped(tmp_path):
    path = started(tmp_path / "run", config())
    with RunFolder(path) as folder:
        rows = [prompt_row(0, "plain"), prompt_row(0, "generate", error="boom")]
        folder.append(rows, [step_row(0)])
        assert folder.recover(METHODS) == {(0, "T=0", 0)}
        assert [row.error for row in folder.failures()] == ["boom"]
        assert folder.recover(METHODS, drop_errors=True) == set()
        assert folder.failures() == []


def test_a_row_that_stands_twice_is_an_error(tmp_path):
    path = started(tmp_path / "run", config())
    with RunFolder(path) as folder:
        folder.append([prompt_row(0), prompt_row(0)], [])
        with pytest.raises(RunFolderError, match="line 2: prompt 0, T=0, plain appears twice"):
            folder.recover(METHODS)


def test_another_config_is_refused_with_what_differs(tmp_path):
    path = started(tmp_path / "run", config())
    with RunFolder(path) as folder:
        folder.require_same(config())
        folder.require_same(config(output="elsewhere"))
        other = config(max_new_tokens=5, prompts={"kind": "embedded", "count": 3})
        with pytest.raises(RunFolderError) as caught:
            folder.require_same(other)
    text = str(caught.value)
    assert "max_new_tokens: 4 -> 5" in text
    assert "prompts.count: 2 -> 3" in text
    assert "--out" in text
    assert "--fresh" in text
    assert len(text.splitlines()) == 3


def test_differences_in_lists():
    assert differences({"a": [1, 2]}, {"a": [1, 3]}) == ["a[1]: 2 -> 3"]
    assert differences({"a": [1]}, {"a": [1, 3]}) == ["a: 1 entries -> 2 entries"]


def test_one_writer_at_a_time(tmp_path):
    path = started(tmp_path / "run", config())
    with RunFolder(path), pytest.raises(RunFolderError, match="another process"):
        RunFolder(path).__enter__()
    with RunFolder(path):
        pass


def test_clearing_deletes_what_a_run_writes_only(tmp_path):
    path = started(tmp_path / "run", config())
    (path / "notes.txt").write_text("mine")
    with RunFolder(path) as folder:
        folder.append([prompt_row(0)], [step_row(0)])
        folder.keep(path / "figures" / "speedup.svg", "<svg/>")
        folder.clear()
    assert {entry.name for entry in path.iterdir()} == {
        "notes.txt",
        ".lock",
        "manifest.json",
    }


def test_finishing_sorts_and_types_the_tables(tmp_path):
    path = started(tmp_path / "run", config())
    with RunFolder(path) as folder:
        for prompt in (1, 0):
            rows = [prompt_row(prompt, m, order=i) for i, m in enumerate(METHODS)]
            folder.append(rows, [step_row(prompt, step=i) for i in (1, 0)])
        folder.finish(folder.manifest())
        assert folder.manifest()["finished"]
    prompts, steps = (pl.read_parquet(path / f"{name}.parquet") for name in ("prompts", "steps"))
    assert prompts["prompt"].to_list() == [0, 0, 1, 1]
    assert prompts["order"].to_list() == [0, 1, 0, 1]
    assert steps["step"].to_list() == [0, 1, 0, 1]
    assert prompts.columns == list(PromptRow.model_fields)
    assert prompts.schema["divergence_margin"] == pl.Float64
    assert prompts.schema["tokens"] == pl.List(pl.Int64)
    assert prompts.schema["equal_to_plain"] == pl.Boolean
    assert prompts.schema["error"] == pl.String
    assert steps.schema["path_ranks"] == pl.List(pl.Int64)


def test_the_schema_document_names_every_column():
    text = (Path(experiments.__file__).parent / "SCHEMA.md").read_text()
    for name in {**PromptRow.model_fields, **StepRow.model_fields, **TreeRow.model_fields}:
        assert name in text, name


def test_a_config_that_has_gained_keys_is_the_same(tmp_path):
    """A run that an older version started can be resumed: keys that it did not know have their defaults."""
    path = started(tmp_path / "run", config())
    manifest = json.loads((path / "manifest.json").read_text())
    for key in ("trees", "repeats", "meters", "tracker"):
        del manifest["config"][key]
    (path / "manifest.json").write_text(json.dumps(manifest | {"config_hash": "of version 1"}))
    with RunFolder(path) as folder:
        folder.require_same(config())
        folder.require_same(config(tracker="wandb"))
        with pytest.raises(RunFolderError, match="max_new_tokens: 4 -> 5"):
            folder.require_same(config(max_new_tokens=5))
        with pytest.raises(RunFolderError, match="repeats: null -> 2"):
            folder.require_same(config(repeats=2))


def test_a_run_of_before_models_were_enlarged_goes_on(tmp_path):
    """Its config has the old key `models.grow`, and its hash is computed with it."""
    path = started(tmp_path / "run", config(models={"enlarge": "50M"}))
    manifest = json.loads((path / "manifest.json").read_text())
    models = manifest["config"]["models"]
    models["grow"] = models.pop("enlarge")
    (path / "manifest.json").write_text(json.dumps(manifest | {"config_hash": "of before"}))
    with RunFolder(path) as folder:
        assert folder.manifest()["config"]["models"]["enlarge"] == "50M"
        folder.require_same(config(models={"enlarge": "50M"}))
        with pytest.raises(RunFolderError, match=r'models\.enlarge: "50M" -> "60M"'):
            folder.require_same(config(models={"enlarge": "60M"}))
