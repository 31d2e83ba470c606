import math
from dataclasses import replace

import pytest
from rendered import section_html
from run_folders.folders import SyntheticMethod, demo_methods, write_run

from treespec.experiments.report.explanation import (
    FACTORS,
    explanation_finding,
    explanations,
)
from treespec.experiments.report.run import load_run
from treespec.experiments.report.table import markdown
from treespec.tree import TreeShape

PLAIN = SyntheticMethod("plain", "plain", stage_ms=(0.0, 20.0, 1.0, 1.0), other_ms=3.0)
GENERATE = SyntheticMethod("generate", "generate", stage_ms=(0.0, 28.0, 0.0, 0.0), other_ms=2.0)
CHAIN = SyntheticMethod("chain 3", "tree", TreeShape.chain(3), (1.0,), (6.0, 24.0, 2.0, 2.0), 6.0)
KARY = SyntheticMethod("kary", "tree", TreeShape.kary(2, 3), (1.0,), (6.0, 34.0, 2.0, 3.0), 5.0)
ASSISTED = SyntheticMethod("assisted", "assisted", TreeShape.chain(3), (1.0,))


def factors(found):
    return {name: value.estimate for name, value in found.factors.items()}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "run"
    return load_run(write_run(folder, spread=0.12, jitter=0.05))


def test_every_factor_of_a_run_with_known_truth(tmp_path):
    run = load_run(write_run(tmp_path / "run", [PLAIN, CHAIN, KARY], temperatures=[0.0]))
    data = run.measurements["T=0"]
    chain = explanations(data)[0]
    # plain: 25 ms a step, 20 of them verifying; the chain: 40 ms, 24 verifying, 6 drafting; 4 tokens a step
    assert factors(chain) == pytest.approx(
        {
            "tokens per step": 4.0,
            "verify": 20 / 24,
            "draft": 24 / 30,
            "overhead": (30 / 40) / (20 / 25),
        }
    )
    assert chain.measured.estimate == pytest.approx(4 * 25 / 40)
    assert list(chain.factors) == list(FACTORS)
    assert chain.measured.half_width == pytest.approx(0)


def test_a_baseline_without_stage_times_is_verification_alone(tmp_path):
    run = load_run(write_run(tmp_path / "run", [GENERATE, CHAIN, ASSISTED], temperatures=[0.0]))
    data = run.measurements["T=0"]
    (chain,) = explanations(data)
    assert (chain.method, chain.against) == ("chain 3", "generate")
    assert factors(chain) == pytest.approx(
        {"tokens per step": 4.0, "verify": 30 / 24, "draft": 24 / 30, "overhead": 30 / 40}
    )


def test_the_product_is_the_speedup_of_the_table(demo):
    for summary in demo.summaries:
        found = demo.explanations[summary.sampling]
        assert len(found) == 10  # nine methods over the baseline, and a tree over a chain
        for e in found[:-1]:
            row = summary.row(e.method)
            assert e.against == summary.baseline
            assert math.isclose(e.product, e.measured.estimate, rel_tol=1e-12)
            assert math.isclose(e.product, row.speedup.estimate, rel_tol=1e-12)
            assert (e.measured.low, e.measured.high) == (row.speedup.low, row.speedup.high)
            for value in e.factors.values():
                assert value.low <= value.estimate <= value.high
        duel = found[-1]
        assert math.isclose(duel.product, duel.measured.estimate, rel_tol=1e-12)


def test_a_tree_over_a_chain_is_the_ratio_of_their_factors(demo):
    data = demo.measurements["T=1"]
    found = {(e.method, e.against): e for e in explanations(data)}
    duel = explanations(data)[-1]
    tree, chain = (found[name, "plain"] for name in (duel.method, duel.against))
    for name in FACTORS:
        ratio = tree.factors[name].estimate / chain.factors[name].estimate
        assert duel.factors[name].estimate == pytest.approx(ratio, rel=1e-12)
    assert duel.method.startswith(("chains", "kary", "expansion"))
    assert duel.against.startswith("chain ")


def test_lossy_methods_are_explained_but_are_no_best_tree(tmp_path):
    lossy = replace(KARY, name="lossy", lossless=False, stage_ms=(1.0, 1.0, 0.0, 0.0))
    run = load_run(write_run(tmp_path / "run", [PLAIN, CHAIN, KARY, lossy], temperatures=[1.0]))
    pairs = [(e.method, e.against) for e in run.explanations["T=1"]]
    assert pairs == [
        ("chain 3", "plain"),
        ("kary", "plain"),
        ("lossy", "plain"),
        ("kary", "chain 3"),
    ]


def test_nothing_to_explain(tmp_path):
    run = load_run(write_run(tmp_path / "run", [GENERATE, ASSISTED], temperatures=[0.0]))
    assert run.explanations["T=0"] == []
    assert explanation_finding(run.explanation_tables) is None
    one = SyntheticMethod("one", "tree", TreeShape.chain(2), (1.0,), errors=frozenset({0}))
    two = SyntheticMethod("two", "tree", TreeShape.kary(2, 2), (1.0,), errors=frozenset({1}))
    apart = load_run(write_run(tmp_path / "apart", [one, two], prompts=2, temperatures=[0.0]))
    assert apart.explanations["T=0"] == []


def test_markdown_and_html_hold_every_method(demo):
    found = demo.explanations["T=0"]
    text = markdown(demo.explanation_tables["T=0"])
    assert text.count("\n| ") == 2 + len(found)
    page = section_html(explanation_finding(demo.explanation_tables))
    for method in demo_methods():
        if method.kind == "tree":
            assert f">{method.name}</span>" in page
            assert f"| {method.name} |" in text
    assert page.count("<table") == 2
    assert "nan" not in page
