"""What is measured, and that every table gets what belongs to it."""

import time
from collections import defaultdict
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_cuda import FakeCuda

from treespec import Law, Sampling, TorchCoins, TreeShape
from treespec.draft import ModelDrafter
from treespec.experiments.measure.profile import loop as looping
from treespec.experiments.measure.profile import timed_steps as measuring
from treespec.experiments.measure.profile.plan import (
    Setting,
    bundle,
    drift_of,
    shapes_for,
)
from treespec.experiments.measure.profile.profile import model_of_rounds, profile_pair
from treespec.experiments.measure.profile.timed_steps import (
    PLAIN_STEPS,
    WARM_UP_STEPS,
    pass_seconds,
)
from treespec.experiments.run.observers import CudaClock, StageTimer
from treespec.models.transformers_model import TransformersModel
from treespec.search import LatencyModel
from treespec.target import make_target
from treespec.verify import RULES

SIZES = (1, 2, 3, 5, 8, 14)


def text(number, length):
    return [(7 * number + i) % 200 + 1 for i in range(length)]


class Quiet:
    """No other process does anything."""

    def busy_percent(self):
        return 0.0


def setting(law=Law.DETERMINISTIC, rule="greedy", temperature=0.0, shapes=None):
    shapes = shapes or shapes_for(SIZES, lambda shape: True)[0]
    return Setting(Sampling(temperature), law, RULES[rule], f"T={temperature:g}", shapes)


def together(timed):
    """All samples that count, whatever their round: by law, table, prefix and size."""
    tables = defaultdict(lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(list))))
    for measured in timed.parts:
        for (law, name, prefix, size, _), seconds in measured.items():
            tables[law][name][prefix][size] += seconds
    return tables


@pytest.mark.parametrize("size", range(1, 70))
def test_bundles(size):
    shape = bundle(size)
    assert shape.size == size
    width = (size - 1) // 4
    counts = [
        [len(shape.children[n]) for n in shape.internal if shape.depths[n] == depth]
        for depth in range(shape.depth)
    ]
    if width:
        assert counts[1:] == [[1] * width, [2] * width]
    else:
        assert shape == TreeShape.chain(size - 1)
    assert shape == shape.breadth_first()


def test_shapes_for_sizes():
    shapes, missing = shapes_for(SIZES, lambda shape: True)
    assert [shape.size for shape in shapes] == [2, 3, 5, 8, 14, 13, 14, 9, 13]
    assert shapes[5] == TreeShape.independent_chains(6, 2)  # the widest level of such a size
    assert shapes[6].is_chain
    assert shapes[7] == TreeShape.independent_chains(4, 2)  # as many as may have two children,
    assert shapes[8] == TreeShape.expansion([4, 2])  # and they have
    assert missing == ()
    chains, missing = shapes_for((*SIZES, 300), lambda shape: shape.is_chain)
    assert all(shape.is_chain for shape in chains)
    assert [shape.size for shape in chains] == [2, 3, 5, 8, 14]
    assert missing == (300,)
    small, missing = shapes_for(SIZES, lambda shape: shape.size < 8)
    assert max(shape.size for shape in small) == 5
    assert missing == (8, 14)
    assert [drift_of(1, 9), drift_of(1000, 9), drift_of(1000, 99)] == [0, 9, 32]


def test_every_table_gets_its_cells(loaded_pair):
    trees = setting()
    chains = setting(Law.IID, "chain", 1.0, shapes_for((2, 5), lambda shape: shape.is_chain)[0])
    seen = []
    timed = profile_pair(
        loaded_pair, [trees, chains], (16, 40), text, repeats=2, progress=seen.append, watch=Quiet
    )
    samples = together(timed)
    assert timed.rounds == 2
    assert not timed.interrupted
    assert len(seen) == (1 + timed.measured) * 2 * 2
    verify = samples[""]["verify"]
    assert set(verify) == {16, 40}
    for own in verify.values():
        assert set(own) == {1, 2, 3, 5, 8, 9, 13, 14}
        assert len(own[8]) == 2  # once in each round, for trees only
        assert len(own[2]) == 4
    assert set(samples[""]["commit"][None]) == {1, 2, 3, 5, 8, 9, 13, 14}
    assert set(samples[""]["rest"][None]) == {None}
    own = samples["deterministic"]
    assert set(own["level"][16]) == {1, 3, 4, 6}
    assert set(own["draw"][None]) == {1, 3, 4}
    assert set(own["decide"][None]) == set(measuring.DECIDED_SIZES)
    assert "decide" not in samples["iid"]  # whose trees do not grow
    assert set(own["first"]) == {16, 40}
    assert set(own["accept"][None]) == {1, 2, 3, 5, 8, 9, 13, 14}
    assert set(own["assemble"][None]) == {1, 2, 3, 5, 8, 9, 13, 14}
    assert set(samples["iid"]["level"][40]) == {1}
    assert set(samples["iid"]["accept"][None]) == {1, 2, 5}
    times = [
        s for table in own.values() for cells in table.values() for c in cells.values() for s in c
    ]
    assert all(0 <= seconds < 5 for seconds in times)
    model = model_of_rounds(timed.parts, [trees, chains], {})
    assert LatencyModel.from_json(model.to_json()).to_json() == model.to_json()
    assert model.round_count == 2
    assert model.law_times("iid").verify.curves[16].rounds[2] == (0, 0, 1, 1)


