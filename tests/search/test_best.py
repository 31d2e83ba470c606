"""The ranking against every tree there is; intervals, regret, laws, prefixes, batches; refusals."""

import json
from functools import cache

import numpy as np
import pytest

from search import (
    AcceptanceEstimate,
    InfeasibleTree,
    InvalidAcceptance,
    InvalidLatency,
    InvalidLimit,
    LatencyModel,
    NotMeasured,
    Records,
    best_tree,
    best_trees,
    estimate_acceptance,
    expected_tokens,
)
from search.candidates import candidate_sizes
from search.expected import tokens_of
from search.intervals import draws as drawn_texts
from search.intervals import expanded_tail
from search.ranking import bounds
from search.replay import replay
from treespec import TreeShape
from treespec.testing import plane_trees

LARGEST = 7
GAP = 0.025
"""What wide levels that cost more than narrow ones may cost the frontier, at seven nodes."""


class Measured:
    """An estimate as `best_tree` takes it: counts out of some trials."""

    def __init__(self, rates, trials=400, law="any", warnings=()):
        self.rates, self.trials, self.law, self.warnings = np.array(rates), trials, law, warnings

    def __array__(self, dtype=None, copy=None):
        return self.rates.astype(dtype or float)

    def resample(self, rng):
        rates = np.atleast_2d(self.rates)
        drawn = [rng.multinomial(self.trials, [*row, 1 - row.sum()])[:-1] for row in rates]
        return np.reshape(drawn, self.rates.shape) / self.trials


def random_case(rng, spread):
    """Rates of seven ranks, and times; `spread` is how much more wide levels cost."""
    rates = rng.dirichlet(np.full(LARGEST + 1, 0.7))[:-1]
    if rng.random() < 0.5:
        rates = -np.sort(-rates)
    if rng.random() < 0.2:
        rates[1:] *= 0.02
    if rng.random() < 0.3:
        rates = np.stack([rates, rates[::-1], *[0.5 * rates] * 4])
    counts = range(1, LARGEST + 1)
    verify = dict(zip(counts, 1 + np.cumsum(rng.exponential(0.05, LARGEST)), strict=True))
    level, draft = rng.choice([0.02, 0.1, 0.3]), None
    if spread:
        growth = 1 + np.cumsum(rng.exponential(spread, LARGEST))
        draft = dict(zip(counts, level * growth, strict=True))
    return rates, LatencyModel.from_tables(
        verify=verify, draft=draft or level, accept={1: 0.01, LARGEST: 0.05}
    )


@cache
def all_trees():
    return [shape for size in range(2, LARGEST + 1) for shape in plane_trees(size)]


def fastest_of_all(rates, latency):
    """Tokens per second of the fastest of all trees, chains and plain decoding among them."""
    trees = [shape for shape in all_trees() if rates.ndim == 1 or shape.depth <= len(rates)]
    seconds = latency.evaluate(latency.step_terms(trees, None, None))
    tokens = [expected_tokens(shape, rates) for shape in trees]
    return max(np.max(tokens / seconds), 1 / latency.plain_s())


def test_where_times_depend_on_size_and_depth_the_first_is_the_fastest_of_all_trees():
    rng, kinds = np.random.default_rng(1), set()
    for _ in range(40):
        rates, latency = random_case(rng, 0.0)
        best = best_tree(rates, latency, max_size=LARGEST, draws=40).best
        assert best.tokens_per_s.estimate == pytest.approx(fastest_of_all(rates, latency))
        kinds.add(best.kind)
    assert kinds == {"tree", "chain", "plain"}


def test_where_wide_levels_cost_more_little_is_lost():
    rng, gaps = np.random.default_rng(2), []
    for i in range(30):
        rates, latency = random_case(rng, (0.05, 0.2, 1.0)[i % 3])
        best = best_tree(rates, latency, max_size=LARGEST, draws=40).best
        gaps.append(1 - best.tokens_per_s.estimate / fastest_of_all(rates, latency))
    assert min(gaps) > -1e-9
    assert max(gaps) < GAP


