import re

import polars as pl
import pytest
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.report.equality import Equality
from treespec.experiments.report.results import conditions, footnotes
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.report.summary import result_table
from treespec.tree import TreeShape

PLAIN = SyntheticMethod("plain", "plain", stage_ms=(0.0, 24.0, 0.5, 0.5), other_ms=0.0)
GENERATE = SyntheticMethod("generate", "generate", stage_ms=(0.0, 30.0, 0.0, 0.0), other_ms=2.0)
CHAIN = SyntheticMethod("chain 3", "tree", TreeShape.chain(3), (1.0,), (4.0, 30.0, 1.0, 1.0), 4.0)
KARY = SyntheticMethod("kary", "tree", TreeShape.kary(2, 2), (1.0,), (2.0, 26.0, 1.0, 1.0), 0.0)


def summary(tmp_path, methods, **settings):
    run = load_run(write_run(tmp_path / "run", methods, **{"temperatures": [0.0], **settings}))
    return run.summaries[0]


def test_every_number_of_a_run_with_known_truth(tmp_path):
    found = summary(tmp_path, [GENERATE, PLAIN, CHAIN, KARY])
    assert (found.baseline, found.prompts, found.attempted) == ("plain", 12, 12)
    chain = found.row("chain 3")  # 64 tokens in 16 steps of 40 ms
    assert chain.tokens_per_step.estimate == 4.0
    assert chain.tokens_per_step.half_width == pytest.approx(0)
    assert chain.accepted_per_step == 3.0
    assert chain.tokens_per_second.estimate == pytest.approx(100)
    assert chain.speedup.estimate == pytest.approx(2.5)  # over 25 ms a token
    assert chain.speedups["generate"].estimate == pytest.approx(3.2)  # over 32 ms a token
    assert chain.speedup_with_prefill.estimate == pytest.approx(1.7 / 0.74)  # 0.1 s each
    assert chain.step_ms == pytest.approx(40)
    assert chain.stage_ms == pytest.approx(
        {"draft": 4, "verify": 30, "accept": 1, "commit": 1, "other": 4}
    )
    assert chain.wasted == 0
    assert (chain.equality.equal, chain.equality.compared, chain.errors) == (12, 12, 0)
    kary = found.row("kary")  # 22 steps of 3 tokens, the last one cut: 66 emitted, 64 kept
    assert kary.tokens_per_step.estimate == pytest.approx(64 / 22)
    assert kary.accepted_per_step == pytest.approx(64 / 22 - 1)
    assert kary.tokens_per_second.estimate == pytest.approx(64 / (22 * 0.030))
    assert kary.wasted == pytest.approx(1 - 42 / (22 * 6))


def test_plain_decoding_is_one_token_a_step(tmp_path):
    found = summary(tmp_path, [GENERATE, PLAIN])
    for name in ("plain", "generate"):
        row = found.row(name)
        assert row.tokens_per_step.estimate == 1.0
        assert row.accepted_per_step == 0.0
        assert row.wasted is None
    assert found.row("plain").speedup.estimate == 1.0
    assert found.row("generate").stage_ms is None


def test_the_faster_plain_baseline_is_chosen_per_sampling(tmp_path):
    slow = SyntheticMethod("plain", "plain", stage_ms=(0.0, 40.0, 0.0, 0.0))
    assert summary(tmp_path, [GENERATE, slow, CHAIN]).baseline == "generate"


def test_without_a_plain_baseline_there_is_no_speedup(tmp_path):
    found = summary(tmp_path, [CHAIN, KARY])
    assert found.baseline is None
    assert found.row("kary").speedup is None


def test_only_the_fastest_and_its_ties_are_among_the_fastest(tmp_path):
    twin = SyntheticMethod("twin", "tree", CHAIN.shape, (1.0,), CHAIN.stage_ms, CHAIN.other_ms)
    found = summary(tmp_path, [PLAIN, CHAIN, twin, KARY], jitter=0.02)
    assert {row.method.name for row in found.rows if row.among_fastest} == {"chain 3", "twin"}