def test_times_go_where_they_belong(loaded_pair, monkeypatch):
    """Parts of known slowness, by a clock that stands still otherwise."""
    draft, run, commit = loaded_pair.draft, TransformersModel.run, ModelDrafter.commit
    clock = [0.0]

    def slow_run(self, tokens, parents, first=0):
        drafts = self.model is draft.model
        clock[0] += 1 + 10 * (len(parents) - first if first else 1) if drafts else 5000
        return run(self, tokens, parents, first)

    def slow_commit(self, step):
        clock[0] += 300
        return commit(self, step)

    def slow_draw(self, scores, k, law):
        clock[0] += 0.1 * scores.shape[0] * k
        return draw(self, scores, k, law)

    draw = TorchCoins.draw_unseen  # which drafters use where a run would: of shapes that stay
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(TransformersModel, "run", slow_run)
    monkeypatch.setattr(ModelDrafter, "commit", slow_commit)
    monkeypatch.setattr(TorchCoins, "draw_unseen", slow_draw)
    drawn = setting(Law.WITHOUT_REPLACEMENT, "rrsw", 1.0, (TreeShape.chain(2), bundle(13)))
    samples = together(profile_pair(loaded_pair, [drawn], (16,), text, repeats=2, watch=Quiet))
    own = samples["without_replacement"]
    assert samples[""]["verify"][16] == {
        1: pytest.approx([5000] * 8),
        3: pytest.approx([5000] * 2),
        13: pytest.approx([5000] * 2),
    }
    assert samples[""]["commit"][None][13] == pytest.approx([300, 300])
    assert samples[""]["rest"][None][None] == pytest.approx([0] * 4)
    assert own["first"][16][None] == pytest.approx([11.1, 11.1])
    assert own["level"][16] == {1: pytest.approx([11.1] * 2), 3: pytest.approx([31.3] * 2)}
    assert own["draw"][None] == {3: pytest.approx([0.3] * 2)}
    assert own["accept"][None][13] == pytest.approx([0, 0])
    assert own["assemble"][None][13] == pytest.approx([0, 0])
    assert own["plain"][16][None] == pytest.approx([5000] * 8)