FLAT = LatencyModel.from_tables(verify={1: 0.020, 64: 0.026}, draft=0.0005)
"""Where trees pay: a pass over 64 nodes takes a third longer than one over one."""

NOISY_TABLES = {
    "verify": {
        1: [0.0198, 0.0200, 0.0203, 0.0199, 0.0201], 64: [0.024, 0.026, 0.028, 0.025, 0.027],
    },
    "draft": [0.0005, 0.0006, 0.0004],
}  # fmt: skip
NOISY = LatencyModel.from_tables(**NOISY_TABLES)


def noisy_again(rng):
    """A repetition of these measurements: each cell's samples, drawn with replacement."""
    verify = {size: rng.choice(times, len(times)) for size, times in NOISY_TABLES["verify"].items()}
    return LatencyModel.from_tables(verify=verify, draft=rng.choice(NOISY_TABLES["draft"], 3))


def test_rows_say_what_they_predict():
    rates = [0.6, 0.2, 0.1]
    ranking = best_tree(rates, FLAT)
    speeds = [row.tokens_per_s.estimate for row in ranking.rows]
    assert speeds == sorted(speeds, reverse=True)
    assert len({row.shape for row in ranking.rows}) == len(ranking.rows)
    for row in ranking.rows:
        assert row.tokens_per_step.estimate == pytest.approx(expected_tokens(row.shape, rates))
        assert row.step_s.estimate == pytest.approx(FLAT.step_s(row.shape))
        assert row.tokens_per_s.estimate == pytest.approx(
            expected_tokens(row.shape, rates) / FLAT.step_s(row.shape)
        )
        assert row.speedup.estimate == pytest.approx(row.tokens_per_s.estimate * 0.020)
        assert row.speedup.low == pytest.approx(row.speedup.high)  # nothing was measured twice
    assert {row.size for row in ranking.rows if row.kind == "chain"} == set(range(2, 65))
    assert ranking.plain.shape.size == 1
    assert ranking.tree_beats_chain == 1.0
    assert f"Use the tree of {ranking.best.size} nodes" in ranking.verdict
    assert ranking.verdict in str(ranking)
    data = json.loads(ranking.to_json())
    assert data["rows"][0]["parents"] == list(ranking.best.shape.parents)
    assert data["rows"][0]["step_ms"]["estimate"] == pytest.approx(
        1e3 * ranking.best.step_s.estimate
    )


def test_a_chain_or_plain_decoding_can_be_the_answer():
    steep = LatencyModel.from_tables(verify={1: 0.020, 8: 0.055}, draft=0.001)
    chain = best_tree([0.9, 0.01], steep)
    assert chain.best.kind == "chain"
    assert chain.best is chain.chain
    assert "Use the chain of" in chain.verdict
    assert chain.tree_beats_chain == 0.0
    plain = best_tree([0.1], LatencyModel.from_tables(verify=0.02, draft=0.01), max_size=8)
    assert plain.best is plain.plain
    assert "Decode plainly" in plain.verdict
    assert plain.tree is None
    assert np.isnan(plain.tree_beats_chain)
    assert json.loads(plain.to_json())["tree_beats_chain"] is None


def test_intervals_come_from_both_inputs():
    rates = Measured([0.6, 0.2, 0.1])
    both = best_tree(rates, NOISY).best
    of_times = best_tree(rates.rates, NOISY, sizes=[both.size]).best
    of_rates = best_tree(rates, FLAT, sizes=[both.size]).best
    assert of_times.tokens_per_step.low == pytest.approx(of_times.tokens_per_step.high)
    assert of_rates.step_s.low == pytest.approx(of_rates.step_s.high)
    assert both.speedup.low < both.speedup.estimate < both.speedup.high
    widths = [row.speedup.high - row.speedup.low for row in (both, of_times, of_rates)]
    assert widths[0] > max(widths[1:]) > min(widths[1:]) > 0.01