def test_a_failed_prompt_leaves_the_comparison_of_all_methods(tmp_path):
    failing = SyntheticMethod("bad", "tree", CHAIN.shape, (1.0,), errors=frozenset({0, 5}))
    found = summary(tmp_path, [PLAIN, CHAIN, failing])
    assert (found.prompts, found.attempted) == (10, 12)
    assert found.row("bad").errors == 2
    assert found.row("bad").equality.compared == 10
    assert found.row("chain 3").equality.compared == 12  # equality is checked wherever it can be
    assert found.row("bad").tokens_per_step.estimate == 4.0  # zeros of errors enter nothing


def test_a_method_that_always_fails_is_set_aside(tmp_path):
    failing = SyntheticMethod("bad", "tree", CHAIN.shape, (1.0,), errors=frozenset(range(12)))
    found = summary(tmp_path, [PLAIN, CHAIN, failing])
    assert found.prompts == 12
    assert list(found.failed) == ["bad"]
    assert "NonFiniteLogits" in found.failed["bad"]
    assert [row.method.name for row in found.rows] == ["plain", "chain 3"]


def test_no_common_prompt_gives_no_row(tmp_path):
    one = SyntheticMethod("one", "tree", CHAIN.shape, (1.0,), errors=frozenset({0}))
    two = SyntheticMethod("two", "tree", CHAIN.shape, (1.0,), errors=frozenset({1}))
    found = summary(tmp_path, [one, two], prompts=2)
    assert (found.prompts, found.rows) == (0, ())


def test_divergences_carry_their_margin(tmp_path):
    margins = {3: 0.03125, 4: 2.0, 5: None, 6: -0.25, 7: -2.0, 8: 0.26}
    off = SyntheticMethod("off", "tree", CHAIN.shape, (1.0,), diverges=margins)
    found = summary(tmp_path, [PLAIN, off]).row("off").equality
    assert (found.equal, found.compared) == (6, 12)
    near = found.divergences[0]
    assert (near.prompt, near.position, near.margin) == ("module_3.py", 32, 0.03125)
    assert [d.margin for d in found.rounding] == [0.03125, -0.25]
    # far off, in either direction, or merely of another length: never rounding
    assert [d.margin for d in found.bugs] == [2.0, None, -2.0, 0.26]


def test_generate_is_not_compared_with_itself(tmp_path):
    found = summary(tmp_path, [GENERATE, PLAIN])
    assert found.row("generate").equality == Equality(reference=True)
    assert found.row("plain").equality == Equality(equal=12, compared=12)


def test_without_generate_texts_are_compared_with_plain_decoding(tmp_path):
    found = summary(tmp_path, [PLAIN, CHAIN])
    assert found.row("plain").equality == Equality(reference=True)
    assert found.row("chain 3").equality.compared == 12


def test_every_method_counts_kept_tokens_only(tmp_path):
    """The same decoding by our loop, which records tokens past the budget, and by transformers."""
    ours = SyntheticMethod("ours", "tree", TreeShape.chain(4), (1.0,))
    theirs = SyntheticMethod("theirs", "assisted", TreeShape.chain(4), (1.0,))
    run = load_run(write_run(tmp_path / "run", [ours, theirs], temperatures=[0.0]))
    rows = run.summaries[0].rows
    assert run.prompts["emitted"].unique().sort().to_list() == [64, 65]
    assert [row.tokens_per_step.estimate for row in rows] == [64 / 13] * 2
    assert [row.accepted_per_step for row in rows] == pytest.approx([64 / 13 - 1] * 2)
    shares = run.accepted_shares["T=0"]["ours"]
    assert sum(i * share for i, share in enumerate(shares)) == pytest.approx(64 / 13 - 1)


def test_sampled_outputs_are_not_compared_with_plain(tmp_path):
    assert (
        summary(tmp_path, [PLAIN, CHAIN], temperatures=[1.0]).row("chain 3").equality == Equality()
    )


