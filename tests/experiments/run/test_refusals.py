"""A failure in a run leaves its error; a run that cannot start is refused and loses nothing."""

import json

import polars as pl
import pytest
import torch

from treespec.experiments.errors import PromptError, RunFolderError


@pytest.mark.parametrize("taken", [0, 2])
@pytest.mark.parametrize("failure", [ArithmeticError("boom"), SystemExit("boom")], ids=repr)
def test_a_method_that_fails_leaves_its_error_and_the_others_run(
    start, monkeypatch, failure, taken
):
    """At its first step, or in the middle of its text."""
    from treespec.experiments.run import unit

    real = unit.decode_ours

    def fragile(pair, method, sampling, ids, **arguments):
        for number, step in enumerate(real(pair, method, sampling, ids, **arguments)):
            if method.name == "chain 1" and sampling == "T=0" and number == taken:
                raise failure
            yield step

    chain = {"kind": "tree", "shape": {"kind": "chain", "depth": 1}}
    changes = {"methods": [{"kind": "plain"}, chain]}
    monkeypatch.setattr(unit, "decode_ours", fragile)
    result = start(changes)
    said = {ArithmeticError: "an error inside the decoding: boom"}
    wanted = said.get(type(failure), "the decoding ends the program (sys.exit)")
    assert [row.error for row in result.failures] == [wanted] * 2
    assert len(pl.read_parquet(result.folder / "prompts.parquet")) == 12
    steps = pl.read_parquet(result.folder / "steps.parquet").filter(pl.col("sampling") == "T=0")
    assert set(steps["method"]) == {"plain", "plain (twin)"}
    assert json.loads((result.folder / "manifest.json").read_text())["errors"] == 2
    monkeypatch.undo()
    assert len(start(changes).failures) == 2
    assert not start(changes, retry=True).failures
    assert len(pl.read_parquet(result.folder / "prompts.parquet")) == 12


def test_non_finite_logits_are_an_error_that_names_step_and_node(start, loaded_pair, monkeypatch):
    weight = loaded_pair.target.model.lm_head.weight
    before = weight.detach().clone()
    try:
        with torch.no_grad():
            weight[3] = torch.nan
        result = start({"methods": [{"kind": "plain"}], "samplings": [{"temperature": 1}]})
    finally:
        with torch.no_grad():
            weight.copy_(before)
    assert len(result.failures) == 2
    assert "NaN or infinite logits at step 0, node 0" in result.failures[0].error
    assert all(row.tokens == [] for row in result.failures)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"max_new_tokens": 200}, "context is 128"),
        (
            {
                "max_new_tokens": 100,
                "methods": [{"kind": "tree", "shape": {"kind": "chain", "depth": 60}}],
            },
            "method 'chain 60'",
        ),
        (
            {"methods": [{"kind": "tree", "shape": {"kind": "expansion", "branching": [300]}}]},
            "300 distinct children of one node",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(start, tmp_path, changes, part):
    with pytest.raises(PromptError) as caught:
        start(changes)
    assert part in str(caught.value)
    assert (
        not (tmp_path / "run" / "prompts.jsonl").exists()
        or not (tmp_path / "run" / "prompts.jsonl").read_bytes()
    )


def test_a_prompt_longer_than_the_context(start, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("walk the tree " * 200)
    with pytest.raises(PromptError, match=r"long\.txt.* the prompt has .* context is 128"):
        start({"prompts": {"kind": "text", "path": str(path)}})


def test_another_config_loses_nothing(start):
    plain = {"methods": [{"kind": "plain"}]}
    folder = start(plain).folder
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    with pytest.raises(RunFolderError, match="max_new_tokens: 6 -> 9"):
        start(plain | {"max_new_tokens": 9})
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before


def test_prompts_that_changed_since_are_refused(start, tmp_path):
    path = tmp_path / "p.txt"
    path.write_text("walk the tree")
    changes = {
        "methods": [{"kind": "plain"}],
        "prompts": {"kind": "text", "path": str(path)},
    }
    folder = start(changes).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"finished": None}))
    path.write_text("walk another tree")
    with pytest.raises(RunFolderError, match="other prompts"):
        start(changes)


def renamed(folder, **changes):
    """A run as another version might have made it, with another name for a method."""
    for name in ("manifest.json", "prompts.jsonl", "steps.jsonl", "trees.jsonl"):
        text = (folder / name).read_text().replace('"plain"', '"best: plain decoding"')
        (folder / name).write_text(
            text.replace('"kind": "best: plain decoding"', '"kind": "plain"')
        )
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["config"]["methods"] = [{"kind": "plain", "name": None}]
    (folder / "manifest.json").write_text(json.dumps(manifest | changes))
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix == ".jsonl"}


def test_a_finished_run_of_a_version_that_named_methods_otherwise_loses_nothing(start):
    plain = {"methods": [{"kind": "plain"}]}
    folder = start(plain).folder
    before = renamed(folder)
    assert start(plain).already_finished
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix == ".jsonl"} == before


def test_a_run_is_not_finished_with_other_methods_than_it_was_started_with(start):
    plain = {"methods": [{"kind": "plain"}]}
    folder = start(plain).folder
    before = renamed(folder, finished=None)
    with pytest.raises(RunFolderError, match=r"other methods .*methods\[0\].name.*--fresh"):
        start(plain)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix == ".jsonl"} == before


def test_what_is_refused_is_not_retried_away(start, monkeypatch):
    """Rows with an error are dropped only once it is certain that their units can run again."""
    from treespec.experiments.run import unit

    methods = {"methods": [{"kind": "plain"}, {"kind": "generate"}]}
    with monkeypatch.context() as patch:
        patch.setattr(unit, "generate_plain", lambda *arguments, **more: 1 / 0)
        folder = start(methods).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    other = manifest | {"prompts_hash": "of others"}
    (folder / "manifest.json").write_text(json.dumps(other))
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix == ".jsonl"}
    with pytest.raises(RunFolderError, match="other prompts"):
        start(methods, retry=True)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix == ".jsonl"} == before
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert not start(methods, retry=True).failures


def test_a_run_is_not_finished_with_another_rule_than_it_was_started_with(start):
    changes = {"methods": [{"kind": "tree", "shape": {"kind": "kary", "branching": 2, "depth": 2}}]}
    folder = start(changes).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["methods"][0]["rule"]["T=1"] = "kseq"
    (folder / "manifest.json").write_text(json.dumps(manifest | {"finished": None}))
    with pytest.raises(RunFolderError, match=r"methods\[0\]\.rule\.T=1: \"kseq\" -> \"rrsw\""):
        start(changes)