def test_intervals_are_those_of_a_plain_loop_over_resamples():
    rates, draws = Measured([0.6, 0.2, 0.1], trials=100), 400
    row = best_tree(rates, NOISY, draws=draws, seed=3, level=0.9).best
    rng, speeds = np.random.default_rng(8), []
    for _ in range(draws):
        latency = noisy_again(rng)
        tokens = expected_tokens(row.shape, rates.resample(rng))
        speeds.append(tokens / latency.step_s(row.shape) * latency.plain_s())
    low, high = np.quantile(speeds, [0.05, 0.95])
    assert (row.speedup.low, row.speedup.high) == pytest.approx((low, high), rel=0.03)


def test_many_tables_at_once():
    rng = np.random.default_rng(0)
    for shape in (TreeShape.kary(2, 3), TreeShape.chain(4), TreeShape((-1, 0, 0, 2, 2, 3, 5))):
        tables = rng.dirichlet(np.ones(4), size=(5, 4))[..., :3]
        expected = [expected_tokens(shape, table) for table in tables]
        assert tokens_of(shape, tables, by_depth=True) == pytest.approx(expected)
        expected = [expected_tokens(shape, table[0]) for table in tables]
        assert tokens_of(shape, tables[:, :1], by_depth=False) == pytest.approx(expected)


def test_the_probability_that_the_tree_beats_the_chain():
    near = LatencyModel.from_tables(verify={1: 0.020, 4: 0.0226, 8: 0.04}, draft=0.001)
    unsure = best_tree(Measured([0.55, 0.22], trials=60), near, draws=400)
    assert 0.05 < unsure.tree_beats_chain < 0.95
    sure = best_tree(Measured([0.55, 0.22], trials=60), FLAT)
    assert sure.tree_beats_chain > 0.99


def test_regret():
    ranking = best_tree(Measured([0.6, 0.2, 0.1]), NOISY)
    assert ranking.regret(ranking.best.shape) == (0.0, 0.0, 0.0)
    chain = ranking.regret(TreeShape.chain(3))
    expected = 1 - ranking.rows[0].tokens_per_s.estimate ** -1 * next(
        row.tokens_per_s.estimate for row in ranking.rows if row.shape == TreeShape.chain(3)
    )
    assert chain.estimate == pytest.approx(expected)
    assert 0 < chain.low < chain.estimate < chain.high
    plain = ranking.regret(TreeShape.chain(0))
    assert plain.estimate == pytest.approx(1 - 1 / ranking.best.speedup.estimate)
    with pytest.raises(InvalidLimit, match="'hub'"):
        ranking.regret(TreeShape.chain(3), "hub")
    with pytest.raises(NotMeasured):
        ranking.regret(TreeShape.chain(80))


def two_laws(sampling="T=1"):
    """Independent draws that are cheap and drawn children that are dear, in one file."""
    own = {"level_ms": 0.5, "accept_ms": 0.1, "sampling": "T=1"}
    laws = {"iid": own, "without_replacement": own | {"draw_ms": 0.2, "sampling": sampling}}
    batch = {"verify_ms": {"1": 20, "32": 26}, "laws": laws}
    return LatencyModel.from_json(json.dumps({"version": 1, "batches": {"1": batch}}))


def test_laws_are_ranked_together():
    rates = {"iid": [0.6, 0.1], "without_replacement": Measured([0.6, 0.25, 0.1])}
    ranking = best_tree(rates, two_laws(), max_size=16)
    assert {row.law for row in ranking.rows} == set(rates)
    assert ranking.best.law == "without_replacement"
    assert best_tree(rates, two_laws(), max_size=16, laws=["iid"]).best.law == "iid"
    assert best_tree([0.6], two_laws(), max_size=4, laws=["iid"]).best.law == "iid"
    assert best_tree(Measured([0.6], law="iid"), two_laws(), max_size=4).best.law == "iid"


def test_what_laws_belong_to_must_be_said():
    with pytest.raises(InvalidAcceptance, match="does not say which law"):
        best_tree([0.6], two_laws())
    with pytest.raises(InvalidAcceptance, match="of law 'iid'"):
        best_tree(Measured([0.6], law="iid"), two_laws(), laws=["without_replacement"])
    with pytest.raises(InvalidAcceptance, match="rates for iid"):
        best_tree({"iid": [0.6]}, two_laws(), laws=["without_replacement"])
    with pytest.raises(NotMeasured, match="'hub'"):
        best_tree({"hub": [0.6]}, two_laws())
    both = {"iid": [0.6], "without_replacement": [0.6]}
    with pytest.raises(InvalidLimit, match="different sampling settings"):
        best_tree(both, two_laws(sampling="T=0.5"))
    best_tree(both, two_laws(sampling="T=0.5"), laws=list(both), max_size=4)


