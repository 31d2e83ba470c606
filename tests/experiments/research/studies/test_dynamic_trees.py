"""The study of dynamic trees, on made-up runs that have only some of its methods."""

import pytest
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.report.run import load_run
from treespec.experiments.research.studies.dynamic_trees import figures_of, said
from treespec.tree import TreeShape


def method(name, *rates, shape=None):
    return SyntheticMethod(name, "tree", shape or TreeShape.kary(2, 2), rates or (0.6, 0.2))


STATIC = [method("optimal 16 for T=0"), method("optimal 16 (deterministic) for T=0")]
CHAIN = method("chain 4", 0.6, shape=TreeShape.chain(4))
GROWN = method("OPT-Tree 16")
CALIBRATED = method("OPT-Tree 16, calibrated for T=0", 0.7, 0.2)
PLANTED = method("OPT-Tree 16, taken for too sure", 0.5, 0.2)


@pytest.mark.parametrize("more", [[CALIBRATED, PLANTED], [CALIBRATED], [PLANTED], []])
def test_what_is_not_in_the_run_is_not_said(more, tmp_path):
    folder = write_run(
        tmp_path / "run", [*STATIC, CHAIN, GROWN, *more], prompts=6, temperatures=(0.0,)
    )
    figures = figures_of(load_run(folder).measurements["T=0"])
    assert len(figures["duels"]) == 3 + (PLANTED in more)
    text = said(figures)
    assert ("calibrated for T=0 over none" in text) == (CALIBRATED in more)
    assert ("taken for too sure over none" in text) == (PLANTED in more)
