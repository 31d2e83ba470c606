"""Records of runs as a source of acceptance rates."""

import json

import pytest
from run_folders.folders import SyntheticMethod, write_run

from treespec import TreeShape
from treespec.experiments.errors import ConfigError, RunFolderError
from treespec.experiments.report.run import load_run
from treespec.experiments.search_then_run.estimate import counts_from_run
from treespec.search import AcceptanceEstimate, estimate_acceptance

pytestmark = pytest.mark.filterwarnings("ignore::treespec.search.errors.SmallSample")
RATES = (0.5, 0.2, 0.1)
TREE = SyntheticMethod("tree", "tree", TreeShape.expansion([3, 2, 1]), RATES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    methods = [SyntheticMethod("plain", "plain"), TREE]
    return write_run(
        tmp_path_factory.mktemp("run") / "r", methods, prompts=20, new_tokens=100, seed=2
    )


def test_the_rates_of_a_run_come_back(folder):
    records = counts_from_run(folder, "tree", "T=1")
    assert len(records.texts) == 20
    found = estimate_acceptance(records, interval="bootstrap")
    assert (found.low < RATES).all()
    assert (found.high > RATES).all()
    assert found.trials[0] > 500
    steps = load_run(folder).steps
    mine = [
        row
        for row in steps.iter_rows(named=True)
        if row["sampling"] == "T=1" and row["method"] == "tree"
    ]
    assert found.hits.sum() == sum(len(row["path_ranks"]) for row in mine)
    assert sum(map(len, records.texts)) == len(mine)
    assert (found.law, found.rule) == (records.law, records.rule)


def test_depths_are_those_of_the_tree(folder):
    found = estimate_acceptance(counts_from_run(folder, "tree", "T=0"), by="depth")
    assert found.rates.shape == (3, 3)
    assert (found.trials == 0).tolist() == [[False] * 3, [False, False, True], [False, True, True]]


def test_what_a_run_does_not_have_is_refused(folder, tmp_path):
    for method, sampling, words in (
        ("plain", "T=1", "methods of .* with a fixed tree are: 'tree'"),
        ("other", "T=1", "method = 'other'"),
        ("tree", "T=2", "sampling = 'T=2'"),
    ):
        with pytest.raises(ConfigError, match=words):
            counts_from_run(folder, method, sampling)
    with pytest.raises(RunFolderError, match="is not a run folder"):
        counts_from_run(tmp_path, "tree", "T=1")
    failed = SyntheticMethod("tree", "tree", TREE.shape, RATES, errors=frozenset({0}))
    plain = SyntheticMethod("plain", "plain")
    empty = write_run(tmp_path / "e", [plain, failed], prompts=1, new_tokens=5)
    with pytest.raises(ConfigError, match="has no step of 'tree'"):
        counts_from_run(empty, "tree", "T=1")


def test_ranks_that_the_tree_does_not_have_are_refused(tmp_path):
    folder = write_run(tmp_path / "r", [TREE], prompts=1, new_tokens=50)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["methods"][0]["parents"] = [-1, 0]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunFolderError, match="which its tree does not have"):
        counts_from_run(folder, "tree", "T=1")


def test_records_know_their_settings_and_their_run(folder):
    found = estimate_acceptance(counts_from_run(folder, "tree", "T=1"))
    assert found.sampling == {"temperature": 1.0, "top_k": None, "top_p": None, "min_p": None}
    assert (found.about["method"], found.about["sampling"]) == ("tree", "T=1")
    assert found.about["models"]["draft"]["parameters"] == 1_100_000
    assert AcceptanceEstimate.from_json(found.to_json()).about == found.about