def test_limits():
    ranking = best_tree([0.6, 0.2, 0.1], FLAT, sizes=[5, 9], depth=3, branching=2)
    assert {row.size for row in ranking.rows} == {1, 5, 9}
    assert max(row.depth for row in ranking.rows) == 3
    assert max(len(kids) for row in ranking.rows for kids in row.shape.children) == 2
    by_depth = best_tree([[0.6, 0.2], [0.5, 0.2]], FLAT, max_size=16)
    assert max(row.depth for row in by_depth.rows) == 2
    assert best_tree([0.6], FLAT, max_size=1).best.kind == "plain"
    assert candidate_sizes(300, [100, 400])[-1] == 300
    assert 100 in candidate_sizes(300, [100, 400])
    assert candidate_sizes(3) == [2, 3]


def test_the_largest_measured_size_is_said():
    flat = LatencyModel.from_tables(verify={1: 0.02, 9: 0.02}, draft=0.0001)
    assert "the most that were measured" in str(best_tree([0.6, 0.2, 0.1], flat))
    assert "the most that were measured" not in str(best_tree([0.6, 0.2, 0.1], flat, max_size=8))


def test_what_is_not_measured_is_passed_over_and_said():
    narrow = LatencyModel.from_tables(verify={1: 0.020, 32: 0.022}, draft={1: 0.0005, 2: 0.0006})
    ranking = best_tree([0.4, 0.3, 0.2], narrow, max_size=16)
    assert any("passed over" in note and "width 3" in note for note in ranking.notes)
    chains = LatencyModel.from_tables(verify={1: 0.020, 32: 0.022}, draft={1: 0.0005})
    assert best_tree([0.5, 0.3], chains).tree is None
    short = LatencyModel.from_tables(verify={1: 0.02, 32: 0.021}, draft=0.0001, accept={1: 0, 4: 0})
    ranking = best_tree([0.9], short)
    assert ranking.best.depth == 3
    assert any("the best has 4 nodes, the most" in note for note in ranking.notes)
    assert "few counts" in str(best_tree(Measured([0.6], warnings=("few counts",)), FLAT))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_size": 65}, NotMeasured, "up to 64 nodes"),
        ({"sizes": [8, 80]}, NotMeasured, "size 80"),
        ({"batch": 4}, NotMeasured, "batch = 4"),
        ({"sizes": []}, InvalidLimit, "sizes is empty"),
        ({"sizes": [0]}, InvalidLimit, "sizes = 0"),
        ({"sizes": [2.5]}, InvalidLimit, "sizes = 2.5"),
        ({"max_size": True}, InvalidLimit, "max_size = True"),
        ({"sizes": [9], "max_size": 8}, InvalidLimit, "max_size = 8"),
        ({"draws": 0}, InvalidLimit, "draws = 0"),
        (
            {"draws": 39},
            InvalidLimit,
            "draws = 39, but the bounds of 95 % intervals need at least 40",
        ),
        ({"draws": 99, "level": 0.99}, InvalidLimit, "at least 200"),
        ({"sizes": 48}, InvalidLimit, "sizes = 48, but must be a list"),
        ({"depth": -1}, InvalidLimit, "depth = -1"),
        ({"depth": 1.5}, InvalidLimit, "depth = 1.5"),
        ({"branching": 0}, InvalidLimit, "branching = 0"),
        ({"prefix": -5}, InvalidLimit, "prefix = -5"),
        ({"seed": -1}, InvalidLimit, "seed = -1"),
        ({"level": 1.0}, InvalidLimit, "level = 1.0"),
        ({"branching": 4}, InvalidLimit, "branching = 4"),
    ],
)
def test_wrong_limits(options, error, words):
    with pytest.raises(error, match=words):
        best_tree([0.6, 0.2], FLAT, **options)


