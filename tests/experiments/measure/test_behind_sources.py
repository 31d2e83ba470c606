"""Encoder-decoders: traces replay to live runs, and a config measures, searches and runs behind sources."""

import json
import os

import numpy as np
import polars as pl
import pytest
import torch
from tiny_encoder_decoders import SOURCES

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, load_pair, verify
from treespec.draft import ModelDrafter, PromptLookup
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import PromptError
from treespec.experiments.measure import merge_rates
from treespec.experiments.measure.profile.profile import profile
from treespec.experiments.measure.searched_run import run
from treespec.experiments.measure.traces import trace
from treespec.experiments.report.run import load_run
from treespec.plugins import Budget
from treespec.search.choice.growth_replay import replay_growth
from treespec.search.growth import Eagle2
from treespec.search.traces.replay import replay, replay_budget
from treespec.target import ModelTarget

COLD, NEW = Sampling(temperature=0.0), 12
SHAPES = (TreeShape.chain(3), TreeShape.kary(2, 2), TreeShape.expansion([3, 2, 1]))
LIMITS = Budget(8, 4, 2)
LOOKUP = {
    "kind": "tree", "name": "copied", "draft": {"source": "lookup"},
    "shape": {"kind": "budget", "size": 8, "depth": 4, "branching": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def pairs(t5_pair):
    """The pair behind each source, and the beginning of its answer."""
    pair = load_pair(t5_pair)
    begun = pair.tokenizer.encode("def", add_special_tokens=False)
    starts = [[*pair.target.start_tokens, *(begun if i else [])] for i in range(len(SOURCES))]
    return [(pair.on(source), start) for source, start in zip(SOURCES, starts, strict=True)]


def live(pair, start, make):
    """Tokens, and accepted and kept of every step."""
    steps = list(decode(
        ModelTarget(pair.target), make(pair), verify.greedy, torch.tensor(start), sampling=COLD,
        coins=TorchCoins(0), max_new_tokens=NEW,
    ))  # fmt: skip
    tokens = [token for step in steps for token in step.tokens]
    return tokens, [(step.verdict.accepted, len(step.tokens)) for step in steps]


def require_equal_to_live(recorded, found, pairs, make):
    texts = np.split(recorded.tokens, recorded.offsets[1:-1])
    every = []
    for i, (pair, start) in enumerate(pairs):
        place = slice(*found.offsets[i : i + 2])
        tokens, steps = live(pair, start, make)
        assert texts[i].tolist()[:NEW] == tokens
        replayed = zip(found.accepted[place].tolist(), found.kept[place].tolist(), strict=True)
        assert list(replayed) == steps
        every.append(steps)
    assert found.accepted.sum() > 0
    return every


def test_replay_of_every_tree_and_growth_is_the_live_run(over_sources, pairs):
    config = Config.model_validate(over_sources)
    recorded = trace(config, sampling="T=0", width=4, beyond=6, beam=4, beam_depth=3)
    texts = [text.tolist() for text in np.split(recorded.tokens, recorded.offsets[1:-1])]
    assert len({tuple(text) for text in texts}) == len(SOURCES)  # the sources decide
    for shape in SHAPES:
        require_equal_to_live(
            recorded, replay(recorded, shape), pairs,
            lambda pair, shape=shape: ModelDrafter(pair.draft, shape, Law.DETERMINISTIC, COLD),
        )  # fmt: skip
    growth = Eagle2(2, 3, 6)
    require_equal_to_live(
        recorded, replay_growth(recorded, growth), pairs,
        lambda pair: ModelDrafter(pair.draft, growth, Law.DETERMINISTIC, COLD),
    )  # fmt: skip


def test_lookup_in_the_source_is_recorded(over_sources, pairs):
    config = Config.model_validate(over_sources | {"methods": [LOOKUP]})
    recorded = trace(config, sampling="T=0", method="copied", beyond=6)
    assert recorded.text_drafts is not None
    require_equal_to_live(
        recorded, replay_budget(recorded, LIMITS), pairs,
        lambda pair: PromptLookup(4, size=8, branching=2, source=pair.source),
    )  # fmt: skip


def test_a_draft_of_its_own_and_following_a_given_answer(over_sources, t5_pair, pairs, tmp_path):
    own = {
        "kind": "tree", "name": "own", "shape": "chain:2",
        "draft": {"source": "model", "model": os.fspath(t5_pair / "draft")},
    }  # fmt: skip
    config = Config.model_validate(over_sources | {"methods": [own]})
    by_method = trace(config, sampling="T=0", method="own", width=4, beyond=6)
    by_pair = trace(Config.model_validate(over_sources), sampling="T=0", width=4, beyond=6)
    np.testing.assert_array_equal(by_method.ranks, by_pair.ranks)
    path = tmp_path / "answers.jsonl"
    tokenizer = pairs[0][0].tokenizer
    texts = np.split(by_pair.tokens, by_pair.offsets[1:-1])
    answers = [
        tokenizer.decode([*start[1:], *text]) for (_, start), text in zip(pairs, texts, strict=True)
    ]
    rows = [{"article": s, "prompt": a} for s, a in zip(SOURCES, answers, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts = {"kind": "jsonl", "path": os.fspath(path), "source": "article", "tokens": 1}
    followed = trace(
        Config.model_validate(over_sources | {"prompts": prompts}),
        sampling="T=0",
        width=4,
        follow=True,
    )
    assert followed.about["followed"]
    assert followed.texts == len(SOURCES)


def test_inputs_of_a_trace_are_refused_before_weights_are_read(over_sources, monkeypatch):
    monkeypatch.setattr("treespec.models.load.read_model", None)
    for change, said in (
        ({"source": None, "field": "article"}, r"line 1: .*prompts\.source"),
        ({"source": "blank"}, "line 1: field 'blank': the source has no tokens"),
    ):
        prompts = over_sources["prompts"] | change
        with pytest.raises(PromptError, match=said):
            trace(Config.model_validate(over_sources | {"prompts": prompts}), sampling="T=0")
        with pytest.raises(PromptError, match=said):
            profile(Config.model_validate(over_sources | {"prompts": prompts}))


def test_times_of_a_batch_behind_sources(over_sources):
    found = profile(
        Config.model_validate(over_sources | {"samplings": [{"temperature": 0}]}),
        sizes=[1, 8], prefixes=[16], batches=[1, 2], repeats=1,
    )  # fmt: skip
    assert sorted(found.model.batches) == [1, 2]


def test_a_searched_run_behind_sources(over_sources, tmp_path):
    """It records and times on the sources after those of the run, and finds trees."""
    methods = [
        {"kind": "plain"},
        {"kind": "tree", "shape": {"kind": "expansion", "branching": [2, 2]}},
        {"kind": "tree", "shape": {"kind": "best", "max_size": 6, "depth": 3, "branching": 2}},
    ]
    config = Config.model_validate(
        over_sources | {
            "methods": methods,
            "samplings": [{"temperature": 0}],
            "prompts": over_sources["prompts"] | {"count": 1},
            "search": {"max_new_tokens": 20, "width": 2, "depth": 3, "sizes": [1, 8], "repeats": 1},
        }
    )  # fmt: skip
    folder = run(config, folder=tmp_path / "run").folder
    prompts = pl.read_parquet(folder / "prompts.parquet")
    assert prompts["error"].null_count() == len(prompts) > 0
    assert prompts["equal_to_plain"].all()
    assert load_run(folder).predictions
    found = np.load(folder / "search" / "trace-0-deterministic.npz")
    assert len(found["offsets"]) == len(SOURCES)  # of the other two


def test_rates_of_merges_are_measured_behind_sources(over_sources, monkeypatch):
    monkeypatch.setattr(merge_rates, "FEWEST_TRIES", 1)
    merged = {
        "kind": "tree", "name": "both", "shape": {"kind": "budget", "size": 8, "depth": 3, "branching": 2},
        "draft": {"source": "merge", "sources": [{"source": "lookup"}, {"source": "model"}],
                  "rates": [[[0.5]], [[0.5]]]},
    }  # fmt: skip
    config = over_sources | {"methods": [merged], "samplings": [{"temperature": 0}]}
    config["prompts"] = config["prompts"] | {"count": 1}
    rates = merge_rates.measured(Config.model_validate(config))["both"]["T=0"]
    assert len(rates) == 2
