import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treespec.search import Calibration, InvalidCalibration, InvalidLimit, InvalidTrace, Trace
from treespec.search.rates.calibration import calibration_data, fit_calibration, reliability

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


@pytest.mark.parametrize("spacing", ["count", "width"])
def test_a_reliability_curve(spacing):
    x, y = sample(lambda x: x**2)
    curve = reliability(x, y, bins=8, spacing=spacing)
    assert curve.counts.sum() == len(x)
    assert curve.expected_error == pytest.approx(by_hand(x, y, curve.edges))
    assert curve.expected_error > 0.1
    assert (curve.low <= curve.measured).all()
    assert (curve.measured <= curve.high).all()
    np.testing.assert_allclose(curve.measured, curve.predicted**2, atol=0.05)
    if spacing == "count":
        assert curve.counts.max() - curve.counts.min() <= 8
    else:
        np.testing.assert_allclose(curve.edges, np.linspace(0, 1, 9))


def test_predictions_that_hold_have_no_error_beyond_noise():
    x, y = sample(lambda x: x)
    assert reliability(x, y).expected_error < 0.02
    covered = reliability(x, y, bins=20)
    assert ((covered.low <= covered.predicted) & (covered.predicted <= covered.high)).sum() >= 17
    assert reliability(x, x).expected_error == pytest.approx(0, abs=1e-12)  # exact outcomes


def test_groups_have_curves_of_their_own():
    x, y = sample(lambda x: x)
    group = np.arange(len(x)) % 3
    curve = reliability(x, y, by=group)
    assert sorted(curve.by) == [0, 1, 2]
    for label, own in curve.by.items():
        alone = reliability(x[group == label], y[group == label])
        np.testing.assert_array_equal(own.measured, alone.measured)


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
        ([], "an object"),
        ({"kind": "tree"}, "an object"),
        ({"version": 9}, "version 1"),
        ({"method": "magic"}, "'magic'"),
        ({}, "method = ''"),
        (TEMPERATURE | {"temperature": None}, "temperature = None"),
        (TEMPERATURE | {"temperature": 0}, "above 0"),
        (TEMPERATURE | {"temperature": float("nan")}, "nan"),
        (TEMPERATURE | {"temperature": "2"}, "'2'"),
        (TEMPERATURE | {"xs": [0, 1], "ys": [0, 1]}, "without knots"),
        (ISOTONIC | {"ys": []}, "two knots"),
        (ISOTONIC | {"xs": 3}, "xs = 3: must be a list"),
        (ISOTONIC | {"z": 3}, "z: unknown key"),
        (ISOTONIC | {"ys": [1, 0]}, "rise"),
        (ISOTONIC | {"ys": [0, 2]}, "rise"),
        (ISOTONIC | {"xs": [0, 0.5]}, "rise"),
        (ISOTONIC | {"xs": [0, "a"]}, r"xs\[1\] = 'a'"),
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
        ([float("nan")], [1], "predicted must hold probabilities, but contains NaN"),
        ([0.5], [2], r"accepted must hold probabilities in \[0, 1\]"),
        (["x"], [1], "must hold numbers"),
        ([[0.5]], [[1]], "must be a vector"),
    ],
)
def test_bad_samples_are_refused(predicted, accepted, words):
    for act in (reliability, fit_calibration):
        with pytest.raises(InvalidCalibration, match=words):
            act(predicted, accepted)


def test_bad_settings_are_refused():
    for settings, words in (
        ({"bins": 0}, "bins = 0"),
        ({"spacing": "log"}, "spacing = 'log'"),
        ({"by": [1, 2]}, "by must hold 1 integers"),
        ({"by": [0.5]}, "by must hold 1 integers"),
        ({"weights": [1, 2]}, "weights must hold 1 numbers"),
        ({"weights": [0]}, "finite numbers above 0"),
    ):
        with pytest.raises(InvalidCalibration, match=words):
            reliability([0.5], [1], **settings)
    with pytest.raises(InvalidLimit, match="level = 2"):
        reliability([0.5], [1], level=2)
    with pytest.raises(InvalidCalibration, match="'linear'"):
        fit_calibration([0.5], [1], "linear")


@pytest.mark.parametrize("beyond", [0, 8])
def test_data_of_a_trace_equal_the_definition(make_trace, beyond):
    trace = make_trace(texts=4, positions=20, beyond=beyond, **CHOSEN)
    data = calibration_data(trace, depth=3)
    rows = []
    for text in range(trace.texts):
        first = trace.offsets[text]
        last = first + trace.kept[text]
        for start in range(first, last):
            path, reached = 1.0, 1.0
            for depth, at in enumerate(range(start, min(start + 3, last))):
                rank = trace.ranks[at]
                rows += [
                    (trace.probs[at, r], rank == r, trace.accepted[at, r], r, depth,
                     path * trace.probs[at, r], text, reached * trace.accepted[at, r], 1 / reached)
                    for r in range(trace.width)
                ]  # fmt: skip
                if rank == trace.width:
                    break
                path *= trace.probs[at, rank]
                reached *= trace.accepted[at, rank]
    names = (
        "predicted",
        "accepted",
        "exact",
        "rank",
        "depth",
        "path",
        "text",
        "path_exact",
        "weight",
    )
    found = sorted(zip(*(getattr(data, name).tolist() for name in names), strict=True))
    np.testing.assert_allclose(np.array(found, float), np.array(sorted(rows), float))