def test_wrong_acceptance():
    for rates in ([], [1.2], [float("nan")], [0.7, 0.6], {}):
        with pytest.raises(InvalidAcceptance):
            best_tree(rates, FLAT)
    with pytest.raises(InvalidLimit, match="no largest tree"):
        best_tree([0.6], LatencyModel.from_tables(verify=0.02, draft=0.01))


def test_over_prefixes_and_batches():
    times = {"draft": 0.0005, "accept": 0.0}
    one = LatencyModel.from_tables(
        verify={64: {1: 0.02, 32: 0.021}, 512: {1: 0.02, 32: 0.09}}, **times
    )
    many = LatencyModel.from_tables(verify={1: 0.03, 32: 0.30}, batch=16, **times)
    both = LatencyModel.of_batches({1: one, 16: many})
    rankings = best_trees([0.6, 0.2], both, max_size=16, prefixes=[64, 512])
    assert [(r.batch, r.prefix) for r in rankings] == [(1, 64), (1, 512), (16, 64), (16, 512)]
    sizes = [ranking.best.size for ranking in rankings]
    assert sizes[0] > sizes[1]
    assert sizes[0] > sizes[2]
    plain = rankings[2].plain
    assert plain.tokens_per_s.estimate == pytest.approx(16 / 0.03)  # of all texts together
    assert len(best_trees([0.6], both, max_size=4, batches=[1])) == 2


def test_regret_of_a_tree_that_the_rates_do_not_cover_is_refused():
    ranking = best_tree([0.6, 0.2, 0.1], FLAT, max_size=8)
    with pytest.raises(InvalidAcceptance, match="rates for 3 child ranks"):
        ranking.regret(TreeShape.expansion([4]))
    by_depth = best_tree([[0.6, 0.2], [0.5, 0.2]], FLAT, max_size=8)
    with pytest.raises(InvalidAcceptance, match="rates for 2 depths"):
        by_depth.regret(TreeShape.chain(3))
    with pytest.raises(InvalidAcceptance, match="rates for 2 child ranks"):
        tokens_of(TreeShape.expansion([3]), np.full((5, 1, 2), 0.1), by_depth=False)


def test_sizes_that_no_tree_has_are_refused_with_the_largest_one():
    limits = {"depth": 3, "branching": 2}
    for sizes in ([60], [5, 60], [16]):
        with pytest.raises(InfeasibleTree, match=f"sizes has {sizes[-1]}.* has 15 nodes"):
            best_tree([0.6, 0.2], FLAT, sizes=sizes, **limits)
    assert best_tree([0.6, 0.2], FLAT, sizes=[15], **limits).tree.size == 15
    chains = LatencyModel.from_tables(verify={1: 0.020, 128: 0.021}, draft={1: 0.0001})
    with pytest.raises(InfeasibleTree, match="no wider level of the draft was measured"):
        best_tree([0.6, 0.2], chains, sizes=[9], depth=7)
    assert best_tree([0.6, 0.2], chains, sizes=[9], depth=8).chain.depth == 8
    # Deeper than what is looked at when nobody asks for it.
    for rates, times in (([0.9, 0.05], chains), ([0.9], FLAT)):
        largest = times.max_size
        assert best_tree(rates, times, sizes=[largest]).chain.size == largest


def test_a_size_that_one_law_alone_cannot_have_is_said():
    ranking = best_tree(
        {"iid": [0.6], "without_replacement": [0.6, 0.2]}, two_laws(), sizes=[16], depth=4
    )
    assert {row.law for row in ranking.rows if row.kind != "plain"} == {"without_replacement"}
    assert any("iid: no tree of depth 4 with 1 children" in note for note in ranking.notes)


def test_a_depth_beyond_the_rates_is_refused():
    with pytest.raises(InvalidLimit, match=r"depth = 3.* for 2 depths"):
        best_tree([[0.6, 0.2], [0.5, 0.2]], FLAT, max_size=8, depth=3)
    chains = LatencyModel.from_tables(verify={1: 0.020, 32: 0.022}, draft={1: 0.0005})
    with pytest.raises(InvalidLimit, match="depth = -2"):
        best_tree([0.5], chains, depth=-2)


