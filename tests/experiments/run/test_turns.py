"""Texts decoded in turns are the same as texts decoded alone."""

import gc
import time
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from fake_cuda import FakeCuda
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils import logging

from treespec.experiments.config.build import build, plain_method
from treespec.experiments.config.schema import Config
from treespec.experiments.records.outcome import Outcome, StepOutcome
from treespec.experiments.run.baselines import generate_assisted, generate_plain
from treespec.experiments.run.groups import groups_of
from treespec.experiments.run.observers import CudaClock, StageTimer
from treespec.experiments.run.ours import decode_ours
from treespec.experiments.run.unit import finish, take_turns
from treespec.sampling.distributions import Sampling
from treespec.step import Verdict
from treespec.stopping import stop_at_tokens
from treespec.tree import TreeShape

PROMPT = torch.tensor([17, 60, 23, 99, 100, 41])


def step(kept=1, token=7):
    shape = TreeShape.chain(max(0, kept - 1))
    verdict = Verdict(tuple(range(shape.size)), token)
    return StepOutcome(shape, (token,) * shape.size, verdict, kept, {}, 0.0, 0.1)


def text(*kept, log=None, name=None):
    """A text whose steps emit these numbers of tokens; an exception stands for a step that fails."""
    for k in kept:
        if isinstance(k, BaseException):
            raise k
        if log is not None:
            log.append(name)
        yield step(k)


STATIC = [
    {"kind": "plain"},
    {"kind": "tree", "shape": {"kind": "chain", "depth": 3}},
    {"kind": "tree", "shape": {"kind": "expansion", "branching": [3, 2, 1]}},
]
CHAIN, TREE = ({"kind": "budget", "depth": 3, **more} for more in ({}, {"size": 7, "branching": 2}))
OTHERS = [
    {"kind": "tree", "name": f"{i}", **more}
    for i, more in enumerate(
        [
            {"shape": {"kind": "eagle2", "k": 2, "depth": 3, "size": 5}},
            {"shape": {"kind": "opt_tree", "size": 5, "depth": 3}},
            {"shape": {"kind": "specexec", "size": 5, "branching": 2, "depth": 3}},
            {"shape": {"kind": "equal_growth", "width": 2, "depth": 3, "size": 5}},
            {"shape": {"kind": "dyspec", "size": 5, "depth": 3}},
            {"shape": {"kind": "ddtree", "size": 5, "depth": 3}},
            {"draft": {"source": "early_exit", "layers": 1}, "shape": "chain:3"},
            {"draft": {"source": "layer_skip", "skip": ["mlp.1"]}, "shape": "expansion:2x1"},
            {"draft": {"source": "lookup"}, "shape": TREE},
            {"draft": {"source": "documents", "files": None}, "shape": TREE},
            {"draft": {"source": "suffix_tree"}, "shape": TREE},
            {"draft": {"source": "suffix_automaton"}, "shape": CHAIN},
            {"draft": {"source": "token_recycling"}, "shape": TREE},
            {"draft": {"source": "jacobi"}, "shape": CHAIN},
            {
                "draft": {"source": "lookahead", "window": 2, "ngram": 3, "guesses": 1},
                "shape": {**TREE, "branching": 3},
            },
            {"draft": {"source": "cascade", "draft": {"source": "lookup"}}, "shape": CHAIN},
        ]
    )
]
"""Growths and draft sources that remember."""


def methods_of(pair, temperature, seed=5, new=24, methods=STATIC):
    sampling = Sampling(temperature=temperature)
    config = Config.model_validate(
        {
            "name": "turns",
            "prompts": {"kind": "embedded"},
            "max_new_tokens": new,
            "samplings": [{"temperature": temperature}],
            "methods": methods,
        }
    )
    experiment = build(config)
    (name,) = experiment.samplings
    more = {"max_new_tokens": new, "stop": stop_at_tokens(pair.end_tokens)}

    def ours(method, at):
        return lambda: decode_ours(pair, method, name, PROMPT, seed=seed + at, **more)

    made = {m.name: ours(m, i) for i, m in enumerate(experiment.methods)}
    made["generate"] = lambda: generate_plain(pair, PROMPT, sampling, seed=seed, **more)
    for length, threshold in ((4, 0.4), (2, 0.0)):
        made[f"assisted {length}"] = lambda length=length, threshold=threshold: generate_assisted(
            pair, PROMPT, sampling, length=length, threshold=threshold, seed=seed + length, **more
        )
    return made


