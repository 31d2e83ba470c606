"""What is saved of a study, and the tables of equal budgets."""

import json

import pytest
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.plain_data import plain_data
from treespec.experiments.report.run import load_run
from treespec.experiments.research.studies.studies import study_of_run
from treespec.tree import TreeShape

STAGES = (1.0, 10.0, 0.1, 0.1)
METHODS = (
    SyntheticMethod("plain", "plain"),
    SyntheticMethod("chain 6", "tree", TreeShape.chain(6), (0.6, 0.2), STAGES),
    SyntheticMethod("2-ary 2", "tree", TreeShape.kary(2, 2), (0.6, 0.2), STAGES),
)


def test_a_study_keeps_what_its_run_says(tmp_path):
    folder = write_run(tmp_path / "run", METHODS, prompts=8, temperatures=(0.0,), jitter=0.1)
    run = load_run(folder)
    kept = json.loads(json.dumps(plain_data(study_of_run(run))))
    assert kept["git_hash"] == run.manifest["git_hash"]
    assert kept["config"] == run.manifest["config"]
    (setting,), (summary,) = kept["figures"]["samplings"], run.summaries
    speeds = {row["method"]: row["tokens_per_second"]["estimate"] for row in setting["methods"]}
    assert speeds == {r.method.name: r.tokens_per_second.estimate for r in summary.rows}
    assert len(kept["figures"]["budgets"]) == 2


def test_a_run_that_is_not_finished_is_no_study(tmp_path):
    with pytest.raises(RunFolderError, match="not finished"):
        study_of_run(load_run(write_run(tmp_path / "run", METHODS, finished=False)))
