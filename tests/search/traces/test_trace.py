import io
import json
import warnings
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from treespec.search import InvalidTrace, SearchError, Trace, calibration_data, estimate_acceptance
from treespec.search.traces.trace import VERSION

ARRAYS = ("offsets", "tokens", "ranks", "kept", "probs", "accepted")


def test_what_is_saved_is_loaded(make_trace, tmp_path):
    trace = make_trace(forced=True, about={"models": {"target": "ü"}, "seeds": [1, 2]})
    path = trace.save(tmp_path / "trace.npz")
    again = Trace.load(path)
    for name in ARRAYS:
        np.testing.assert_allclose(getattr(again, name), getattr(trace, name), atol=1e-7)
        assert getattr(again, name).dtype == getattr(trace, name).dtype
    for name in ("law", "rule", "sampling", "width", "forced", "about"):
        assert getattr(again, name) == getattr(trace, name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["trace.npz"]


def test_models_of_older_traces_are_named_as_today(make_trace, tmp_path):
    trace = make_trace(about={"models": {"target": "a", "grow": "50M"}})
    again = Trace.load(trace.save(tmp_path / "trace.npz"))
    assert again.about == {"models": {"target": "a", "enlarge": "50M"}}


def test_files_of_excerpts_are_kept(make_trace, tmp_path):
    trace = make_trace(texts=4, files=[7, 3, 7, 3])
    again = Trace.load(trace.save(tmp_path / "trace.npz"))
    assert again.files.tolist() == [7, 3, 7, 3]
    assert again.file_of.tolist() == [1, 0, 1, 0]
    assert again.samples == 2
    alone = make_trace(texts=3)
    assert (alone.samples, alone.file_of.tolist()) == (3, [0, 1, 2])
    with zipfile.ZipFile(alone.save(tmp_path / "alone.npz")) as file:
        assert "files.npy" not in file.namelist()  # as older versions wrote it


@pytest.mark.filterwarnings("ignore")
def test_excerpts_of_a_file_are_counted_together(make_trace):
    trace = make_trace(texts=6, positions=30)
    apart, together = (
        estimate_acceptance(one, interval="bootstrap")
        for one in (trace, replace(trace, files=[0, 0, 1, 1, 2, 2]))
    )
    assert (apart.texts, together.texts) == (6, 3)
    np.testing.assert_allclose(apart.rates, together.rates)
    samples = calibration_data(replace(trace, law="deterministic", files=[0, 0, 1, 1, 2, 2]))
    assert set(samples.text) == {0, 1, 2}


def test_texts_and_what_is_inside():
    trace = Trace(
        offsets=[0, 3, 5], tokens=[1] * 5, ranks=[0] * 5, probs=np.ones((5, 1)), accepted=np.ones((5, 1)),
        law="deterministic", rule="greedy", sampling={}, width=1, kept=[2, 2],
    )  # fmt: skip
    assert trace.texts == 2
    assert trace.inside.tolist() == [True, True, False, True, True]
    assert trace.text_of.tolist() == [0, 0, 0, 1, 1]
    assert replace(trace, kept=None).inside.all()


def test_nobody_writes_into_a_trace(make_trace):
    ranks = np.zeros(48, dtype=np.int64)
    trace = make_trace(texts=1, ranks=ranks)
    ranks[0] = 1
    assert trace.ranks[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        trace.ranks[0] = 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"offsets": [0]}, "at least one text"),
        ({"offsets": [0, 0, 48]}, "no text may be empty"),
        ({"offsets": [0, 47]}, "rise from 0 to the number of positions, 48"),
        ({"tokens": [0.5] * 48}, "must be a row of integers"),
        ({"tokens": [-1] * 48}, "ids start at 0"),
        ({"ranks": [4] * 48}, "ranks must be in 0..3"),
        ({"ranks": [-1] * 48}, "ranks must be in 0..3"),
        ({"ranks": [0]}, r"ranks has shape \[1\]"),
        ({"probs": np.full((48, 3), np.nan)}, r"probs must hold probabilities in \[0, 1\]"),
        ({"probs": np.full((48, 2), 0.1)}, r"need \[48, 3\]"),
        ({"accepted": np.full((48, 3), -0.1)}, r"accepted must hold probabilities in \[0, 1\]"),
        ({"accepted": np.full((48, 3), 0.4)}, "accepted sums to more than 1"),
        ({"kept": [0]}, "kept must be at least 1"),
        ({"kept": [49]}, "kept must be at least 1"),
        ({"kept": [1, 1]}, "kept has shape"),
        ({"files": [1, 1]}, "files has shape"),
        ({"files": ["a"]}, "files = "),
        ({"law": "bogus"}, "'bogus' is not a law"),
        ({"width": 0}, "width = 0"),
    ],
)
def test_what_does_not_fit_together_is_refused(make_trace, change, words):
    with pytest.raises(InvalidTrace, match=words) as error:
        make_trace(texts=1, **change)
    assert isinstance(error.value, SearchError)