def test_steps_that_take_no_time_are_refused():
    nothing = LatencyModel.from_tables(verify=0, draft=0)
    with pytest.raises(InvalidLatency, match="takes no time"):
        best_tree([0.6], nothing, max_size=4)
    with pytest.raises(InvalidLatency, match="takes no time"):
        best_tree([0.6, 0.2], nothing, max_size=4)
    now_and_then = LatencyModel.from_tables(verify=[0.0, 0.0, 0.02, 0.02, 0.02], draft=0)
    with pytest.raises(InvalidLatency, match="takes no time"):
        best_tree([0.6], now_and_then, max_size=4)


def test_whole_numbers_of_numpy_are_numbers():
    one, two = np.int64(1), np.int64(2)
    latency = LatencyModel.from_tables(
        verify={64: {one: 0.02, np.int64(9): 0.025}}, draft={one: 1e-3, two: 2e-3}
    )
    ranking = best_tree(
        [0.6, 0.2], latency, sizes=np.arange(2, 6), depth=two, branching=two, batch=one,
        prefix=np.int64(64), draws=np.int64(50), seed=one,
    )  # fmt: skip
    assert json.loads(ranking.to_json())["prefix"] == 64


def two_rows(counts=((60, 20), (50, 25)), **more):
    """An estimate of two ranks from two texts of 100 positions, with what it says of itself."""
    data = {
        "kind": "acceptance", "version": 1, "by": "rank", "law": "iid", "rule": "rrs",
        "source": "on-policy", "interval": "wilson", "level": 0.95, "monotone": False, "shrinkage": 0.0,
        "seed": 0, "warnings": [],
        "texts": {
            "hits": [[list(row)] for row in counts], "trials": [[[100, 100]] for _ in counts],
            "mass": [[list(row)] for row in counts],
        },
    }  # fmt: skip
    return AcceptanceEstimate.from_json(json.dumps(data | more))


def test_records_that_do_not_say_their_law_are_of_any():
    steps = [[(TreeShape.chain(1), (0, 1))] * 40, [(TreeShape.chain(1), (0,))] * 40]
    with pytest.warns(UserWarning, match="intervals of up to"):
        found = estimate_acceptance(Records(steps))
    with pytest.raises(InvalidAcceptance, match="does not say which law"):
        best_tree(found, two_laws(), max_size=4)
    assert best_tree(found, two_laws(), max_size=4, laws=["iid"]).rows[0].law == "iid"
    assert best_tree(found, FLAT, max_size=4).rows[0].law == "any"


def test_acceptance_and_times_of_different_settings_are_not_mixed():
    cold = two_rows(sampling={"temperature": 0.5, "top_p": None})
    with pytest.raises(InvalidLimit, match=r"acceptance of iid \(T=0\.5\), times of iid \(T=1\)"):
        best_tree(cold, two_laws(), max_size=4)
    assert best_tree(cold, two_laws(), max_size=4, laws=["iid"]).best.law == "iid"
    # Times of settings that are not known go with all.
    assert best_tree(cold, FLAT, max_size=4).best.law == "iid"
    warm = two_rows(sampling={"temperature": 1.0})
    assert best_tree(warm, two_laws(), max_size=4).best.law == "iid"
    with pytest.raises(InvalidLimit, match=r"T=0\.5.*T=1"):
        best_tree({"iid": cold, "hub": warm}, FLAT, max_size=4)


