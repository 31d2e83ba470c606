"""The choice of a search compared with the fastest method of the run, chosen without bias."""

from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.report.measurements import measure
from treespec.experiments.report.prediction import chosen
from treespec.experiments.report.run import load_run
from treespec.tree import TreeShape


def test_the_fastest_is_also_picked_on_other_prompts_than_it_is_measured_on(tmp_path):
    """Among many equal methods one is the fastest by luck, and makes the choice look slow."""
    names = ["best for T=0", *(f"equal {i}" for i in range(12))]
    same = [SyntheticMethod(name, "tree", TreeShape.chain(3), (0.7,)) for name in names]
    lucky, fair = [], []
    for seed in range(8):
        folder = write_run(
            tmp_path / str(seed), same, prompts=16, temperatures=[0.0], jitter=0.1, seed=seed
        )
        run = load_run(folder)
        run.manifest["config"]["methods"] = [{"kind": "tree", "shape": {"kind": "best"}}]
        choice = chosen(run, measure(run, "T=0"))
        assert choice is not None
        assert choice.method == "best for T=0"
        assert choice.fair is not None
        lucky.append(choice.over.estimate)
        fair.append(choice.fair.ratio.estimate)
    assert max(lucky) <= 1
    assert sum(lucky) / 8 < 0.95
    assert abs(sum(fair) / 8 - 1) < 0.05
