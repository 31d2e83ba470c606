"""Loading a run: its methods and prompts, and the errors for folders that are not in order."""

import json
from dataclasses import replace

import pytest
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.errors import NoFinishedPrompt, RunFolderError
from treespec.experiments.report.equality import equality
from treespec.experiments.report.figure_style import GROUP_COLOURS, GROUP_MARKERS, GROUP_NAMES
from treespec.experiments.report.run import Run, load_run
from treespec.tree import TreeShape

PLAIN = SyntheticMethod("plain", "plain")
CHAIN = SyntheticMethod("chain 3", "tree", TreeShape.chain(3), (0.7,), (4.0, 24.0, 1.0, 1.0))
SEARCHED = SyntheticMethod("best for T=0: plain decoding", "plain", stage_ms=(0.0, 10.0, 0.1, 0.1))


def edited(folder, **changes):
    """Overwrite values of the manifest."""
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def with_config(folder, **changes):
    path = folder / "manifest.json"
    edited(folder, config=json.loads(path.read_text())["config"] | changes)


def test_plain_decoding_that_a_search_chose_is_no_baseline(tmp_path):
    folder = write_run(tmp_path / "run", [PLAIN, CHAIN, SEARCHED], temperatures=[0.0])
    with_config(folder, methods=[{"kind": "plain"}, {"kind": "tree"}, {"kind": "tree"}])
    run = load_run(folder)
    groups = {m.name: m.group for m in run.methods}
    assert groups == {"plain": "plain", "chain 3": "chain", SEARCHED.name: "undrafted"}
    assert set(groups.values()) < set(GROUP_COLOURS)
    assert list(GROUP_COLOURS) == list(GROUP_MARKERS) == list(GROUP_NAMES)
    assert [m.draft_tokens for m in run.methods] == [0, 3, 0]
    (summary,) = run.summaries
    assert summary.baseline == "plain"  # although the other is faster
    assert len(run.comparisons["T=0"]) == 1
    assert SEARCHED.name not in " ".join(run.verdicts["T=0"])


def test_a_method_of_the_config_is_a_baseline_whatever_its_name(tmp_path):
    folder = write_run(tmp_path / "run", [PLAIN, SEARCHED, CHAIN], temperatures=[0.0])
    named = {"kind": "plain", "name": SEARCHED.name}
    with_config(folder, methods=[{"kind": "plain"}, named, {"kind": "tree"}])
    assert load_run(folder).summaries[0].baseline == SEARCHED.name


def test_a_damaged_table_of_a_finished_run_names_the_log(tmp_path):
    folder = write_run(tmp_path / "run", [PLAIN, CHAIN])
    rows = load_run(folder).prompts
    (folder / "prompts.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunFolderError, match=r"remove it to read the same rows from prompts.jsonl"):
        load_run(folder)
    (folder / "prompts.parquet").unlink()
    assert load_run(folder).prompts.equals(rows)


def test_a_run_of_errors_alone_has_a_name_of_its_own(tmp_path):
    failing = replace(PLAIN, errors=frozenset(range(12)))
    with pytest.raises(NoFinishedPrompt, match="all 24 rows hold an error"):
        load_run(write_run(tmp_path / "run", [failing]))


def test_a_run_without_what_its_search_measured_is_read(tmp_path):
    folder = write_run(tmp_path / "run", [PLAIN, CHAIN])
    with_config(folder, search={"width": 4})
    assert load_run(folder).predictions == []


def test_repeats_of_a_prompt_are_one_prompt_in_equality(tmp_path):
    import polars as pl

    generate = SyntheticMethod("generate", "generate")
    parted = replace(CHAIN, diverges={2: 0.01})
    run = load_run(write_run(tmp_path / "run", [generate, parted], prompts=4, temperatures=[0.0]))
    worse = pl.when(pl.col("equal_to_plain").not_()).then(9.0).otherwise(None)
    again = run.prompts.with_columns(
        pl.lit(1, dtype=pl.Int64).alias("repeat"), worse.alias("divergence_margin")
    )
    twice = Run(run.folder, run.manifest, pl.concat([run.prompts, again]), run.steps)
    found = equality(twice, "T=0", "chain 3")
    assert (found.equal, found.compared) == (3, 4)
    assert [d.margin for d in found.bugs] == [9.0]  # the repeat that rounding does not explain