def test_data_that_a_trace_does_not_hold_are_refused(make_trace):
    with pytest.raises(InvalidTrace, match="no text of the trace reaches depth"):
        calibration_data(make_trace(positions=3, **CHOSEN), depth=9)
    with pytest.raises(InvalidTrace, match="given texts"):
        calibration_data(make_trace(forced=True, **CHOSEN), depth=2)
    assert len(calibration_data(make_trace(forced=True, **CHOSEN)).rank)
    with pytest.raises(InvalidLimit, match="depth = 0"):
        calibration_data(make_trace(**CHOSEN), depth=0)


@pytest.mark.parametrize("law", ["iid", "without_replacement"])
def test_drawn_children_say_nothing_about_calibration(make_trace, law):
    with pytest.raises(InvalidTrace, match=rf"law '{law}'.*--law deterministic"):
        calibration_data(make_trace(law=law))


def test_numbers_of_numpy_are_depths(make_trace):
    assert calibration_data(make_trace(**CHOSEN), depth=np.int64(2)).depth.max() == 1


VOCAB, WIDTH = 6, 3


def tabular(bend, positions=40_000, seed=0):
    """A trace of a chain of tokens, each drawn by the row of the one before; and both models' rows.

    The draft's rows are the target's to the power of `bend`: at 1 it is perfectly calibrated.
    """
    rng = np.random.default_rng(seed)
    target = rng.dirichlet(np.full(VOCAB, 0.8), VOCAB)
    draft = target**bend / (target**bend).sum(axis=1, keepdims=True)
    children = np.argsort(-draft, axis=1)[:, :WIDTH]
    states, coins = [0], rng.random(positions)
    for coin in coins:
        states.append(int((coin >= target[states[-1]].cumsum()[:-1]).sum()))
    at, tokens = np.array(states[:-1]), np.array(states[1:])
    same = children[at] == tokens[:, None]
    trace = Trace(
        offsets=[0, positions], tokens=tokens, ranks=np.where(same.any(1), same.argmax(1), WIDTH),
        probs=np.take_along_axis(draft[at], children[at], 1),
        accepted=np.take_along_axis(target[at], children[at], 1), law="deterministic", rule="onehot",
        sampling={"temperature": 1.0}, width=WIDTH,
    )  # fmt: skip
    return trace, at, target, draft, children


def test_paths_of_a_perfectly_calibrated_draft_are_calibrated():
    data = calibration_data(tabular(1.0)[0], depth=3)
    for level in range(3):
        mine = data.depth == level
        curve = reliability(data.path[mine], data.path_exact[mine], weights=data.weight[mine])
        assert curve.expected_error < 1e-9
    whole = reliability(data.path, data.path_exact, weights=data.weight, by=data.depth)
    assert sorted(whole.by) == [0, 1, 2]
    # Compared with acceptance given the parent, paths look miscalibrated although they are not.
    deep = data.depth == 2
    assert reliability(data.path[deep], data.exact[deep]).expected_error > 0.1


def test_weighted_rows_stand_for_all_nodes_also_those_that_were_never_reached():
    trace, at, target, draft, children = tabular(0.4, seed=1)
    data = calibration_data(trace, depth=2)
    deep = data.depth == 1
    sums = np.zeros(2)
    for state, count in zip(*np.unique(at, return_counts=True), strict=True):
        for first in children[state]:
            for second in children[first]:
                sums += count * np.array(
                    [
                        draft[state, first] * draft[first, second],
                        target[state, first] * target[first, second],
                    ]
                )
    means = sums / (len(at) * WIDTH**2)
    weight = data.weight[deep]
    found = [(weight * x[deep]).sum() / weight.sum() for x in (data.path, data.path_exact)]
    np.testing.assert_allclose(found, means, rtol=0.03)
    assert weight.sum() == pytest.approx(len(at) * WIDTH**2, rel=0.03)
    unweighted = [x[deep].mean() for x in (data.path, data.path_exact)]
    assert (np.abs(np.array(unweighted) / means - 1) > 0.1).all()
    curve = reliability(data.path[deep], data.path_exact[deep], weights=weight, bins=1)
    np.testing.assert_allclose([curve.predicted[0], curve.measured[0]], found)
    assert curve.expected_error == pytest.approx(abs(means[0] - means[1]), abs=0.005)


def test_at_temperature_0_paths_are_not_known_below_the_first_level(make_trace):
    greedy = make_trace(law="deterministic", rule="greedy", sampling={"temperature": 0.0})
    data = calibration_data(greedy, depth=2)
    assert np.isnan(data.path_exact[data.depth == 1]).all()
    np.testing.assert_array_equal(data.path_exact[data.depth == 0], data.exact[data.depth == 0])
    with pytest.raises(InvalidCalibration, match="NaN, which marks unknown values"):
        reliability(data.path, data.path_exact, weights=data.weight)


def test_equal_weights_change_nothing_and_unequal_ones_widen_the_intervals():
    x, y = sample(lambda x: x**2, count=2000)
    plain, same = reliability(x, y), reliability(x, y, weights=np.full(len(x), 3.0))
    for name in ("edges", "counts", "predicted", "measured"):
        np.testing.assert_allclose(getattr(same, name), getattr(plain, name))
    assert same.expected_error == pytest.approx(plain.expected_error)
    np.testing.assert_allclose(same.high, plain.high)
    uneven = reliability(x, y, weights=np.random.default_rng(0).exponential(size=len(x)) ** 2)
    assert (uneven.high - uneven.low > plain.high - plain.low).mean() > 0.8
