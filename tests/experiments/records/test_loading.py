"""How the methods of a run are named in tables and figures."""

import json

import pytest
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.report.figures import speedup_figure
from treespec.experiments.report.run import load_run
from treespec.experiments.report.tables import report_tables, table_csv
from treespec.tree import TreeShape

SETS = [[f"attention.{i}" for i in range(7)], [f"mlp.{i}" for i in range(7)], ["mlp.0"]]


def run_of(folder, sets):
    drafts = [{"source": "layer_skip", "skip": skip, "file": None} for skip in sets]
    drafts.append({"source": "retrieval", "datastore": "/data/of/mine/python.datastore"})
    names = [f"layer_skip skip={tuple(skip)} chain 3" for skip in sets]
    names.append(f"retrieval datastore={drafts[-1]['datastore']} chain 3")
    plain = [SyntheticMethod("generate", "generate"), SyntheticMethod("plain", "plain")]
    ours = [SyntheticMethod(name, "tree", TreeShape.chain(3), (0.5,)) for name in names]
    write_run(folder, [*plain, *ours], temperatures=[0.0], jitter=0.05, spread=0.1)
    manifest = json.loads((folder / "manifest.json").read_text())
    for described, draft in zip(manifest["methods"][2:], drafts, strict=True):
        described["draft"] = draft
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return load_run(folder), names


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("labels") / "run", SETS[1:])


def test_lists_are_counted_and_files_lose_their_folders(loaded):
    run, names = loaded
    assert [m.name for m in run.methods[2:]] == names
    assert [m.label for m in run.methods] == [
        "generate", "plain", "layer_skip (7 sublayers) chain 3", "layer_skip (1 sublayer) chain 3",
        "retrieval datastore=python.datastore chain 3",
    ]  # fmt: skip


def test_tables_sentences_and_figures_show_labels(loaded):
    run, names = loaded
    texts = [table_csv(table) for table in report_tables(run).values()]
    texts += [line for lines in run.verdicts.values() for line in lines]
    texts += [label.get_text() for label in speedup_figure(run.summaries).axes[0].get_yticklabels()]
    assert sum("(7 sublayers)" in " ".join(text.split()) for text in texts) > 4
    assert not [text for text in texts for name in names if name in text]


def test_methods_that_would_look_alike_keep_their_names(tmp_path):
    run, names = run_of(tmp_path / "run", SETS[:2])
    assert [m.label for m in run.methods[2:4]] == names[:2]
