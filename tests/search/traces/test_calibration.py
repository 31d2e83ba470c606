import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treespec.search import Calibration, InvalidCalibration, InvalidLimit, InvalidTrace
from treespec.search.traces.calibration import calibration_data, fit_calibration, reliability

UNIT = st.floats(0, 1)

CHOSEN = {"law": "deterministic", "rule": "onehot"}
"""Laws of traces whose children were not drawn."""


def sample(bend, count=20_000, seed=0):
    """Predictions, and outcomes that occur with probability `bend(prediction)`."""
    rng = np.random.default_rng(seed)
    x = rng.beta(0.6, 0.8, count)
    return x, rng.random(count) < bend(x)


def by_hand(x, y, edges):
    """Expected calibration error over bins, by definition."""
    total = 0.0
    for low, high in pairwise(edges):
        last = high == edges[-1]
        mine = (x >= low) & ((x < high) | (last & (x <= high)))
        if mine.any():
            total += mine.mean() * abs(y[mine].mean() - x[mine].mean())
    return total


def test_a_reliability_curve():
    x, y = sample(lambda x: x**2)
    curve = reliability(x, y, bins=8)
    assert curve.counts.sum() == len(x)
    assert curve.expected_error == pytest.approx(by_hand(x, y, curve.edges))
    assert curve.expected_error > 0.1
    assert (curve.low <= curve.measured).all()
    assert (curve.measured <= curve.high).all()
    np.testing.assert_allclose(curve.measured, curve.predicted**2, atol=0.05)
    assert curve.counts.max() - curve.counts.min() <= 8


def test_predictions_that_hold_have_no_error_beyond_noise():
    x, y = sample(lambda x: x)
    assert reliability(x, y).expected_error < 0.02
    covered = reliability(x, y, bins=20)
    assert ((covered.low <= covered.predicted) & (covered.predicted <= covered.high)).sum() >= 17
    assert reliability(x, x).expected_error == pytest.approx(0, abs=1e-12)  # exact outcomes


def test_equal_predictions_share_a_bin():
    curve = reliability([0.5] * 6 + [0.9], [1, 0, 1, 0, 1, 1, 1], bins=5)
    assert curve.counts.tolist() in ([6, 1], [7])
    one = reliability([0.5] * 4, [1, 0, 0, 0])
    assert one.counts.tolist() == [4]
    assert one.measured.tolist() == [0.25]


@pytest.mark.parametrize("method", ["isotonic", "temperature"])
def test_a_fitted_map_mends_what_it_can(method):
    def flatten(x):  # log-odds divided by 2: what a temperature of 2 mends
        return 1 / (1 + np.sqrt((1 - x) / np.clip(x, 1e-9, 1)))

    x, y = sample(flatten)
    found = fit_calibration(x, y, method)
    grid = np.linspace(0.05, 0.95, 19)
    np.testing.assert_allclose(found(grid), flatten(grid), atol=0.05)
    other, outcome = sample(flatten, seed=1)
    before, after = (reliability(p, outcome).expected_error for p in (other, found(other)))
    assert before > 0.05
    assert after < 0.02
    if method == "temperature":
        assert found.temperature == pytest.approx(2, rel=0.1)


@given(
    st.lists(st.tuples(UNIT, st.booleans()), min_size=1, max_size=30),
    st.lists(UNIT, min_size=2, max_size=8),
)
def test_a_map_stays_in_the_unit_interval_and_keeps_order(pairs, values):
    x, y = zip(*pairs, strict=True)
    values = np.sort(values)
    for method in ("isotonic", "temperature"):
        mapped = fit_calibration(x, y, method)(values)
        assert (mapped >= 0).all()
        assert (mapped <= 1).all()
        assert (np.diff(mapped) >= 0).all()
        wide = np.diff(values) > 1e-3
        if method == "isotonic":
            assert (np.diff(mapped)[wide] > 0).all()


def test_isotonic_blocks_pool_their_outcomes():
    """Between the means of the blocks the map is linear; at them it has the pooled share."""
    found = fit_calibration([0.2, 0.4, 0.6, 0.8], [0, 1, 0, 1])
    np.testing.assert_allclose(found(np.array([0.2, 0.5, 0.8])), [0, 0.5, 1], atol=1e-5)
    assert found(0.5 * (0.2 + 0.5)) == pytest.approx(0.25, abs=1e-5)


