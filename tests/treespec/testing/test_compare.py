"""`compare_laws`: its false-alarm rate and power by simulation, and the planted bias by enumeration."""

from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import binom

from treespec import Law, Sampling, TreeShape
from treespec.models.tabular import TabularModel, random_table
from treespec.testing import step_law, target_law
from treespec.testing.compare import TooFewSamples, compare_laws
from treespec.testing.planted import planted
from treespec.testing.strata import against_law, against_samples, detectable_variation
from treespec.verify import chain, rrsw

V = 12
FIRST = np.random.default_rng(0).dirichlet(np.full(V, 0.4))
SECOND = np.random.default_rng(1).dirichlet(np.full(V, 0.4), size=V)


def law(prefix):
    return torch.from_numpy(SECOND[prefix[0]] if prefix else FIRST)


def draw(rng, count, first=FIRST, second=SECOND):
    tokens = rng.choice(V, p=first, size=count)
    uniforms = rng.random((count, 1))
    after = np.minimum((second[tokens].cumsum(1) < uniforms).sum(1), V - 1)
    return torch.from_numpy(np.stack([tokens, after], 1))


def flattened(row, size):
    """The bias of `planted`, computed by hand."""
    order = np.argsort(-row, kind="stable")
    cut = int(np.searchsorted(row[order].cumsum(), 0.5)) + 1
    biased = row.copy()
    biased[order[:cut]] *= 1 - size / row[order[:cut]].sum()
    biased[order[cut:]] *= 1 + size / row[order[cut:]].sum()
    return biased


def rejections(reference, runs, count, level, **biased):
    """Share of comparisons that fail at this level."""
    rng = np.random.default_rng(2)
    failed = 0
    for seed in range(runs):
        samples = draw(rng, count, **biased)
        other = law if reference == "law" else draw(rng, 2 * count)
        failed += not compare_laws(samples, other, false_alarm=level, seed=seed).passed
    return failed


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(("reference", "count"), [("law", 60), ("samples", 150)])
def test_false_alarms_keep_to_the_stated_rate(reference, count):
    runs, level = 500, 0.05
    failed = rejections(reference, runs, count, level)
    # Exact tests never exceed their level; they may stay below it, since Bonferroni and pooling do.
    assert failed <= binom.isf(1e-4, runs, level)
    assert failed >= binom.isf(1 - 1e-4, runs, 0.5 * level)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("reference", ["law", "samples"])
def test_the_stated_power_is_reached(reference):
    rng, runs = np.random.default_rng(3), 40
    other = law if reference == "law" else draw(rng, 4000)
    stated = compare_laws(draw(rng, 2000), other, false_alarm=0.01).detectable
    failed = rejections(reference, runs, 2000, 0.01, first=flattened(FIRST, stated))
    assert failed >= binom.isf(1 - 1e-4, runs, 0.85)


@pytest.mark.usefixtures("without_shape_checks")
def test_a_bias_of_the_second_token_alone_is_noticed():
    second = np.stack([flattened(row, 0.12) for row in SECOND])
    found = compare_laws(draw(np.random.default_rng(4), 4000, second=second), law)
    assert not found.passed
    first, after = found.positions
    assert first.p_value > 1e-3 > after.p_value
    assert after.strata > 3
    assert len(found.largest.prefix) == 1


def test_the_verdict_can_be_read():
    samples = draw(np.random.default_rng(5), 2000)
    fine = str(compare_laws(samples, law))
    assert fine.startswith("no difference between 2,000 samples and the exact law: p = ")
    assert "false-alarm rate 0.001" in fine
    assert "first token: chi-square" in fine
    assert "would be noticed in 90 % of cases" in fine
    shifted = samples.clone()
    shifted[:300, 0] = 0
    differ = compare_laws(shifted, samples.tolist())
    assert differ.reference == 2000
    assert "the laws DIFFER between 2,000 samples and 2,000 reference samples" in str(differ)
    assert "standard deviations" in str(differ)
    assert differ.statistic == sum(test.statistic for test in differ.positions)
    assert differ.degrees == sum(test.degrees for test in differ.positions)


