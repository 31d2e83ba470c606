"""The pace of a machine: what the same parts take later."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treespec.search import LatencyModel
from treespec.search.latency.pace import pace, step_at_pace_s
from treespec.tree import TreeShape

STAGES = ("draft", "verify", "accept", "commit", "rest", "plain")
TREES = [TreeShape.chain(0), TreeShape.chain(3), TreeShape.kary(2, 2), TreeShape.expansion([3, 1])]


def model(draft=1.0, verify=1.0, accept=1.0, plain=1.0, sizes=(1, 2, 4, 8, 16), noise=None):
    """Times of a machine on which these stages take so many times as long as usual."""
    noise = noise or (lambda: 1.0)
    return LatencyModel.from_tables(
        verify={16: {n: verify * (0.02 + 0.001 * n) * noise() for n in sizes}},
        draft={16: {n: draft * (0.002 + 0.0001 * n) * noise() for n in sizes[:-1]}},
        first={16: draft * 0.003 * noise()},
        draw={n: draft * 0.0002 * noise() for n in sizes},
        accept={n: accept * 0.0001 * n * noise() for n in sizes},
        rest=0.0004,
        plain={16: plain * 0.022 * noise()},
        law="deterministic",
    )


factors = st.floats(0.2, 5.0)


@given(factors, factors, factors, factors)
def test_a_machine_whose_stages_slow_down(draft, verify, accept, plain):
    """Found from fewer sizes than the model has; steps at this pace are those of the slower machine."""
    slow = {"draft": draft, "verify": verify, "accept": accept, "plain": plain}
    found = pace(model(), [model(**slow, sizes=(1, 4, 8)), model(**slow, sizes=(1, 2, 4, 8))])
    assert set(found) == set(STAGES)
    for stage in STAGES:
        assert found[stage] == pytest.approx(slow.get(stage, 1.0)), stage
    for shape in TREES:
        expected = model(**slow).step_s(shape, 16, law="deterministic")
        assert step_at_pace_s(model(), shape, found, 16) == pytest.approx(expected)


def test_at_its_own_pace_a_step_takes_what_it_takes():
    own = dict.fromkeys(STAGES, 1.0)
    for shape in TREES:
        assert step_at_pace_s(model(), shape, own) == pytest.approx(model().step_s(shape))


def test_rounds_are_averaged_not_their_medians():
    """Half of the rounds twice as slow: half as much again, because throughput is one over a mean."""
    rng = np.random.default_rng(0)
    rounds = [model(verify=1.0 + (i % 2), noise=lambda: rng.uniform(0.9, 1.1)) for i in range(400)]
    assert pace(model(), rounds)["verify"] == pytest.approx(1.5, rel=0.01)


def test_every_sample_of_a_cell_counts():
    before = LatencyModel.from_tables(verify={1: 0.02, 4: 0.04}, draft=0.01)
    later = LatencyModel.from_tables(verify={1: [0.02, 0.02, 0.05], 4: 0.04}, draft=[0.01, 0.02])
    found = pace(before, [later])
    assert found["verify"] == pytest.approx(0.13 / 0.10)
    assert found["draft"] == pytest.approx(0.03 / 0.02)


def test_noise_of_differences_is_no_pace():
    """Drawing is timed as a difference that is cut off at 0: half of its noise stays, all of one sign."""
    before = model()
    own = before.law_times("deterministic")
    noisy = LatencyModel.from_tables(
        verify={16: {1: 0.021}}, draft={16: {1: 0.0021}}, first={16: 0.003}, draw={1: 0.01},
        accept={1: 0.0001}, rest=0.0004, law="deterministic",
    )  # fmt: skip
    assert own.draw.at(1, 16) == pytest.approx(0.0002)
    assert pace(before, [noisy])["draft"] == pytest.approx(1.0)


def test_what_was_not_timed_again_keeps_its_pace():
    again = LatencyModel.from_tables(verify={1: 0.05}, draft=0.01, law="deterministic")
    before = LatencyModel.from_tables(verify={1: 0.02, 8: 0.03}, draft=0.01, accept=0.001)
    found = pace(before, [again])
    assert found["verify"] == pytest.approx(2.5)
    assert found["plain"] == found["commit"] == 1.0


def test_what_the_model_does_not_cover_does_not_count():
    slow = model(verify=2.0, sizes=(1, 2, 4, 8, 32))
    found = pace(model(), [slow])
    assert found["verify"] == pytest.approx(2.0)
    assert found["draft"] == pytest.approx(1.0)
    other = LatencyModel.from_tables(verify={16: {1: 0.042}}, draft=0.5, law="iid")
    assert pace(model(), [other])["verify"] == pytest.approx(2.0)
    assert pace(model(), [other])["draft"] == 1.0
    elsewhere = LatencyModel.from_tables(verify={99: {1: 0.5}}, draft=0.5, law="iid")
    assert (pace(model(), [elsewhere])["verify"], pace(model(), [elsewhere])["draft"]) == (1, 1)
    with pytest.raises(ValueError, match="at least one round"):
        pace(model(), [])