def test_maps_take_tensors_and_numbers():
    found = fit_calibration(*sample(lambda x: x))
    probs = torch.rand(2, 3)
    np.testing.assert_allclose(found(probs), found(probs.numpy()))
    assert found(probs).shape == (2, 3)
    assert found(1 + 1e-9) == found(1.0)
    assert found(0.0) == 0.0


@pytest.mark.parametrize("method", ["isotonic", "temperature"])
def test_json_round_trip(method):
    found = fit_calibration(*sample(lambda x: x**2, count=200), method)
    assert Calibration.from_json(found.to_json()) == found


ISOTONIC = {"method": "isotonic", "xs": [0, 1], "ys": [0, 1]}
TEMPERATURE = {"method": "temperature", "temperature": 1.0}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"kind": "tree"}, "kind = .*calibration"),
        ({"method": "magic"}, "'magic'"),
        ({}, "method = "),
        (TEMPERATURE | {"temperature": 0}, "above 0"),
        (TEMPERATURE | {"temperature": float("nan")}, "nan"),
        (TEMPERATURE | {"xs": [0, 1], "ys": [0, 1]}, "without knots"),
        (ISOTONIC | {"ys": []}, "two knots"),
        (ISOTONIC | {"ys": [1, 0]}, "rise"),
        (ISOTONIC | {"xs": [0, 0.5]}, "rise"),
        (ISOTONIC | {"xs": [0, "a"]}, "'a'"),
    ],
)
def test_bad_maps_are_refused(data, words):
    whole = {"kind": "calibration", "version": 1} | data if isinstance(data, dict) else data
    with pytest.raises(InvalidCalibration, match=words):
        Calibration.from_json(json.dumps(whole))


def test_what_is_no_json_is_refused():
    with pytest.raises(InvalidCalibration, match="not JSON"):
        Calibration.from_json("{")


@pytest.mark.parametrize(
    ("predicted", "accepted", "words"),
    [
        ([], [], "at least one number"),
        ([0.5], [1, 0], "1 predictions, but 2 outcomes"),
        ([1.5], [1], r"predicted must hold probabilities in \[0, 1\]"),
        ([float("nan")], [1], "predicted must hold probabilities"),
        ([0.5], [2], r"accepted must hold probabilities in \[0, 1\]"),
    ],
)
def test_bad_samples_are_refused(predicted, accepted, words):
    for act in (reliability, fit_calibration):
        with pytest.raises(InvalidCalibration, match=words):
            act(predicted, accepted)


def test_bad_settings_are_refused():
    with pytest.raises(InvalidCalibration, match="bins = 0"):
        reliability([0.5], [1], bins=0)
    with pytest.raises(InvalidLimit, match="level = 2"):
        reliability([0.5], [1], level=2)
    with pytest.raises(InvalidCalibration, match="'linear'"):
        fit_calibration([0.5], [1], "linear")


@pytest.mark.parametrize("beyond", [0, 8])
def test_data_of_a_trace_equal_the_definition(make_trace, beyond):
    trace = make_trace(texts=4, positions=20, beyond=beyond, **CHOSEN)
    data = calibration_data(trace)
    rows = [
        (trace.probs[at, r], trace.ranks[at] == r, trace.accepted[at, r], r, text)
        for text in range(trace.texts)
        for at in range(trace.offsets[text], trace.offsets[text] + trace.kept[text])
        for r in range(trace.width)
    ]
    names = ("predicted", "accepted", "exact", "rank", "text")
    found = zip(*(getattr(data, name).tolist() for name in names), strict=True)
    np.testing.assert_allclose(np.array(list(found), float), np.array(rows, float))
    assert len(calibration_data(make_trace(forced=True, **CHOSEN)).rank)


@pytest.mark.parametrize("law", ["iid", "without_replacement"])
def test_drawn_children_say_nothing_about_calibration(make_trace, law):
    with pytest.raises(InvalidTrace, match=rf"law '{law}'.*--law deterministic"):
        calibration_data(make_trace(law=law))
