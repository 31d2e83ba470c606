"""Tables of a run, read by us and by other tools."""

import json

import polars as pl
import pytest
from run_folders.folders import write_run

from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.rows import (
    SCHEMA_KEY,
    SCHEMA_VERSION,
    PromptRow,
    StepRow,
    TreeRow,
    read_table,
    schema_of,
)

KINDS = {"prompts": PromptRow, "steps": StepRow, "trees": TreeRow}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small run with trees, finished by `RunFolder.finish`."""
    path = write_run(
        tmp_path_factory.mktemp("run") / "run", prompts=3, new_tokens=8, finished=False
    )
    with RunFolder(path) as run:
        tree = {"prompt": 0, "sampling": "T=0", "method": "chain 2", "step": 0, "bonus": 3}
        tree["repeat"] = 0
        tree |= {"parents": [-1, 0], "tokens": [1, 2], "pieces": ["ü", "\n"], "path": [0, 1]}
        run.append([], [], [TreeRow(**tree, bonus_piece="x")])
        run.finish(run.manifest())
    return path


@pytest.mark.parametrize("name", KINDS)
def test_polars_reads_every_table(folder, name):
    frame = pl.read_parquet(folder / f"{name}.parquet")
    assert frame.schema == schema_of(KINDS[name])
    assert len(frame)
    assert read_table(folder / f"{name}.parquet", KINDS[name]).equals(frame)
    assert pl.read_parquet_metadata(folder / f"{name}.parquet")[SCHEMA_KEY] == str(SCHEMA_VERSION)


@pytest.mark.parametrize("name", KINDS)
def test_pandas_reads_every_table(folder, name):
    pandas = pytest.importorskip("pandas")
    frame, ours = (
        pandas.read_parquet(folder / f"{name}.parquet"),
        pl.read_parquet(folder / f"{name}.parquet"),
    )
    assert list(frame.columns) == ours.columns
    assert len(frame) == len(ours)
    if name == "prompts":
        assert frame["new_tokens"].sum() == ours["new_tokens"].sum()
        assert frame["text"].tolist() == ours["text"].to_list()
        assert [list(ids) for ids in frame["tokens"]] == ours["tokens"].to_list()
        assert frame["error"].isna().all()
    if name == "trees":
        assert [list(pieces) for pieces in frame["pieces"]] == [["ü", "\n"]]


def test_a_table_of_another_version_is_refused(folder, tmp_path):
    frame = pl.read_parquet(folder / "prompts.parquet")
    path = tmp_path / "prompts.parquet"
    for version in (str(SCHEMA_VERSION + 1), "1", "2027-beta"):
        frame.write_parquet(path, metadata={SCHEMA_KEY: version})
        with pytest.raises(
            RunFolderError,
            match=rf"{version}.*reads versions 2 to {SCHEMA_VERSION}; .*that wrote it",
        ) as caught:
            read_table(path, PromptRow)
        assert str(path) in str(caught.value)


def test_damaged_tables_are_told(folder, tmp_path):
    path = tmp_path / "prompts.parquet"
    path.write_bytes((folder / "prompts.parquet").read_bytes()[:-30])
    with pytest.raises(RunFolderError, match=r"prompts\.parquet cannot be read"):
        read_table(path, PromptRow)
    frame = pl.read_parquet(folder / "prompts.parquet")
    frame.drop("text").write_parquet(path)
    with pytest.raises(RunFolderError, match="no column 'text'"):
        read_table(path, PromptRow)
    frame.with_columns(pl.col("steps").cast(pl.String)).write_parquet(path)
    with pytest.raises(RunFolderError, match="column 'steps': String, but must be Int64"):
        read_table(path, PromptRow)


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
def test_a_folder_of_another_version_is_not_gone_on_with(folder, tmp_path, version):
    path = write_run(tmp_path / "run", prompts=2, finished=False, schema_version=version)
    manifest = json.loads((path / "manifest.json").read_text())
    versions = f"version {version}, but .*{SCHEMA_VERSION}"
    with RunFolder(path) as run, pytest.raises(RunFolderError, match=versions):
        run.manifest()
    assert json.loads((path / "manifest.json").read_text()) == manifest


def test_tables_of_version_2_are_read(folder, tmp_path):
    """Version 2 had no times of steps or of methods alone, and only steps of our own loop."""
    new = {"prompts": ["alone_s", "state"], "steps": ["at_s", "step_s"]}
    for name, kind in (("prompts", PromptRow), ("steps", StepRow)):
        frame = pl.read_parquet(folder / f"{name}.parquet").drop(new[name])
        path = tmp_path / f"{name}.parquet"
        frame.write_parquet(path, metadata={SCHEMA_KEY: "2"})
        read = read_table(path, kind)
        assert read.columns == list(schema_of(kind))
        assert all(read[column].null_count() == len(read) for column in new[name])
