"""Rates and times of several laws: valid combinations, and joint rankings."""

import json

import pytest

from treespec.search import (
    InvalidAcceptance,
    InvalidLimit,
    LatencyModel,
    NotMeasured,
    best_tree,
)


def test_laws_are_ranked_together(two_laws, measured):
    rates = {"iid": [0.6, 0.1], "without_replacement": measured([0.6, 0.25, 0.1])}
    ranking = best_tree(rates, two_laws(), max_size=16)
    assert {row.law for row in ranking.rows} == set(rates)
    assert ranking.best.law == "without_replacement"
    assert best_tree(rates, two_laws(), max_size=16, laws=["iid"]).best.law == "iid"
    assert best_tree([0.6], two_laws(), max_size=4, laws=["iid"]).best.law == "iid"
    assert best_tree(measured([0.6], law="iid"), two_laws(), max_size=4).best.law == "iid"


def test_what_laws_belong_to_must_be_said(two_laws, measured):
    with pytest.raises(InvalidAcceptance, match="does not say which law"):
        best_tree([0.6], two_laws())
    with pytest.raises(InvalidAcceptance, match="of law 'iid'"):
        best_tree(measured([0.6], law="iid"), two_laws(), laws=["without_replacement"])
    with pytest.raises(InvalidAcceptance, match="rates for iid"):
        best_tree({"iid": [0.6]}, two_laws(), laws=["without_replacement"])
    with pytest.raises(NotMeasured, match="'hub'"):
        best_tree({"hub": [0.6]}, two_laws())
    both = {"iid": [0.6], "without_replacement": [0.6]}
    with pytest.raises(InvalidLimit, match="different sampling settings"):
        best_tree(both, two_laws(sampling="T=0.5"))
    best_tree(both, two_laws(sampling="T=0.5"), laws=list(both), max_size=4)


def test_acceptance_and_times_of_different_settings_are_not_mixed(flat, two_laws, two_rows):
    cold = two_rows(sampling={"temperature": 0.5, "top_p": None})
    with pytest.raises(InvalidLimit, match=r"acceptance of iid \(T=0\.5\), times of iid \(T=1\)"):
        best_tree(cold, two_laws(), max_size=4)
    assert best_tree(cold, two_laws(), max_size=4, laws=["iid"]).best.law == "iid"
    # Times of unknown settings may be combined with any acceptance.
    assert best_tree(cold, flat, max_size=4).best.law == "iid"
    warm = two_rows(sampling={"temperature": 1.0})
    assert best_tree(warm, two_laws(), max_size=4).best.law == "iid"
    with pytest.raises(InvalidLimit, match=r"T=0\.5.*T=1"):
        best_tree({"iid": cold, "hub": warm}, flat, max_size=4)


def test_laws_that_were_measured_on_the_same_texts_are_resampled_alike(two_laws, two_rows):
    both = {"iid": two_rows(), "without_replacement": two_rows(law="without_replacement")}
    twins = json.loads(two_laws().to_json())
    laws = twins["batches"]["1"]["laws"]
    laws["without_replacement"] = laws["iid"]
    latency = LatencyModel.from_json(json.dumps(twins))
    ranking = best_tree(both, latency, max_size=8)
    twin = [row for row in ranking.rows if row.shape == ranking.best.shape]
    assert [row.speedup for row in twin] == [pytest.approx(ranking.best.speedup)] * 2
    assert ranking.best.speedup.low < ranking.best.speedup.high