def test_what_counts_comes_behind_steps_of_its_own_kind(loaded_pair, monkeypatch):
    """Trees from small to large, and plain decoding, each after steps that fill the caches for it."""
    kinds, run, plan = [], TransformersModel.run, setting()

    def noted(self, tokens, parents, first=0):
        if self.model is loaded_pair.target.model:
            kinds.append(len(parents))
        return run(self, tokens, parents, first)

    monkeypatch.setattr(TransformersModel, "run", noted)
    rounds = []
    timed = profile_pair(
        loaded_pair, [plan], (16,), text, repeats=6, watch=Quiet,
        progress=lambda what: rounds.append(len(kinds)),
    )  # fmt: skip
    plain_first = set()
    for begin, end in pairwise([*rounds[1:], len(kinds)]):
        sizes = [size for size in kinds[begin:end] if size <= max(s.size for s in plan.shapes)]
        alone = [i for i, size in enumerate(sizes) if size == 1]
        assert alone == list(range(alone[0], alone[-1] + 1))
        assert len(alone) >= WARM_UP_STEPS + PLAIN_STEPS
        trees = [size for size in sizes if size > 1]
        assert len(trees) >= WARM_UP_STEPS + len(plan.shapes)
        assert len(set(trees[:WARM_UP_STEPS])) == 1
        assert {shape.size for shape in plan.shapes if shape.size > 1} <= set(trees)
        assert trees == sorted(trees)
        plain_first.add(alone[0] < len(sizes) // 2)
    assert plain_first == {True, False}
    plain = together(timed)[str(plan.law)]["plain"][16][None]
    assert len(plain) == 6 * PLAIN_STEPS


class Slowed:
    """A pair whose passes take a second each by its own clock, longer in rounds of one's choice."""

    def __init__(self, pair, monkeypatch, slowed, busy=None):
        self.round, self.watches, clock, run = -1, 0, [0.0], TransformersModel.run
        self._busy = busy or {}

        def slow_run(model, tokens, parents, first=0):
            clock[0] += slowed.get(self.round, 1.0)
            return run(model, tokens, parents, first)

        monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
        monkeypatch.setattr(TransformersModel, "run", slow_run)
        shapes = (TreeShape.chain(1), bundle(5))
        self.timed = profile_pair(
            pair, [setting(shapes=shapes)], (16,), text, repeats=4, progress=self.begin, watch=self.watch
        )  # fmt: skip

    def begin(self, what):
        self.round += 1

    def watch(self):
        """Of the whole measurement, and then one for each round."""
        number, self.watches = self.watches, self.watches + 1
        return type("Watch", (), {"busy_percent": lambda _: self._busy.get(number, 0.0)})()


def test_disturbed_rounds_are_measured_again(loaded_pair, monkeypatch):
    slowed = Slowed(loaded_pair, monkeypatch, {2: 1.6}).timed
    assert (slowed.rounds, slowed.measured, slowed.disturbed) == (4, 5, None)
    assert together(slowed)[""]["verify"][16][5] == pytest.approx([1.0] * 4)
    monkeypatch.undo()
    busy = Slowed(loaded_pair, monkeypatch, {}, {1: 40.0, 3: 12.0}).timed
    assert (busy.rounds, busy.measured, busy.disturbed) == (4, 6, None)


def test_times_that_stay_disturbed_say_so(loaded_pair, monkeypatch):
    """The calmest rounds are kept, and no more than half as many are measured again."""
    busy = {1: 71.0, 2: 30.0, 3: 33.4, 4: 60.0, 5: 20.0, 6: 50.0}
    timed = Slowed(loaded_pair, monkeypatch, {2: 1.1, 3: 2.0, 4: 1.4, 5: 1.2}, busy).timed
    assert (timed.rounds, timed.measured) == (4, 6)
    assert sorted(together(timed)[""]["verify"][16][5]) == pytest.approx([1.0, 1.1, 1.2, 1.4])
    assert timed.disturbed == (
        "4 of 4 rounds (the calmest of 6) were disturbed: other processes used up to 60 % of the CPU, and "
        "parts took up to 1.4 times as long as in the calmest rounds. These times are not reliable: "
        "profile again on a quiet machine."
    )
    monkeypatch.undo()
    steps = {round: 1.0 + 0.4 * round for round in range(1, 7)}  # it never comes to rest
    drifting = Slowed(loaded_pair, monkeypatch, steps).timed
    assert drifting.measured == 6
    assert drifting.disturbed.startswith(
        "1 of 4 rounds (the calmest of 6) were disturbed: parts took"
    )


def test_rounds_too_short_for_the_counters_are_judged_together(loaded_pair, monkeypatch):
    unknown = dict.fromkeys(range(1, 9))
    timed = Slowed(loaded_pair, monkeypatch, {}, {0: 55.0, **unknown}).timed
    assert timed.measured == 4
    assert timed.disturbed.startswith(
        "4 of 4 rounds were disturbed: other processes used up to 55 %"
    )
    monkeypatch.undo()
    assert Slowed(loaded_pair, monkeypatch, {}, {0: None, **unknown}).timed.disturbed is None


def test_texts_stay_near_the_prefix(loaded_pair, monkeypatch):
    lengths, run = [], TransformersModel.run

    def noted(self, tokens, parents, first=0):
        if self.model is loaded_pair.target.model:
            lengths.append(self.length)
        return run(self, tokens, parents, first)

    monkeypatch.setattr(TransformersModel, "run", noted)
    profile_pair(loaded_pair, [setting()], (40,), text, repeats=3, watch=Quiet)
    drift = drift_of(40, len(setting().shapes))
    assert min(lengths) == 40 - drift
    assert max(lengths) <= 40 + drift + 14 + 1  # the step that passes the limit is the last
    assert 36 < sum(lengths) / len(lengths) < 44


def test_a_device_is_not_waited_for_between_levels(loaded_pair, monkeypatch):
    """Or work of the host would no longer overlap with that of the device, as it does in runs."""
    cuda, run, draft = FakeCuda(), TransformersModel.run, loaded_pair.draft.model

    def timer(device="cuda"):
        made = StageTimer()
        made.clock = CudaClock("cuda", cuda)
        return made

    def queued(self, tokens, parents, first=0):
        cuda.time += 1000 * (1 + 10 * (len(parents) - first)) if self.model is draft else 7e6
        return run(self, tokens, parents, first)

    monkeypatch.setattr(looping, "StageTimer", timer)
    monkeypatch.setattr(TransformersModel, "run", queued)
    short, long = TreeShape.chain(1), TreeShape.expansion([2, 1, 1, 1])
    own, plan = make_target(loaded_pair.target), setting(shapes=(short, long) * 8)  # one long text
    steps = looping.Loop(loaded_pair, own, plan, 40, text, seed=0)
    steps._ahead = 0
    steps.step(short)
    waits = []
    for shape in (short, long, long):
        before = cuda.waits
        seconds = steps.step(shape)
        waits.append(cuda.waits - before)
    assert len(set(waits)) == 1
    assert seconds["levels"][1:] == pytest.approx(
        [21, 21, 21]
    )  # by the device's clock, as `draft` is
    assert seconds["draft"] == pytest.approx(sum(seconds["levels"]))
    assert seconds["verify"] == pytest.approx(7000)


def test_no_size_has_longer_texts_than_others(loaded_pair, monkeypatch):
    """Or times of large trees would be those after longer texts; here steps bring tokens and no times."""
    lengths = defaultdict(list)

    def decoded(target, drafter, *parts, **options):
        while True:
            depth = drafter.growth.shape.depth if isinstance(drafter, ModelDrafter) else 0
            yield SimpleNamespace(tokens=[7] * (1 + depth // 8))

    def step(steps, shape):
        lengths[shape.size].append(steps._length - 1)  # without the root
        return advance(steps, shape)

    advance = looping.Loop._advance
    monkeypatch.setattr(looping, "decode", decoded)
    monkeypatch.setattr(looping.Loop, "_advance", step)

    def counted(steps, shape, *into):
        steps.step(shape)
        lengths["counted", shape.size].append(lengths[shape.size][-1])

    monkeypatch.setattr(measuring, "_measure_tree", counted)
    monkeypatch.setattr(
        measuring, "_measure_plain", lambda steps, into: counted(steps, measuring.ROOT)
    )
    chains = tuple(TreeShape.chain(depth) for depth in range(1, 25))
    profile_pair(loaded_pair, [setting(shapes=chains)], (64,), text, repeats=150, watch=Quiet)
    means = [np.mean(lengths["counted", size]) for size in range(1, 26)]
    assert means == pytest.approx([64] * 25, abs=4)


def test_an_interruption_keeps_what_is_there(loaded_pair):
    calls = []

    def stop(what):
        calls.append(what)
        if len(calls) == 4:
            raise KeyboardInterrupt

    timed = profile_pair(loaded_pair, [setting()], (16,), text, repeats=9, progress=stop)
    assert timed.interrupted
    assert timed.rounds == 2
    assert len(together(timed)[""]["verify"][16][8]) == 2


def test_a_round_that_was_stopped_is_judged_too(loaded_pair):
    """Its times count, so that what disturbed them is told, be it the first one."""
    calls = []

    def stop(what):
        calls.append(what)
        if len(calls) == 4:  # behind the warming up, and one of two places of the first round
            raise KeyboardInterrupt

    class Busy(Quiet):
        def busy_percent(self):
            return 60.0

    timed = profile_pair(
        loaded_pair, [setting()], (16, 40), text, repeats=9, progress=stop, watch=Busy
    )
    assert (timed.interrupted, timed.rounds, timed.measured) == (True, 0, 0)
    assert timed.disturbed.startswith("1 of 1 rounds were disturbed: other processes")


def test_coins_are_used_and_models_left_as_they_were(loaded_pair):
    before = torch.get_rng_state()
    wor = setting(Law.WITHOUT_REPLACEMENT, "rrsw", 1.0)
    samples = together(profile_pair(loaded_pair, [wor], (16,), text, repeats=1, watch=Quiet))
    assert set(samples["without_replacement"]["draw"][None]) == {1, 3, 4}
    assert loaded_pair.target.length == 0
    assert torch.equal(torch.get_rng_state(), before)


def test_a_pass_is_timed_and_forgotten(loaded_pair, monkeypatch):
    """Of a chain or of any tree; the cache is as long afterwards as before."""
    seen, run = [], TransformersModel.run

    def noted(self, tokens, parents, first=0):
        seen.append((tokens.tolist(), parents))
        return run(self, tokens, parents, first)

    monkeypatch.setattr(TransformersModel, "run", noted)
    model = loaded_pair.target.fresh()
    model.prefill(torch.arange(8))
    assert 0 < pass_seconds(model, 3, first_token=5) < 5
    assert pass_seconds(model, 3, (-1, 0, 0)) > 0
    assert seen[-2:] == [([5, 6, 7], (-1, 0, 1)), ([0, 1, 2], (-1, 0, 0))]
    assert model.length == 8
