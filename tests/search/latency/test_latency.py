"""Times entered, written and read; monotone fits; sums over the parts of a step; refusals."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treespec import TreeShape
from treespec.search import InvalidLatency, LatencyModel, NotMeasured
from treespec.search.latency import interpolation
from treespec.search.latency.interpolation import Curve

FULL = {
    "verify": {64: {1: [0.020, 0.022, 0.021], 4: 0.022, 16: 0.030}, 256: {1: 0.03, 16: 0.05}},
    "draft": {64: {1: 0.002, 4: [0.003, 0.005]}, 256: {1: 0.004, 4: 0.006}},
    "first": {64: 0.003, 256: [0.004, 0.006]},
    "draw": {1: 0.0001, 4: 0.0002},
    "assemble": {1: 0.0003, 16: 0.0018},
    "accept": {1: 0.0004, 16: 0.0007},
    "commit": {1: 0.0001, 16: 0.0004},
    "rest": 0.00005,
    "plain": {64: [0.0214, 0.0216], 256: 0.031},
}


def full(**changes):
    return LatencyModel.from_tables(**{**FULL, **changes})


def test_a_step_is_the_sum_of_its_parts():
    model = full()
    # levels expand 1, 2 and 2 nodes: the root to 2 children, then 1 each, then 1 and 3
    shape = TreeShape((-1, 0, 0, 1, 2, 3, 4, 4, 4))
    level = 0.002 + (0.004 - 0.002) / 3  # of two nodes, after 64 tokens: median 0.004 at four
    draws = 1 * 0.0001 + 3 * 0.0001  # root: 2 - 1; third: 3 - 1 for one node, and a second group
    assemble = 0.0003 + 8 / 15 * 0.0015
    draft, verify = 0.003 + 2 * level + draws + assemble, 0.022 + 5 / 12 * 0.008
    others = 0.0004 + 8 / 15 * 0.0003 + 0.0001 + 8 / 15 * 0.0003 + 0.00005
    assert model.step_s(shape, 64) == pytest.approx(draft + verify + others)


def test_plain_decoding():
    assert full().plain_s(64) == pytest.approx(0.0215)
    assert full().step_s(TreeShape.chain(0), 64) == pytest.approx(0.0215)
    assert full(plain=None).plain_s(64) == pytest.approx(0.021 + 0.0004 + 0.0001 + 0.00005)


def test_between_prefixes():
    model = full()
    assert model.verify_s(4, 64) == pytest.approx(0.022)
    assert model.verify_s(4, 256) == pytest.approx(0.034)
    assert model.verify_s(4, 112) == pytest.approx(0.022 + 0.25 * 0.012)
    assert model.draft_level_s(1, 160) == pytest.approx(0.003)
    assert model.verify_s(4) == model.verify_s(4, 64)  # the middle one of two is the first


def test_no_prefix_means_the_same_one_for_all_tables():
    """The tables were measured for different prefixes, whose middle ones differ."""
    verify = {16: {1: 0.01, 8: 0.02}, 64: {1: 0.02, 8: 0.03}, 256: {1: 0.05, 8: 0.06}}
    draft = {64: {1: 0.001, 8: 0.002}, 256: {1: 0.003, 8: 0.004}, 512: {1: 0.1, 8: 0.1}}
    model = LatencyModel.from_tables(
        verify=verify, draft=draft, accept={1: 0.1, 8: 0.1}, plain={16: 0.01, 256: 0.3}
    )
    assert model.prefix_at(None) == 64
    assert model.prefix_at(100) == 100
    shape = TreeShape.kary(2, 2)
    for ask in (
        lambda *where: model.step_s(shape, *where),
        lambda *where: model.at(*where).floor_s(np.array([5]), 2).tolist(),
        lambda *where: model.verify_s(4, *where),
        lambda *where: model.draft_level_s(4, *where),
        lambda *where: model.plain_s(*where),
        lambda *where: model.largest(*where),
    ):
        assert ask() == ask(64)
    apart = LatencyModel.from_tables(
        verify={16: {1: 0.01, 9: 0.02}}, draft={64: {1: 0.001, 9: 0.1}}
    )
    with pytest.raises(NotMeasured, match="draft: prefix = 16"):
        apart.step_s(shape)
    assert LatencyModel.from_tables(verify=0.02, draft={64: {1: 1.0}}).prefix_at(None) == 64
    assert LatencyModel.from_tables(verify=0.02, draft=0.001).prefix_at(None) is None


def test_sizes_may_be_numbers_of_numpy():
    sizes = np.array([1, 8])
    model = LatencyModel.from_tables(
        verify=dict(zip(sizes, [0.02, 0.03], strict=True)), draft=0.001
    )
    assert LatencyModel.from_json(model.to_json()).verify_s(8) == pytest.approx(0.03)


def test_without_a_first_pass_it_is_a_level():
    model = LatencyModel.from_tables(verify=0.02, draft={1: 0.002, 2: 0.003})
    assert model.step_s(TreeShape.kary(2, 2)) == pytest.approx(0.02 + 0.002 + 0.003)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda m: m.verify_s(17, 64), ["verify", "17", "from size 1 to 16", "--sizes"]),
        (lambda m: m.verify_s(4, 32), ["prefix = 32", "64 to 256", "--prefixes"]),
        (lambda m: m.verify_s(4, 300), ["prefix = 300"]),
        (lambda m: m.draft_level_s(5, 64), ["draft", "width 5", "1 to 4", "wider levels"]),
        (lambda m: m.step_s(TreeShape.independent_chains(5, 2), 64), ["width 5"]),
        (lambda m: m.verify_s(4, 64, batch=8), ["batch = 8", "known for 1"]),
        (lambda m: m.law_times("hub"), ["'hub'", "known for iid"]),
    ],
)
def test_nothing_is_extrapolated(ask, words):
    model = full(law="iid")
    with pytest.raises(NotMeasured) as caught:
        ask(model)
    for word in words:
        assert word in str(caught.value)


def test_laws():
    model = full(law="iid")
    assert model.step_s(TreeShape.chain(2), 64) == model.step_s(TreeShape.chain(2), 64, law="iid")
    anything = full()
    assert anything.step_s(TreeShape.chain(2), 64, law="hub") > 0


def test_batches():
    both = LatencyModel.of_batches({8: full(batch=8, verify=0.5), 1: full()})
    assert tuple(both.batches) == (1, 8)
    assert both.verify_s(4, 64, batch=8) == 0.5
    assert both.verify_s(4, 64) == full().verify_s(4, 64)
    # The times of eight texts alone need not be asked for by their number.
    eight = both.for_batch(8)
    assert tuple(eight.batches) == (8,)
    assert eight.verify_s(4, 64) == eight.verify_s(4, 64, batch=8) == 0.5
    assert eight.prefix_at(None) == both.prefix_at(None, 8)
    with pytest.raises(NotMeasured, match=r"treespec profile --batch 4"):
        both.for_batch(4)
    with pytest.raises(NotMeasured, match="batch = 1, but times are known for 2, 8"):
        LatencyModel.of_batches({2: full(batch=2), 8: full(batch=8)}).verify_s(4, 64)
    with pytest.raises(NotMeasured, match="batch = 8"):
        LatencyModel.of_batches({8: full()})
    for make in (LatencyModel.of_batches, LatencyModel):
        with pytest.raises(InvalidLatency, match="at least one batch size"):
            make({})


@given(
    st.dictionaries(
        st.integers(1, 99),
        st.lists(st.floats(0, 10), min_size=1, max_size=4),
        min_size=1,
        max_size=6,
    )
)
def test_curves_are_monotone_and_stay_within_the_medians(samples):
    curve = Curve("verify", "size", {k: tuple(v) for k, v in samples.items()})
    assert curve.sizes == tuple(sorted(samples))
    sizes = np.arange(curve.sizes[0], curve.sizes[-1] + 1)
    times = curve.weights(sizes) @ curve.fitted
    assert (np.diff(times) >= -1e-12).all()
    medians = [np.median(own) for own in samples.values()]
    assert min(medians) - 1e-9 <= times.min() <= times.max() <= max(medians) + 1e-9
    ordered = [np.median(samples[size]) for size in curve.sizes]
    if all(a <= b for a, b in pairwise(ordered)):
        assert curve.fitted == pytest.approx(ordered)


def noisy(rng, medians, repeats=27):
    """Samples around the given times, up to an eighth to each side."""
    return {
        size: tuple(time * np.exp(0.12 * rng.standard_normal(repeats)))
        for size, time in medians.items()
    }


def test_a_fall_that_is_proved_is_kept():
    """As on a CPU whose matrix library is slow for 2, 3 and 7 tokens."""
    times = {1: 42, 2: 75, 3: 99, 4: 62, 5: 60, 6: 71, 7: 84, 8: 61, 10: 78, 16: 79, 32: 106}
    samples = noisy(np.random.default_rng(0), times)
    curve = Curve("verify", "size", samples)
    assert [curve.sizes[place] for place in curve.falls] == [4, 8]
    assert curve.fitted == pytest.approx(list(times.values()), rel=0.08)
    drawn = curve.drawn(np.random.default_rng(1), 500)
    assert (drawn[:, 2] > drawn[:, 3]).all()
    assert np.median(drawn, axis=0) == pytest.approx(curve.fitted, rel=0.05)
    few = Curve("verify", "size", {size: own[:7] for size, own in samples.items()})
    assert few.falls == ()
    assert (np.diff(few.fitted) >= 0).all()


def test_noise_is_no_fall():
    rng, flat = np.random.default_rng(3), dict.fromkeys(range(1, 21), 50.0)
    curves = [Curve("verify", "size", noisy(rng, flat)) for _ in range(600)]
    assert 0 < sum(curve.falls != () for curve in curves) <= 15  # 1 % promised: 6


def test_the_floor_holds_where_wide_levels_are_quicker():
    rng = np.random.default_rng(5)
    level = Curve("draft", "width", noisy(rng, {1: 9.0, 2: 3.0, 8: 4.0}))
    model = LatencyModel.from_tables(verify={1: 1.0, 16: 2.0}, draft=dict(level.samples))
    for shape in (TreeShape.kary(2, 2), TreeShape.expansion([2, 2]), TreeShape.chain(2)):
        floor = model.at().floor_s(np.array([shape.size]), shape.depth)[0]
        assert model.step_s(shape) >= floor - 1e-12


def test_the_fit_weighs_sizes_by_their_samples():
    curve = Curve("verify", "size", {1: (3.0,), 2: (1.0, 1.0, 1.0)})
    assert curve.fitted.tolist() == pytest.approx([1.5, 1.5])


def test_resamples_are_of_the_samples():
    rng, samples = np.random.default_rng(0), {1: (1.0, 2.0, 3.0, 9.0), 2: (4.0,)}
    curve = Curve("verify", "size", samples)
    drawn = curve.drawn(np.random.default_rng(1), 4000)
    again = np.stack(
        [
            Curve(
                "verify",
                "size",
                {n: tuple(rng.choice(own, len(own))) for n, own in samples.items()},
            ).fitted
            for _ in range(4000)
        ]
    )
    assert drawn.mean(axis=0) == pytest.approx(again.mean(axis=0), abs=0.1)
    assert drawn.std(axis=0) == pytest.approx(again.std(axis=0), abs=0.1)
    assert (drawn[:, 1] >= drawn[:, 0]).all()
    assert set(drawn[:, 0]) == set(again[:, 0])


def of_rounds(*rounds, more=""):
    verify = json.dumps({"1": 20.0, "4": [list(of) for of in rounds]})
    return LatencyModel.from_json(
        f'{{"version": 1, "batches": {{"1": {{"verify_ms": {verify}, "laws": {{"iid": '
        f'{{"level_ms": {[[1.0] for _ in rounds]}}}}}{more}}}}}}}'
    )


def test_rounds_are_read_and_written():
    model = of_rounds([24.0, 26.0], [], [28.0])
    curve = model.times()["iid"].verify.curves[None]
    assert curve.samples[4] == pytest.approx((0.024, 0.026, 0.028))
    assert curve.rounds == {4: (0, 0, 2)}
    assert model.round_count == 3
    assert '"4": [[24.0, 26.0], [], [28.0]]' in model.to_json()
    assert LatencyModel.from_json(model.to_json()).to_json() == model.to_json()
    assert full().round_count == 0


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ("[[1.0], 2.0]", "mixes times with lists of the times of rounds"),
        ("[[], []]", "is empty"),
        ('[["a"]]', "must be a number"),
        ("[[[1.0]]]", "must be a number"),
    ],
)
def test_rounds_that_are_none(times, words):
    text = of_rounds([1.0]).to_json().replace("[[1.0]]", times, 1)
    with pytest.raises(InvalidLatency, match=words):
        LatencyModel.from_json(text)


def test_rounds_are_resampled_together():
    """A slow round is slow for all sizes; common factors cancel in the ratio of two sizes."""
    rng, rounds = np.random.default_rng(0), 9
    slow = np.exp(0.2 * rng.standard_normal(rounds))
    model = of_rounds(*([24.0 * one] for one in slow))
    level = tuple(0.001 * one for one in slow)
    verify = model.times()["iid"].verify.curves[None]
    other = Curve("draft", "width", {1: level}, rounds={1: tuple(range(rounds))})
    times = rng.multinomial(rounds, np.full(rounds, 1 / rounds), size=400).astype(float)
    drawn = [curve.drawn(rng, 400, times)[:, -1] for curve in (verify, other)]
    np.testing.assert_allclose(drawn[0] / drawn[1], 24.0)
    assert drawn[0].std() > 0.5e-3
    each = np.array([np.median(np.repeat(slow, row.astype(int))) for row in times])
    np.testing.assert_allclose(drawn[0], 0.024 * each)
    apart = [curve.drawn(rng, 400)[:, -1] for curve in (verify, other)]
    assert (apart[0] / apart[1]).std() > 1


def test_a_size_that_no_drawn_round_has_keeps_its_median():
    curve = Curve("draft", "width", {1: (1.0, 3.0)}, rounds={1: (0, 2)})
    numbers = np.array([[0.0, 3.0, 0.0], [2.0, 1.0, 0.0], [1.0, 0.0, 2.0]])
    assert curve.drawn(np.random.default_rng(0), 3, numbers)[:, 0].tolist() == [2.0, 1.0, 3.0]


def test_json_and_back(tmp_path):
    model = LatencyModel.of_batches({1: full(law="iid", about={"pair": "a"}), 4: full(batch=4)})
    again = LatencyModel.load(model.save(tmp_path / "latency.json"))
    assert again.to_json() == model.to_json()
    assert again.about == {"pair": "a"}
    for shape in (TreeShape.chain(3), TreeShape.kary(2, 3), TreeShape.chain(0)):
        for where in ({"prefix": 100}, {"prefix": 256, "batch": 4}):
            assert again.step_s(shape, **where) == pytest.approx(model.step_s(shape, **where))
    assert "verify_ms" in model.to_json()
    assert '"1": [20.0, 22.0, 21.0]' in model.to_json()  # milliseconds


def test_what_disturbed_the_times_is_kept(tmp_path):
    said = "2 of 3 rounds were disturbed: other processes used up to 71 % of the CPU."
    model = LatencyModel({**full().batches}, {"pair": "x"}, said)
    again = LatencyModel.load(model.save(tmp_path / "times.json"))
    assert again.disturbed == said
    assert full().disturbed is None
    assert '"disturbed"' not in full().to_json()  # as older versions write and read it
    both = LatencyModel.of_batches({1: model, 2: LatencyModel(full(batch=2).batches, {}, said)})
    assert both.disturbed == said
    for wrong in ("", 3):
        text = full().to_json().replace('"about"', f'"disturbed": {json.dumps(wrong)}, "about"')
        with pytest.raises(InvalidLatency, match="disturbed"):
            LatencyModel.from_json(text)


def test_typed_by_hand():
    times = {"verify_ms": {"1": 20, "16": 24}, "laws": {"any": {"level_ms": 2}}}
    text = json.dumps({"version": 1, "batches": {"1": times}})
    model = LatencyModel.from_json(text)
    assert model.step_s(TreeShape.kary(2, 2)) == pytest.approx(0.020 + 6 / 15 * 0.004 + 0.004)


def place(path, value):
    """The JSON of a model with one changed entry; a value of `...` deletes it."""
    data = json.loads(full(law="iid").to_json())
    *keys, last = path.split("/")
    inner = data
    for key in keys:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ["line 1"]),
        ('{"version": 1, "version": 1}', ["version", "twice"]),
        ('{"version": NaN, "batches": {}}', ["NaN"]),
        (place("version", 2), ["version = 2", "must be 1"]),
        (place("version", True), ["version = True", "must be 1"]),
        (place("batches", {}), ["batches", "at least one"]),
        (place("batches/1/verfy_ms", 3), ["batches.1.verfy_ms", "unknown key", "verify_ms"]),
        (place("batches/1/verify_ms", ...), ["batches.1.verify_ms is missing"]),
        (place("batches/1/verify_ms", {}), ["verify_ms", "at least one"]),
        (
            place("batches/1/verify_ms/64/1", -2),
            ["batches.1.verify_ms = ", "64: 1: -2: a time must be"],
        ),
        (place("batches/1/verify_ms/64/1", "20"), ["64: 1: '20'"]),
        (place("batches/1/verify_ms/64/1", []), ["64: 1: ", "empty"]),
        (place("batches/1/verify_ms/64", 3), ["mixes"]),
        (place("batches/1/laws", {}), ["batches.1.laws", "at least one"]),
        (place("batches/1/laws/iid/level_ms", ...), ["laws.iid.level_ms is missing"]),
        (
            place("batches/1/laws/iid/plain_ms/64", {"1": 3}),
            ["plain_ms = ", "64: is a table", "does not depend"],
        ),
        (place("batches/1/rest_ms", None), ["rest_ms = null", "at least 0"]),
    ],
)
def test_files_are_read_strictly(text, words, tmp_path):
    path = tmp_path / "latency.json"
    path.write_text(text)
    with pytest.raises(InvalidLatency) as caught:
        LatencyModel.load(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_files_that_are_none(tmp_path):
    with pytest.raises(InvalidLatency, match="No such file"):
        LatencyModel.load(tmp_path / "missing.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidLatency, match="UTF-8"):
        LatencyModel.load(tmp_path / "bytes.json")


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"verify": {1: -0.1}}, ["verify = ", "1: -0.1"]),
        ({"verify": {1: float("nan")}}, ["verify = ", "1: nan"]),
        ({"draft": {0: 0.1}}, ["draft", "0"]),
        ({"draft": "fast"}, ["draft = 'fast'"]),
        ({"batch": 0}, ["batch", "0"]),
        ({"accept": {}}, ["accept", "at least one"]),
    ],
)
def test_tables_are_checked(tables, words):
    with pytest.raises(InvalidLatency) as caught:
        LatencyModel.from_tables(**({"verify": 0.02, "draft": 0.001} | tables))
    for word in words:
        assert word in str(caught.value)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=14))
def test_no_shape_is_faster_than_the_floor(draws):
    shape = TreeShape((-1, *(draw % (node + 1) for node, draw in enumerate(draws))))
    model = LatencyModel.from_tables(
        **FULL | {"verify": {1: 0.02, 16: 0.03}, "draft": {1: 0.002, 16: 0.006}},
    )
    wide = LatencyModel.from_tables(
        verify={1: 0.02, 16: 0.03},
        draft={1: 0.002, 16: 0.006},
        first=0.003,
        accept={1: 0.1, 16: 0.2},
    )
    for one in (wide, model):
        try:
            seconds = one.step_s(shape, 64)
        except NotMeasured:
            continue
        floor = one.at(64).floor_s(np.array([shape.size]), shape.depth)[0]
        assert seconds >= floor - 1e-12


def test_resamples_are_made_monotone_alike_in_parts_of_any_size(monkeypatch):
    rng = np.random.default_rng(0)
    samples = {size: tuple(rng.normal(1, 0.2, 5)) for size in range(1, 9)}
    whole = Curve("verify", "size", samples).drawn(np.random.default_rng(1), 40)
    monkeypatch.setattr(interpolation, "MOST_CELLS", 3 * 8**2)
    parts = Curve("verify", "size", samples).drawn(np.random.default_rng(1), 40)
    assert (whole == parts).all()
    assert (np.diff(whole, axis=1) >= 0).all()


def test_models_of_older_profiles_are_named_as_today():
    text = full(about={"models": {"target": "a", "grow": "50M"}}).to_json()
    assert LatencyModel.from_json(text).about == {"models": {"target": "a", "enlarge": "50M"}}
