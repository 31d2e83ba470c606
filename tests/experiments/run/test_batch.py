"""Runs whose methods decode several prompts side by side."""

import json

import polars as pl
import pytest
import torch

from treespec.experiments.config.build import build
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.rows import PromptRow, read_lines, write_lines
from treespec.experiments.run.baselines import generate_plain, generate_plain_together
from treespec.experiments.run.prompts import Prompt, samples_of
from treespec.experiments.run.unit import finish, finish_batch
from treespec.sampling.distributions import Sampling
from treespec.stopping import stop_at_tokens

KEY = ["prompt", "sampling", "method", "repeat"]
LOOKUP = {"kind": "budget", "depth": 3, "size": 7, "branching": 2}
METHODS = [
    {"kind": "generate"},
    {"kind": "plain"},
    {"kind": "tree", "shape": "expansion:2x2"},
    {"kind": "tree", "draft": {"source": "lookup"}, "shape": LOOKUP},
]
CHANGES = {"methods": METHODS, "repeats": 2, "alone": 1, "trees": 3}


@pytest.fixture(scope="module")
def folders(settings, loaded_pair, tmp_path_factory):
    """The same four prompts one by one, and in batches of two. Read only."""
    from treespec.experiments.measure.searched_run import run

    made = {}
    for batch in (1, 2):
        prompts = settings["prompts"] | {"count": 4}
        config = settings | CHANGES | {"batch": batch, "prompts": prompts}
        path = tmp_path_factory.mktemp("batch") / "run"
        done = run(Config.model_validate(config), folder=path, load=lambda models: loaded_pair)
        made[batch] = done.folder
    return made


def rows(folder, table="prompts"):
    return pl.read_parquet(folder / f"{table}.parquet")


def test_a_batch_gives_the_texts_of_single_prompts(folders):
    exact = pl.col("sampling").eq("T=0") | ~pl.col("method").str.starts_with("generate")
    columns = [*KEY, "tokens", "steps", "drafted", "accepted"]
    one, two = (rows(folders[batch]).sort(*KEY).filter(exact) for batch in (1, 2))
    assert two.select(columns).equals(one.select(columns))
    assert two["error"].null_count() == len(two) == 4 * 2 * (5 + 3)
    greedy = two.filter(sampling="T=0")["equal_to_plain"]
    assert greedy.all()
    trees = [rows(folders[batch], "trees").filter(sampling="T=0") for batch in (1, 2)]
    assert trees[0].sort(*KEY, "step").equals(trees[1].sort(*KEY, "step"))