@pytest.mark.parametrize(
    ("coins", "others"),
    [(5, STATIC), (6, STATIC), (5, OTHERS)],
    ids=["static", "other coins", "others"],
)
@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
def test_every_text_is_the_one_that_it_is_by_itself(loaded_pair, temperature, coins, others):
    methods = methods_of(loaded_pair, temperature, coins, methods=others)
    alone = {name: finish(begin()) for name, begin in methods.items()}
    for seed in (0, 1):
        together = take_turns(methods, seed=seed)
        assert list(together) == list(methods)
        for name, outcome in together.items():
            assert isinstance(outcome, Outcome), outcome
            assert outcome.tokens == alone[name].tokens, name
            assert [s.kept for s in outcome.steps] == [s.kept for s in alone[name].steps]
            assert outcome.drafted == alone[name].drafted


def test_steps_tell_what_they_were_and_when(loaded_pair):
    begun = time.time()
    for name, outcome in take_turns(methods_of(loaded_pair, 0.0), seed=0).items():
        steps = outcome.steps
        assert outcome.target_passes == len(steps)
        assert outcome.total_s == pytest.approx(
            outcome.prefill_s + sum(step.took for step in steps)
        )
        assert outcome.prefill_s > 0
        assert all(step.prefill_s == 0 for step in steps[1:])
        assert all(a.at + a.took <= b.at + 1e-6 for a, b in pairwise(steps))
        assert begun - 1 < steps[0].at < time.time() + 1
        for one in steps:
            assert one.took > sum(one.seconds.values()) > 0 or name.startswith(("gen", "assis"))
            assert one.verdict.accepted < one.shape.size
            if name.startswith("assisted"):
                assert one.shape == TreeShape.chain(one.shape.size - 1)
                accepted = one.tokens[1 : one.verdict.emitted]
                assert (*accepted, one.verdict.bonus)[: one.kept] == one.text
        assert outcome.tokens == tuple(token for one in steps for token in one.text)


def test_no_two_steps_run_at_once(loaded_pair):
    outcomes = take_turns(methods_of(loaded_pair, 1.0), seed=3)
    spans = sorted((s.at, s.at + s.took) for o in outcomes.values() for s in o.steps)
    assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(spans))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=8), min_size=1, max_size=5))
def test_who_has_the_fewest_tokens_is_next(kept):
    log: list[int] = []
    turns = {i: (lambda k=k, i=i: text(*k, log=log, name=i)) for i, k in enumerate(kept)}
    outcomes = take_turns(turns, seed=0)
    have, taken = [0] * len(kept), [0] * len(kept)
    for i in log:
        # a text without steps left is asked once more, and then has ended
        others = [have[j] for j in range(len(kept)) if taken[j] < len(kept[j])]
        assert have[i] == min(others)
        have[i] += kept[i][taken[i]]
        taken[i] += 1
    assert [len(outcomes[i].tokens) for i in range(len(kept))] == [sum(k) for k in kept]


@pytest.mark.parametrize("error", [RuntimeError("the draft broke"), SystemExit(3)])
def test_a_text_that_fails_leaves_the_others_as_they_are(error):
    turns = {
        "good": lambda: text(2, 2, 2),
        "bad": lambda: text(1, error),
        "at once": lambda: text(error),
        "short": lambda: text(1),
    }
    outcomes = take_turns(turns, seed=1)
    assert len(outcomes["good"].tokens) == 6
    assert len(outcomes["short"].tokens) == 1
    assert isinstance(outcomes["bad"], str)
    assert isinstance(outcomes["at once"], str)


def test_an_interrupt_closes_every_text():
    closed = []

    def open_text(name):
        try:
            yield from (step() for _ in range(100))
        finally:
            closed.append(name)

    turns = {name: (lambda name=name: open_text(name)) for name in "ab"}
    turns["c"] = lambda: text(1, 1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt) as interrupted:  # whose frames hold the texts
        take_turns(turns, seed=0)
    assert sorted(closed) == ["a", "b"]
    del interrupted


def test_nothing_of_the_thread_is_left_behind(loaded_pair):
    verbosity, modes = logging.get_verbosity(), (torch.is_grad_enabled(), False)
    weights = loaded_pair.target.model
    hooks = len(weights._forward_hooks), len(weights._forward_pre_hooks)
    settings_before = weights.generation_config
    methods = methods_of(loaded_pair, 1.0)
    methods["stops"] = lambda: text(1, RuntimeError())
    take_turns(methods, seed=0)
    begun = methods["generate"]()  # paused, and never ended
    next(begun)
    del begun
    gc.collect()
    assert logging.get_verbosity() == verbosity
    assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == modes
    assert (len(weights._forward_hooks), len(weights._forward_pre_hooks)) == hooks
    assert weights.generation_config is settings_before


