"""Estimates written as JSON and read again, with their settings and origin; files that are refused."""

import json

import numpy as np
import pytest

from treespec.search import (
    AcceptanceEstimate,
    InvalidLimit,
    InvalidTrace,
    estimate_acceptance,
)

pytestmark = pytest.mark.filterwarnings("ignore::treespec.search.errors.SmallSample")


@pytest.mark.parametrize("by", ["rank", "depth"])
@pytest.mark.parametrize("interval", ["wilson", "bootstrap"])
def test_json_round_trip(make_trace, by, interval):
    found = estimate_acceptance(make_trace(texts=6), by=by, interval=interval, seed=3)
    text = found.to_json()
    again = AcceptanceEstimate.from_json(text)
    for name in ("rates", "low", "high", "hits", "trials"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
        np.testing.assert_allclose(json.loads(text)[name], getattr(found, name), atol=1e-6)
    for name in ("by", "law", "rule", "source", "level", "shrinkage", "warnings"):
        assert getattr(again, name) == getattr(found, name)
    assert again.to_json() == text
    assert max(map(len, text.splitlines()[:20])) < 2000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "tree"}, "kind = 'tree': must be 'acceptance'"),
        ({"by": "node"}, "by = 'node': must be 'rank' or 'depth'"),
        ({"shrinkage": float("nan")}, "holds NaN"),
        ({"shrinkage": 5.0}, "shrinkage = 5 shrinks"),
        ({"texts": {k: [[[1], [1]]] for k in ("hits", "trials", "mass")}}, "must hold one level"),
        ({"texts": {"hits": [[[2]]], "trials": [[[1]]], "mass": [[[1]]]}}, '"hits" in "texts"'),
        ({"texts": {"hits": [[[1]]], "trials": [[[1, 1]]], "mass": [[[1]]]}}, "of one shape"),
        ({"texts": {"hits": [[[1]]], "trials": [[[1]]], "mass": [[[-1]]]}}, '"mass" in "texts"'),
        ({"monotone": True}, "monotone = "),
    ],
)
def test_bad_json_is_refused(make_trace, change, words):
    data = json.loads(estimate_acceptance(make_trace()).to_json())
    with pytest.raises((InvalidTrace, InvalidLimit), match=words):
        AcceptanceEstimate.from_json(json.dumps(data | change))
    with pytest.raises(InvalidTrace, match="not JSON"):
        AcceptanceEstimate.from_json("{")


def test_an_estimate_remembers_settings_and_origin(make_trace):
    sampling = {"temperature": 0.7, "top_k": None, "top_p": 0.9, "min_p": None}
    trace = make_trace(texts=4, sampling=sampling, about={"models": {"draft": "a"}, "seed": 3})
    found = estimate_acceptance(trace)
    again = AcceptanceEstimate.from_json(found.to_json())
    for one in (found, again):
        assert one.sampling == sampling
        assert one.about == {"models": {"draft": "a"}, "seed": 3}
    data = json.loads(found.to_json())
    del data["sampling"], data["about"]  # as written before there were these
    data["monotone"] = False  # as written while there was this
    old = AcceptanceEstimate.from_json(json.dumps(data))
    assert (old.sampling, old.about) == ({}, {})
    np.testing.assert_array_equal(old.rates, found.rates)
    odd = estimate_acceptance(make_trace(about={"model": object()}))
    with pytest.raises(InvalidTrace, match="sampling and about must be plain data"):
        odd.to_json()