def test_one_impossible_token_refutes_equality():
    row = torch.tensor([0.7, 0.3, 0.0])
    samples = [[0]] * 700 + [[1]] * 299 + [[2]]
    found = compare_laws(samples, lambda prefix: row)
    assert found.p_value == 0
    assert found.largest.tokens == (2,)
    assert compare_laws(samples[:-1], lambda prefix: row).passed


def test_a_law_of_one_token_has_nothing_to_test_but_the_impossible():
    certain = torch.tensor([0.0, 1.0])
    found = compare_laws([[1]] * 50, lambda prefix: certain)
    assert found.passed
    assert found.degrees == 0
    assert "not tested" in str(found)
    assert "noticed" not in str(found)
    assert not compare_laws([[1]] * 49 + [[0]], lambda prefix: certain).passed


def test_given_entries_are_contexts():
    rows = [torch.tensor([0.9, 0.1]), torch.tensor([0.1, 0.9])]
    samples = [(0, int(i % 10 == 0)) for i in range(500)]
    samples += [(1, int(i % 10 != 0)) for i in range(500)]
    assert compare_laws(samples, lambda prefix: rows[prefix[0]], given=1).passed
    assert not compare_laws(samples, lambda prefix: rows[0], given=1).passed
    assert compare_laws(samples, lambda prefix: rows[prefix[0]], given=1).positions[0].strata == 2


def test_cells_are_pooled_without_regard_to_the_samples():
    probs = np.array([0.5, 0.2, 0.2, *[0.01] * 10])
    table = against_law((), Counter({0: 50, 3: 50}), probs)
    assert table is not None
    assert table.cells[:3] == ((0,), (1,), (2,))
    assert sorted(t for cell in table.cells for t in cell) == list(range(13))
    assert table.expected.sum() == pytest.approx(100)
    one, two = Counter({0: 60, 1: 40}), Counter({0: 40, 1: 55, 2: 5})
    there, back = against_samples((), one, two), against_samples((), two, one)
    assert there is not None
    assert back is not None
    assert there.cells == back.cells
    assert there.statistic == pytest.approx(back.statistic)
    assert (there.observed + back.observed == there.pooled).all()


def test_the_two_sample_statistic_is_that_of_scipy():
    from scipy.stats import chi2_contingency

    one, two = Counter({0: 300, 1: 150, 2: 50}), Counter({0: 500, 1: 330, 2: 170})
    table = against_samples((), one, two)
    assert table is not None
    expected = chi2_contingency([[300, 150, 50], [500, 330, 170]], correction=False).statistic
    assert table.statistic == pytest.approx(expected)


def test_more_samples_notice_less_and_a_smaller_level_more():
    assert detectable_variation(20, 4000.0, 1e-3) == pytest.approx(
        detectable_variation(20, 1000.0, 1e-3) / 2
    )
    assert detectable_variation(20, 1000.0, 1e-4) > detectable_variation(20, 1000.0, 1e-2)
    assert detectable_variation(20, 1.0, 1e-3) == 1


@pytest.mark.parametrize("count", [1, 4, 12])
def test_too_few_samples(count):
    samples = draw(np.random.default_rng(6), count)
    for reference in (law, samples):
        with pytest.raises(TooFewSamples, match=f"{count} samples: .* take at least "):
            compare_laws(samples, reference)


def test_the_number_that_is_named_is_enough():
    row = torch.tensor([0.97, 0.03])
    with pytest.raises(TooFewSamples, match="at least 167"):
        compare_laws([[0]] * 100, lambda prefix: row)
    compare_laws([[0]] * 163 + [[1]] * 4, lambda prefix: row)


@pytest.mark.parametrize("size", [7, 40, 1000])
def test_a_flat_law_needs_no_more_samples_the_more_tokens_there_are(size):
    row = torch.full((size,), 1 / size)
    with pytest.raises(TooFewSamples, match="at least 30"):
        compare_laws([[i % size] for i in range(20)], lambda prefix: row)
    assert compare_laws([[i % size] for i in range(30)], lambda prefix: row).degrees


@pytest.mark.parametrize(
    ("samples", "reference", "given"),
    [([], [[1]], 0), ([[1], [1, 2]], [[1]], 0), ([[1]], [[1, 2]], 0), ([[1]], [[1]], 1)],
)
def test_rows_that_do_not_fit(samples, reference, given):
    with pytest.raises(ValueError, match="rows"):
        compare_laws(samples, reference, given=given)