def test_stages_on_cuda_wait_once():
    cuda = FakeCuda()
    timer = StageTimer()
    timer.clock = CudaClock("cuda", cuda)
    for name, milliseconds in (("draft", 2.0), ("verify", 5.0), ("draft", 3.0)):
        with timer.stage(name):
            cuda.time += milliseconds
    assert cuda.waits == 0
    assert timer.seconds == {"draft": [2e-3, 3e-3], "verify": [5e-3]}
    assert timer.seconds["draft"] == [2e-3, 3e-3]
    assert cuda.waits == 1


def test_a_step_on_cuda_waits_once_at_its_end(loaded_pair, monkeypatch):
    """Before the first step, prefills are waited for; it is assisted generation that has two of them."""
    from treespec.experiments.run import baselines, ours

    cuda = FakeCuda()

    class OnCuda(StageTimer):
        def __init__(self, device):
            super().__init__()
            self.clock = CudaClock(device, cuda)

    monkeypatch.setattr(ours, "StageTimer", OnCuda)
    monkeypatch.setattr(baselines, "synchronizer", lambda device: lambda: cuda.synchronize(device))

    def noted(steps, waits):
        for one in steps:
            waits.append(cuda.waits)
            yield one

    for name, begin in methods_of(loaded_pair, 0.0).items():
        cuda.waits, waits = 0, []
        finish(noted(begin(), waits))
        first = {"generate": 3, "assisted": 5}.get(name.split()[0], 2)
        assert waits == list(range(first, first + len(waits))), name
        assert len(waits) > 2


@pytest.mark.gpu
def test_turns_on_a_gpu_are_timed_by_its_events(settings, tmp_path):
    from treespec.experiments.config.schema import Config
    from treespec.experiments.measure.searched_run import run
    from treespec.experiments.report.run import load_run

    models = settings["models"] | {"device": "cuda"}
    finished = run(Config.model_validate(settings | {"models": models}), folder=tmp_path / "run")
    steps = load_run(finished.folder).all_steps.sort("at_s")
    for (at, took), (following, _) in pairwise(steps.select("at_s", "step_s").rows()):
        assert at + took <= following + 1e-4
    timed = steps.drop_nulls("verify_s")
    assert (timed["verify_s"] > 0).all()
    assert (timed["verify_s"] < timed["step_s"]).all()


def test_memory_for_one_method_only_is_said_and_goes_by_prompts(start, monkeypatch, capsys):
    from rich.console import Console

    from treespec.experiments.records.loading import read_manifest
    from treespec.experiments.run import groups

    monkeypatch.setattr(groups, "free_bytes", lambda device: 1)
    chain = {"kind": "tree", "shape": {"kind": "chain", "depth": 1}}
    folder = start({"methods": [{"kind": "plain"}, chain]}, console=Console(width=300)).folder
    assert "memory holds the caches of one method only" in capsys.readouterr().out
    manifest = read_manifest(folder)
    assert (manifest["together"], manifest["twins"]) == (1, {})


def test_captured_passes_take_their_part_of_the_memory(loaded_pair, settings, monkeypatch):
    """On CUDA: the logits of passes over 1, 2, 4, ... 64 nodes, and as much as the largest again."""
    from types import SimpleNamespace

    from treespec.experiments.run import groups

    experiment = build(Config.model_validate(settings))
    target = SimpleNamespace(
        device=torch.device("cuda"), finding=loaded_pair.target.finding, vocab_size=1_000_000
    )
    on_cuda = SimpleNamespace(target=target, models=(target, loaded_pair.draft))
    monkeypatch.setattr(groups, "free_bytes", lambda device: 2 * 3 * 192 * 4_000_000 + 10**8)
    assert groups.that_fit(experiment, on_cuda, tokens=20) == 3
    assert groups._captured_bytes(target, 64, parts=False) == 191 * 4_000_000
    # Each size but the largest also behind other nodes.
    assert groups._captured_bytes(target, 64, parts=True) == (127 + 63 + 64) * 4_000_000
    assert groups.that_fit(experiment, loaded_pair, tokens=20) > 100


