"""Every policy on the embedded pair: at temperature 0 the text is that of plain decoding."""

import pytest

import treespec
from treespec import Law, Sampling, TorchCoins, TreeShape
from treespec.search.growth import CostAware, DySpec, Eagle2, EqualGrowth, OptTree, SpecExec
from treespec.search.latency.latency import LatencyModel

PROMPT = "import os\nimport sys\n\n\ndef main(argv=None):\n    "
LATENCY = LatencyModel.from_tables(
    verify={1: 0.010, 32: 0.013}, draft={1: 0.0015, 16: 0.002}, accept=0.0002, commit=0.0001
)
GROWTHS = [
    Eagle2(4, 4, 24),
    OptTree(24, 0.05, 4, branching=16),
    SpecExec(24, 8, 4),
    EqualGrowth(4, 4, 12),
    EqualGrowth(4, 4, latency=LATENCY),
    CostAware(LATENCY, 24, 4, 6),
    DySpec(16, 4),
]


@pytest.fixture(scope="module")
def pair():
    return treespec.load_pair("embedded")


@pytest.fixture(scope="module")
def plain(pair):
    return treespec.generate(pair, PROMPT, growth=TreeShape.chain(0), max_new_tokens=24)


@pytest.mark.parametrize("growth", GROWTHS, ids=lambda g: type(g).__name__)
def test_greedy_text_is_that_of_plain_decoding(pair, plain, growth):
    (law,) = growth.laws
    found = treespec.generate(pair, PROMPT, growth=growth, law=law, max_new_tokens=24)
    assert found.tokens == plain.tokens
    assert found.steps < plain.steps
    assert found.drafted <= found.steps * 23


@pytest.mark.parametrize("growth", [GROWTHS[0], GROWTHS[-1]], ids=lambda g: type(g).__name__)
def test_sampled_text_by_the_rule_of_the_law(pair, growth):
    (law,) = growth.laws
    first, second = (
        treespec.generate(
            pair, PROMPT, growth=growth, law=law, sampling=Sampling(temperature=0.8),
            coins=TorchCoins(7), max_new_tokens=16,
        )
        for _ in range(2)
    )  # fmt: skip
    assert first == second
    assert any(first.accepted_per_step)
    assert law is not Law.IID