def test_the_texts_of_a_round_share_its_time(folders):
    steps = rows(folders[2], "steps").with_columns(batch=pl.col("prompt") // 2)
    rounds = steps.group_by("batch", "sampling", "method", "repeat", "step")
    times = rounds.agg(pl.col("step_s", "at_s", "verify_s").n_unique(), pl.len())
    assert times.select(pl.col("step_s", "at_s", "verify_s").max()).row(0) == (1, 1, 1)
    assert times["len"].max() == 2
    texts = rows(folders[2])
    longest = texts.filter(pl.col("decode_s") > 0)
    assert (longest["rounds_s"] > 1.2 * longest["decode_s"]).all()
    alone = rows(folders[1])
    assert (alone["rounds_s"] - alone["decode_s"]).abs().max() < 1e-9


def test_a_batch_is_one_sample(folders):
    manifests = [json.loads((folders[n] / "manifest.json").read_text()) for n in (1, 2)]
    assert [m["samples"] for m in manifests] == [None, [0, 0, 1, 1]]
    prompts = [Prompt(i, str(i), (i,), (i,), "", 0, str(i // 3)) for i in range(8)]
    assert samples_of(prompts, 2) == [0, 0, 0, 0, 0, 0, 1, 1]  # of files of three excerpts


def test_only_the_first_batch_also_runs_by_itself(folders):
    measured = rows(folders[2]).filter(pl.col("alone_s").is_not_null())
    assert set(measured["prompt"]) == {0, 1}


def test_a_batch_that_is_not_complete_is_decoded_again(folders, tmp_path):
    import shutil

    path = tmp_path / "run"
    shutil.copytree(folders[2], path)
    log = path / "prompts.jsonl"
    lines = read_lines(log, PromptRow)
    left = [row for row in lines if row.unit != (1, "T=0", 0)]
    write_lines(log, left)
    names = {row.method for row in lines}
    with RunFolder(path) as folder:
        finished = folder.recover(names, batch=2, write=False)
    assert {unit for unit in finished if unit[1:] == ("T=0", 0)} == {(2, "T=0", 0), (3, "T=0", 0)}
    assert (0, "T=0", 1) in finished


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch": 4, "methods": [{"kind": "assisted"}]}, r"methods\[0\]: assisted generation"),
        (
            {
                "batch": 4,
                "methods": [{"kind": "generate"}],
                "samplings": [{"temperature": 0, "repetition_penalty": 1.2}],
            },
            r"methods\[0\]: with batch = 4",
        ),
        (
            {
                "batch": 4,
                "methods": [
                    {"kind": "tree", "shape": {"kind": "shared_budget", "nodes": 4, "depth": 2}}
                ],
            },
            r"methods\[0\]\.shape\.nodes = 4, and the roots",
        ),
    ],
)
def test_what_cannot_be_batched_is_refused(settings, changes, said):
    with pytest.raises(ConfigError, match=said):
        build(Config.model_validate(settings | changes))
    build(Config.model_validate(settings | changes | {"batch": 1}))


def test_prompts_must_fill_their_batches(start, settings):
    prompts = settings["prompts"] | {"count": 4}
    with pytest.raises(ConfigError, match=r"set prompts\.count to 3 or 6"):
        start({"batch": 3, "prompts": prompts, "methods": METHODS})


@pytest.mark.parametrize("lengths", [(6, 1, 13, 9), (4, 4)])
def test_padding_leaves_the_texts_of_generate_as_they_are(loaded_pair, lengths):
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(1, 280, (n,), generator=generator) for n in lengths]
    ends = stop_at_tokens(loaded_pair.end_tokens)
    alone, sampling = [], Sampling(temperature=0.0)
    for prompt in prompts:
        more = {"max_new_tokens": 24, "stop": ends, "seed": 0}
        alone.append(finish(generate_plain(loaded_pair, prompt, sampling, **more)).tokens)
    # texts that end at different times: each where the first of its tokens comes that no prompt's text had
    stop = lambda ids: ends(ids) or len(ids) % 7 == 0  # noqa: E731
    together = finish_batch(
        generate_plain_together(
            [loaded_pair] * len(prompts), prompts, sampling, max_new_tokens=24, stop=stop, seed=0
        ),
        len(prompts),
    )
    for prompt, text, outcome in zip(prompts, alone, together, strict=True):
        assert len(outcome.tokens) == 7 - len(prompt) % 7
        assert outcome.tokens == text[: len(outcome.tokens)]
    texts = [step.texts for step in max(together, key=lambda o: len(o.tokens)).steps]
    assert texts == sorted(texts, reverse=True)


def test_a_text_that_fails_leaves_the_others_of_its_batch(start, settings, monkeypatch):
    from treespec.draft import lookup

    real, drafters = lookup.PromptLookup.prefill, []

    def fragile(self, tokens):
        drafters.append(self)
        if len(drafters) == 2:
            raise RuntimeError("no room for it")
        return real(self, tokens)

    monkeypatch.setattr(lookup.PromptLookup, "prefill", fragile)
    changes = {"batch": 2, "methods": METHODS, "samplings": [{"temperature": 0}]}
    found = rows(start(changes).folder)
    failed = found.filter(pl.col("error").is_not_null())
    assert len(failed) == 1
    assert "no room for it" in failed["error"][0]
    assert len(found) == 2 * (4 + 1)  # and a twin