def test_a_part_of_the_target_takes_memory_if_it_has_a_cache(loaded_pair, settings, monkeypatch):
    from types import SimpleNamespace

    from treespec.experiments.run import groups

    target = loaded_pair.target
    alone = SimpleNamespace(target=target, models=(target,))
    monkeypatch.setattr(groups, "free_bytes", lambda device: 10**8)
    layers = target.layer_count
    fit = []
    for draft in (
        {"source": "jacobi"},
        {"source": "early_exit", "layers": layers - 1},
        {"source": "layer_skip", "skip": ["mlp.0"]},
    ):
        shape = {"kind": "budget" if draft["source"] == "jacobi" else "chain", "depth": 2}
        method = {"kind": "tree", "shape": shape, "draft": draft}
        experiment = build(Config.model_validate(settings | {"methods": [method]}))
        fit.append(groups.that_fit(experiment, alone, tokens=20))
    assert fit[0] == fit[1] == pytest.approx(2 * fit[2], abs=1)


def test_a_reference_has_a_twin_beside_it_if_a_third_has_room():
    methods = [plain_method(name, {"T=0": Sampling(temperature=0.0)}) for name in "abc"]
    assert [[*group] for group in groups_of(methods, 2)] == [["a", "b"], ["a (twin 2)", "c"]]
    assert [[*group] for group in groups_of(methods, 3)] == [
        ["a", "a (twin)", "b"],
        ["a (twin 2)", "c"],
    ]


def test_groups_share_a_reference(start):
    """With room for three, every group holds plain decoding or its twin; ids are as with one group."""
    from treespec.experiments.report.run import load_run

    chains = [{"kind": "tree", "shape": {"kind": "chain", "depth": d}} for d in (1, 2, 3)]
    changes = {"methods": [{"kind": "plain"}, *chains], "samplings": [{"temperature": 1}]}
    grouped = load_run(start(changes | {"together": 3}, out="grouped").folder)
    assert grouped.manifest["twins"] == {"plain (twin)": "plain", "plain (twin 2)": "plain"}
    assert len(grouped.prompts) == 2 * 4
    assert len(grouped.all_prompts) == 2 * 6
    groups = grouped.manifest["groups"]
    assert groups == [
        ["plain", "plain (twin)", "chain 1"],
        ["plain (twin 2)", "chain 2", "chain 3"],
    ]
    begun = grouped.all_prompts.sort("order").group_by("prompt", maintain_order=True)
    starts = {prompt: rows["method"][0] for (prompt,), rows in begun}
    assert starts[0] in groups[0]
    assert starts[1] in groups[1]
    whole = load_run(start(changes, out="whole").folder)
    key = ["prompt", "method", "tokens"]
    assert grouped.prompts.select(key).sort(key[:2]).equals(whole.prompts.select(key).sort(key[:2]))


def test_texts_that_end_at_their_first_step(settings, loaded_pair, tmp_path):
    """Any token ends a text: every method takes one step, in turns and alone."""
    from treespec.experiments.measure.searched_run import run
    from treespec.experiments.report.run import load_run

    ends = replace(loaded_pair)
    vars(ends)["end_tokens"] = frozenset(range(loaded_pair.target.vocab_size))
    changes = {"prompts": settings["prompts"] | {"count": 4}, "alone": 1}
    config = Config.model_validate(settings | changes)
    done = run(config, folder=tmp_path / "run", load=lambda models: ends)
    assert not done.failures
    found = load_run(done.folder)
    kinds = [m.kind for m in found.methods]
    assert kinds == ["generate", "plain", "assisted", "tree", "tree"]
    rows = found.all_prompts
    assert len(rows) == 4 * 2 * 6
    for column in ("new_tokens", "steps"):
        assert rows[column].to_list() == [1] * len(rows), column
    assert (rows["decode_s"] > 0).all()
    assert found.prompts["alone_s"].null_count() == len(found.prompts) * 3 // 4
    assert found.prompts.filter(sampling="T=0")["equal_to_plain"].all()
    assert len(found.all_steps) == len(rows)
    for name in found.samplings:
        assert "totals decide" in found.measurements[name].totals_because
        assert any("totals decide" in line for line in found.verdicts[name])


def test_a_batch_larger_than_memory_is_refused_before_anything_runs(start, monkeypatch):
    from treespec.batch import room
    from treespec.experiments.errors import ConfigError

    monkeypatch.setattr(room, "free_bytes", lambda device: 1)
    with pytest.raises(
        ConfigError, match=r"batch = 2: .*2 texts at a time.*not even one.*smaller batch"
    ):
        start({"batch": 2, "methods": [{"kind": "plain"}]})
