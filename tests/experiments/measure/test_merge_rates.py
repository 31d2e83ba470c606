"""Rates of merges, measured with each source alone under each setting."""

import pytest
import torch

from treespec import TorchCoins, decode
from treespec.draft import acceptance_rates
from treespec.experiments.config.build import build
from treespec.experiments.config.schema import Config
from treespec.experiments.measure import merge_rates as module
from treespec.experiments.run.unit import seed_of
from treespec.files import parse_yaml
from treespec.target import make_target

BUDGET = {"kind": "budget", "depth": 3, "size": 8, "branching": 2}
MERGE = {
    "source": "merge", "sources": [{"source": "model"}, {"source": "lookup"}], "rates": [[[0.5]], [[0.5]]]
}  # fmt: skip


@pytest.fixture
def config():
    return Config.model_validate({
        "name": "merge",
        "prompts": {"kind": "embedded", "count": 2, "tokens": 24},
        "max_new_tokens": 8,
        "samplings": [{"temperature": 0}, {"temperature": 1}],
        "methods": [{"kind": "tree", "draft": MERGE, "shape": BUDGET, "name": "both"}],
    })  # fmt: skip


def test_rates_are_those_of_each_source_alone_on_other_texts(
    config, loaded_pair, monkeypatch, capsys
):
    monkeypatch.setattr(module, "FEWEST_TRIES", 1)
    monkeypatch.setattr(module, "load_models", lambda models: loaded_pair)
    monkeypatch.setattr(module, "load_config", lambda *names: config)
    found = module.measured(config)["both"]
    assert set(found) == {"T=0", "T=1"}
    model, lookup = found["T=1"]
    assert found["T=0"][0] != model  # rates depend on the temperature
    assert [len(row) for row in model] == [4, 3, 2]
    assert max(map(len, lookup)) <= 2
    # Once more by hand: the texts begin where those of the run end.
    method = module.alone(config.methods[0], config.methods[0].draft.sources[1])
    (built,) = build(config.model_copy(update={"methods": (method,)})).methods
    later = config.prompts.model_copy(update={"start": 24 + 8})
    raw = module.read_prompts(later)[:2]
    texts = [prompt.ids for prompt in module.read_by(loaded_pair, raw, later)]
    choice = built.choices["T=1"]
    steps = [
        step
        for i, text in enumerate(texts)
        for step in decode(
            make_target(loaded_pair.target), built.drafter(loaded_pair, "T=1"), choice.rule,
            torch.tensor(text), sampling=choice.sampling, coins=TorchCoins(seed_of(0, "rates", i)),
            max_new_tokens=8,
        )
    ]  # fmt: skip
    assert acceptance_rates(steps) == lookup
    # What is printed is what a config takes.
    module.main("merge")
    printed = parse_yaml(capsys.readouterr().out.split(":\n", 1)[1])
    again = build(config.model_copy(update={"methods": (with_rates(config, printed["rates"]),)}))
    assert set(again.methods[0].config.draft.rates) == {"T=0", "T=1"}


def with_rates(config, rates):
    data = config.model_dump(mode="json")
    data["methods"][0]["draft"]["rates"] = rates
    return Config.model_validate(data).methods[0]