def test_a_bound_that_every_law_meets_is_not_claimed():
    fair = torch.tensor([0.5, 0.5])
    found = compare_laws([[0], [1]] * 5, lambda prefix: fair, false_alarm=1e-9)
    assert found.degrees == 1
    assert found.detectable == 1
    assert "noticed" not in str(found)


def test_contexts_of_one_side_alone_are_refused():
    both = [[0, 1], [0, 0], [1, 0], [1, 1]] * 250
    first = [row for row in both if row[0] == 0] * 2
    assert compare_laws(both, both, given=1).passed
    with pytest.raises(ValueError, match=r"reference: no row begins with \[1\], as"):
        compare_laws(both, first, given=1)
    with pytest.raises(ValueError, match=r"samples: no row begins with \[1\], as"):
        compare_laws(first, both, given=1)
    many = [[i, 0, token] for i in range(20) for token in (0, 1)] * 10
    with pytest.raises(ValueError, match=r"with \[1, 0\], .*, \[5, 0\] and 14 more, as"):
        compare_laws(many, [row for row in many if row[0] == 0], given=2)
    # Only given entries must agree; tokens differ by chance.
    assert not compare_laws(both, [[0, 1], [1, 1]] * 500, given=1).passed


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.5, 1.5, float("nan")])
def test_a_false_alarm_rate_that_is_none(rate):
    with pytest.raises(ValueError, match=f"false_alarm = {rate}: must be between 0 and 1"):
        compare_laws([[0], [1]] * 50, [[0], [1]] * 50, false_alarm=rate)


def test_given_cannot_be_negative():
    with pytest.raises(ValueError, match="given = -1: must be at least 0"):
        compare_laws([[0], [1]] * 50, [[0], [1]] * 50, given=-1)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("samples", [[0, 1] * 50, torch.tensor([0, 1] * 50), np.arange(9)])
def test_tokens_without_rows(samples):
    with pytest.raises(ValueError, match="samples: a row of token ids is needed for each sample"):
        compare_laws(samples, [[0], [1]] * 50)
    with pytest.raises(ValueError, match="reference: a row of token ids is needed"):
        compare_laws([[0], [1]] * 50, samples)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "samples",
    [
        [[0.5], [1.0]] * 50,
        torch.tensor([[0.0], [1.0]] * 50),
        np.array([[0.0], [1.0]] * 50),
        [["0"], ["1"]] * 50,
        [[[0]], [[1]]] * 50,
    ],
)
def test_tokens_that_are_no_integers(samples):
    with pytest.raises(ValueError, match="samples: token ids must be integers"):
        compare_laws(samples, [[0], [1]] * 50)


@pytest.mark.parametrize("token", [2, -1])
def test_a_law_without_an_entry_for_a_token(token):
    samples = [[3, 0], [3, 1], [3, token]] * 50
    message = rf"token {token} occurs after \[3\], where the exact law is a row of 2 entries"
    with pytest.raises(ValueError, match=message):
        compare_laws(samples, lambda prefix: torch.tensor([0.5, 0.5]), given=1)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("rule", "shape", "drawn"),
    [
        (rrsw, TreeShape.expansion([2, 1]), Law.WITHOUT_REPLACEMENT),
        (chain, TreeShape.chain(2), Law.IID),
    ],
)
def test_a_planted_bias_has_exactly_its_size(rule, shape, drawn):
    target, draft = (TabularModel(random_table(4, seed), 4) for seed in (1, 2))
    right = target_law(target, (0,), shape.depth + 1, Sampling()).flatten(1).sum(1)
    biased = planted(rule, 0.05, root=0)
    assert biased.laws == rule.laws
    found = step_law(biased, shape, drawn, target=target, draft=draft).probs.flatten(1).sum(1)
    assert float((found - right).abs().sum() / 2) == pytest.approx(0.05, abs=1e-12)
    elsewhere = planted(rule, 0.05, root=3)
    same = step_law(elsewhere, shape, drawn, target=target, draft=draft).probs.flatten(1).sum(1)
    assert torch.allclose(same, right, atol=1e-12)


def test_a_bias_that_cannot_be_planted():
    with pytest.raises(ValueError, match=r"0\.6"):
        planted(rrsw, 0.6)