def archive(path, members):
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


@pytest.fixture
def members(make_trace, tmp_path):
    """The members of a valid file, which tests then damage."""
    path = make_trace().save(tmp_path / "good.npz")
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def npy(array, **more):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), **more)
    return buffer.getvalue()


def with_meta(members, **change):
    meta = json.loads(np.lib.format.read_array(io.BytesIO(members["meta.npy"])).tobytes())
    text = json.dumps({k: v for k, v in (meta | change).items() if v is not None}).encode()
    return members | {"meta.npy": npy(np.frombuffer(text, np.uint8))}


class Bomb:
    """Code that a pickle would run."""

    def __reduce__(self):
        return (exec, ("raise AssertionError('a pickle ran')",))


CASES = {
    "a pickle": (
        lambda m: m | {"ranks.npy": npy(np.array([Bomb()] * 3, dtype=object))}, "allow_pickle=False",
    ),
    "a missing member": (lambda m: {k: v for k, v in m.items() if k != "kept.npy"}, "instead of"),
    "another type": (lambda m: m | {"ranks.npy": npy(np.zeros(3))}, "ranks holds float64"),
    "no array at all": (lambda m: m | {"ranks.npy": b"hello"}, "ranks holds"),
    "other lengths": (lambda m: m | {"ranks.npy": npy(np.zeros(3, "<i4"))}, "ranks has shape"),
    "no JSON": (lambda m: m | {"meta.npy": npy(np.frombuffer(b"{", np.uint8))}, "not JSON"),
    "a newer version": (lambda m: with_meta(m, version=VERSION + 1), "newer treespec"),
    "no version": (lambda m: with_meta(m, version=None), "version is missing"),
    "a missing key": (lambda m: with_meta(m, law=None), "law is missing"),
    "an unknown key": (lambda m: with_meta(m, colour="red"), "colour: unknown key"),
    "a wrong value": (lambda m: with_meta(m, width="3"), "width = '3': must be an integer"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_files_are_refused_and_nothing_in_them_runs(name, members, tmp_path):
    make, words = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of headers that numpy itself finds odd
        path = archive(tmp_path / "bad.npz", make(members))
        with pytest.raises(InvalidTrace, match=words):
            Trace.load(path)


def test_no_files_and_torn_files_are_refused(make_trace, tmp_path):
    with pytest.raises(InvalidTrace, match="No such file"):
        Trace.load(tmp_path / "none.npz")
    whole = make_trace().save(tmp_path / "whole.npz").read_bytes()
    torn = tmp_path / "torn.npz"
    for cut in (0, 10, len(whole) // 2, len(whole) - 30):
        torn.write_bytes(whole[:cut])
        with pytest.raises(InvalidTrace, match="not an archive of arrays"):
            Trace.load(torn)
    spoilt = bytearray(whole)
    spoilt[len(whole) // 3] ^= 255
    torn.write_bytes(spoilt)
    with pytest.raises(InvalidTrace):
        Trace.load(torn)


def test_a_file_that_unpacks_to_too_much_is_not_unpacked(members, tmp_path, monkeypatch):
    monkeypatch.setattr("treespec.files.ARRAY_BYTES", 1000)
    with pytest.raises(InvalidTrace, match="1,000"):
        Trace.load(archive(tmp_path / "large.npz", members))


def test_what_is_no_plain_data_is_not_written(make_trace, tmp_path):
    with pytest.raises(InvalidTrace, match="plain data"):
        make_trace(about={"model": object()}).save(tmp_path / "a.npz")
    with pytest.raises(InvalidTrace, match="cannot be written"):
        make_trace().save(tmp_path / "no" / "a.npz")
    assert not list(tmp_path.iterdir())