def test_few_texts_widen_the_bounds_and_say_when_resamples_do_not_reach_them():
    rng = np.random.default_rng(0)
    counts = [
        (int(a), int(b))
        for a, b in zip(rng.integers(20, 70, 8), rng.integers(5, 30, 8), strict=True)
    ]
    found, own = two_rows(counts), np.random.default_rng([0, 8, 0])
    ranking = best_tree(found, FLAT, max_size=8, level=0.9)
    row = ranking.best
    drawn = [expected_tokens(row.shape, found.resample(own)) for _ in range(ranking.draws)]
    tail = expanded_tail(8, 0.9)
    assert tail < 0.04
    assert row.tokens_per_step[1:] == pytest.approx(tuple(np.quantile(drawn, [tail, 1 - tail])))
    assert not any("resamples" in note for note in ranking.notes)
    assert ranking.regret(TreeShape.chain(1)).low < ranking.regret(TreeShape.chain(1)).high
    few = best_tree(two_rows(), FLAT, max_size=4)
    assert any("intervals of 2 texts reach beyond all 1000" in note for note in few.notes)
    assert not any("give draws" in note for note in few.notes)  # no number would do
    four = best_tree(two_rows(counts[:4]), FLAT, max_size=4)
    assert any("or give draws = 84" in note for note in four.notes)
    assert not any("reach beyond" in n for n in best_tree([0.6], FLAT, max_size=4).notes)


def test_expanded_bounds_cover_where_plain_percentiles_do_not():
    rng, texts, rounds = np.random.default_rng(5), 6, 1500
    covered = np.zeros(2)
    weights = drawn_texts(texts, 1000) / texts
    for values in rng.normal(size=(rounds, texts)):
        drawn = weights @ values
        for i, known in enumerate((None, texts)):
            low, high = bounds(values.mean(), drawn, 0.95, known)[1:]
            covered[i] += low <= 0 <= high
    assert covered[0] / rounds < 0.90
    assert covered[1] / rounds > 0.93


def test_laws_that_were_measured_on_the_same_texts_are_resampled_alike():
    both = {"iid": two_rows(), "without_replacement": two_rows(law="without_replacement")}
    twins = json.loads(two_laws().to_json())
    laws = twins["batches"]["1"]["laws"]
    laws["without_replacement"] = laws["iid"]
    latency = LatencyModel.from_json(json.dumps(twins))
    ranking = best_tree(both, latency, max_size=8)
    other = next(law for law in both if law != ranking.best.law)
    assert ranking.regret(ranking.best.shape, other) == (0.0, 0.0, 0.0)
    assert ranking.best.speedup.low < ranking.best.speedup.high
    elsewhere = two_rows(law="without_replacement", about={"prompts_hash": "other texts"})
    apart = best_tree(both | {"without_replacement": elsewhere}, latency, max_size=8)
    other = next(law for law in both if law != apart.best.law)
    regret = apart.regret(apart.best.shape, other)
    assert regret.low < 0 < regret.high


@pytest.mark.filterwarnings("ignore::search.errors.SmallSample")
def test_rates_of_every_position_are_not_those_of_where_steps_begin(make_trace):
    """One miss, then four first children, over and over: every step of a chain of 4 emits 5 tokens."""
    ranks = [1, *[0, 0, 0, 0, 1] * 60, 0, 0, 0, 0]
    one = np.ones((len(ranks), 1))
    trace = make_trace(
        offsets=[0, len(ranks)], tokens=np.zeros(len(ranks), int), ranks=np.array(ranks), probs=one,
        accepted=(np.array(ranks) == 0)[:, None].astype(float), width=1, kept=[301], law="deterministic",
        rule="greedy",
    )  # fmt: skip
    chain = TreeShape.chain(4)
    found = {
        "rank": estimate_acceptance(trace),
        "depth": estimate_acceptance(trace, by="depth", depth=4),
        "rank, starts": estimate_acceptance(trace, starts=chain),
        "depth, starts": estimate_acceptance(trace, by="depth", depth=4, starts=chain),
    }
    promised = {name: expected_tokens(chain, rates) for name, rates in found.items()}
    live = replay(trace, chain)
    assert promised["rank"] == pytest.approx(3.36, abs=0.03)
    assert promised["depth"] == pytest.approx(3.0, abs=0.03)
    assert live.accepted[1:].tolist() == [4] * 60
    assert promised["depth, starts"] == pytest.approx(live.tokens_per_step)
    assert promised["rank, starts"] == pytest.approx(live.tokens_per_step, abs=0.05)
    assert found["rank, starts"].about["starts"] == [-1, 0, 1, 2, 3]
