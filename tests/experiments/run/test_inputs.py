"""What can be checked of an experiment's prompts before weights are read."""

import pytest

from treespec import plugins
from treespec.draft import PromptLookup
from treespec.experiments.config.build import build
from treespec.experiments.config.file import validated
from treespec.experiments.run.inputs import read_by, require_fits
from treespec.experiments.run.prompts import read_prompts
from treespec.models.outline import outline_pair
from treespec.plugins import Law


class ReadsItsTarget(PromptLookup):
    """Lookup that asks the loaded target for its device."""

    def __init__(self, wanted, settings):
        self.device = wanted.pair.target.model.device
        super().__init__(wanted.tree.depth)


@pytest.fixture
def plugged():
    before = plugins.kept()
    plugins.drafter("reads_target", laws={Law.DETERMINISTIC}, trees="budget")(ReadsItsTarget)
    yield
    plugins.restore(before)


@pytest.mark.usefixtures("plugged")
@pytest.mark.parametrize(
    "draft",
    [
        {"source": "reads_target"},
        {"source": "merge", "sources": [{"source": "reads_target"}, {"source": "lookup"}],
         "budgets": {"reads_target": 3, "lookup": 3}},
    ],
)  # fmt: skip
def test_plug_ins_are_not_made_of_models_that_are_not_loaded(draft):
    config = validated("test.yaml", {
        "name": "inputs", "models": {"draft": "none"}, "max_new_tokens": 8,
        "prompts": {"kind": "embedded", "count": 1}, "samplings": [{"temperature": 0}],
        "methods": [{"kind": "tree", "draft": draft,
                     "shape": {"kind": "budget", "depth": 3, "size": 8, "branching": 2}}],
    })  # fmt: skip
    outline = outline_pair("embedded", "none")
    prompts = read_by(outline, read_prompts(config.prompts)[:1], config.prompts)
    require_fits(build(config), outline, prompts)