def test_accepted_shares_are_of_steps(tmp_path):
    run = load_run(write_run(tmp_path / "run", [PLAIN, CHAIN, KARY], temperatures=[0.0]))
    shares = run.accepted_shares["T=0"]
    assert list(shares) == ["chain 3", "kary"]
    assert shares["kary"].tolist() == pytest.approx([1 / 22, 0, 21 / 22])  # 64 = 21 * 3 + 1


def test_a_running_run_reads_as_a_finished_one(tmp_path):
    write_run(tmp_path / "a", [PLAIN, CHAIN], finished=True)
    write_run(tmp_path / "b", [PLAIN, CHAIN], finished=False)
    log = tmp_path / "b" / "prompts.jsonl"
    log.write_text(log.read_text() + '{"prompt": 12, "samp')  # killed while it wrote
    a, b = load_run(tmp_path / "a"), load_run(tmp_path / "b")
    assert (a.finished, b.finished) == (True, False)
    assert a.summaries == b.summaries


def test_step_time_has_an_interval(tmp_path):
    guess = SyntheticMethod("guess", "tree", TreeShape.kary(2, 3), (0.6, 0.2))
    row = summary(tmp_path, [PLAIN, guess], jitter=0.1).row("guess")
    assert row.step_time.estimate == pytest.approx(row.step_ms)
    assert row.step_time.low < row.step_ms < row.step_time.high


def test_repeats_of_a_prompt_are_no_new_sample(tmp_path):
    """Repeating every prompt four times yields the same ratios and intervals that are not narrower."""
    run = load_run(write_run(tmp_path / "run", [PLAIN, CHAIN], temperatures=[0.0], jitter=0.1))
    fourfold = pl.concat([run.prompts.with_columns(repeat=pl.lit(i)) for i in range(4)])
    once, again = (
        Run(run.folder, run.manifest, f, run.steps).summaries[0] for f in (run.prompts, fourfold)
    )
    assert again.prompts == once.prompts == 12
    single, repeated = once.row("chain 3").speedup, again.row("chain 3").speedup
    assert (repeated.estimate, repeated.low, repeated.high) == pytest.approx(
        (single.estimate, single.low, single.high)
    )


def test_lossy_rules_stand_beside_their_price(start):
    tree = {"kind": "tree", "shape": {"kind": "chain", "depth": 2}}
    lossy = [
        tree | {"law": "iid", "rule": "lenient", "settings": {"lenience": lenience}, "name": name}
        for name, lenience in (("half", 0.5), ("none", 1.0))
    ]
    changes = {"samplings": [{"temperature": 1.0}], "alone": 0}
    run = load_run(start(changes | {"methods": [*lossy, tree, {"kind": "plain"}]}).folder)
    rows = {row.method.name: row.off_target for row in run.summaries[0].rows}
    assert rows["half (lossy)"].estimate > 0.001
    assert rows["none (lossy)"].estimate == pytest.approx(0, abs=1e-5)
    assert rows["chain 2"] is rows["plain"] is None
    assert "off\ntarget" in [column.head for column in result_table(run.summaries[0]).columns]
    assert any(note.startswith("off target") for note in footnotes(run, run.summaries))
    lossless = load_run(start(changes | {"methods": [tree, {"kind": "plain"}]}, "b").folder)
    heads = [column.head for column in result_table(lossless.summaries[0]).columns]
    assert "off\ntarget" not in heads


def test_what_a_verdict_depends_on_is_said(tmp_path):
    run = load_run(write_run(tmp_path / "run", prompts=4))
    assert re.search(r"94 M.*bfloat16.*threads?; 4 prompts.*T=0, T=1", conditions(run))
    models = run.manifest["models"]
    for role, kind in (("target", "compiled"), ("draft", "eager")):
        models[role]["passes"] = {"kind": kind}
    assert conditions(run).startswith(
        "Target and drafts run in different ways: target compiled, draft eager."
    )
