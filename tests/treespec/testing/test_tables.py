import pytest
import torch

from treespec import Sampling
from treespec.testing import adversarial_pairs, random_pairs
from treespec.testing.tables import graded_pairs

CONTEXTS = [(0,), (1,), (1, 0), (0, 1, 1), (1, 1, 0, 0), (1, 0, 1, 1, 0)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("vocab", [2, 3, 4, 5, 6])
def test_every_row_is_a_distribution_in_its_own_precision(vocab, dtype):
    pairs = [
        *random_pairs(vocab, 2, 0, [Sampling()], dtype),
        *adversarial_pairs(vocab, 0, dtype=dtype),
    ]
    for pair in pairs:
        assert 0 <= pair.root < vocab
        for context in CONTEXTS:
            for model in (pair.target, pair.draft):
                row = pair.sampling(model.row(context))
                assert row.dtype == dtype
                assert (row >= 0).all()
                assert abs(float(row.double().sum()) - 1) <= vocab * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_residual_without_mass_has_none(dtype):
    pairs = {pair.name: pair for pair in adversarial_pairs(4, 0, dtype=dtype)}
    pair = pairs["a residual without mass"]
    target, draft = (model.row((0,)) for model in (pair.target, pair.draft))
    assert (target <= draft).all()
    assert (target < draft).any()


def test_graded_rows_are_nearly_sure_and_reach_1e12():
    sure, both, near, nearer = graded_pairs(3, 0)
    rows = [
        Sampling()(sure.target.row((a, b, c))) for a in range(3) for b in range(3) for c in range(3)
    ]
    assert all(0.999 < float(row.max()) < 1 for row in rows)
    assert {int(row.argmax()) for row in rows} == {0, 1, 2}
    assert min(float(row.min()) for row in rows) == pytest.approx(1e-12, rel=1e-6)
    p, q = (Sampling()(model.row((0,))) for model in (both.target, both.draft))
    assert p.argmax() == q.argmax()
    assert min(float(p.max()), float(q.max())) > 0.999
    for pair, part in ((near, 1e-7), (nearer, 1e-10)):
        p, q = (Sampling()(model.row((0,))) for model in (pair.target, pair.draft))
        assert part / 100 < float((p - q).clamp_min(0).sum()) < part


def test_roots_go_through_all_tokens():
    assert {pair.root for pair in random_pairs(3, 3, 0, [Sampling()])} == {0, 1, 2}
    for vocab in (2, 3, 5):
        assert {pair.root for pair in adversarial_pairs(vocab, 0)} == set(range(vocab))
