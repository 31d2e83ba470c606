"""A run of an encoder-decoder over prompts with sources: trees, lookup in the source, and `generate`."""

import json
import os

import polars as pl
import pytest
import yaml
from tiny_encoder_decoders import SOURCES, encoder_decoder
from transformers import AutoTokenizer

from treespec import generate, load_pair
from treespec.errors import InvalidPrompt, UnsupportedModel
from treespec.experiments.config.file import load_config
from treespec.experiments.config.schema import Config, SummaryPrompts
from treespec.experiments.errors import ConfigError, PromptError
from treespec.experiments.lossless.check import check_lossless
from treespec.experiments.measure.searched_run import run
from treespec.experiments.measure.traces import trace
from treespec.experiments.run.one_text import decode_one, one_text_config
from treespec.experiments.run.prompts import read_prompts
from treespec.experiments.sweep.grid import load_grid
from treespec.experiments.sweep.sweep import run_sweep
from treespec.models.load import with_drafts
from treespec.models.outline import outline_pair

BUDGET = {"kind": "budget", "size": 8, "depth": 4, "branching": 2}


def test_a_run_over_sources_equals_generate(over_sources, t5_pair, tmp_path):
    folder = run(Config.model_validate(over_sources), folder=tmp_path / "run").folder
    prompts = pl.read_parquet(folder / "prompts.parquet")
    assert prompts["error"].null_count() == len(prompts) == 3 * 2 * 5
    greedy = prompts.filter(pl.col("sampling") == "T=0")
    assert greedy["equal_to_plain"].to_list() == [True] * 15
    assert json.loads((folder / "manifest.json").read_text())["samples"] is None
    pair = load_pair(t5_pair)
    texts = dict(greedy.filter(pl.col("method") == "plain").select("prompt", "tokens").iter_rows())
    given = [generate(pair, "def" if i else "", source=s, max_new_tokens=12)
             for i, s in enumerate(SOURCES)]  # fmt: skip
    assert [list(result.tokens) for result in given] == [texts[i] for i in range(3)]
    together = generate(pair, ["", "def"], source=SOURCES[:2], max_new_tokens=12)
    assert together == given[:2]
    one_empty = generate(
        pair, ["", "", "def"], source=[SOURCES[0], " ", SOURCES[1]], max_new_tokens=12
    )
    assert one_empty[::2] == given[:2]
    assert str(one_empty[1].error).startswith("source[1]: the source has no tokens")


def test_a_batch_gives_the_texts_of_single_prompts(over_sources, tmp_path, capsys):
    """Answers of sources of different lengths, decoded one by one; `generate` pads the sources."""
    made = []
    for batch in (1, 3):
        prompts = over_sources["prompts"] | {"field": "missing", "count": 3}
        config = over_sources | {"prompts": prompts, "batch": batch, "repeats": 1}
        folder = run(Config.model_validate(config), folder=tmp_path / f"{batch}").folder
        table = pl.read_parquet(folder / "prompts.parquet").sort("prompt", "sampling", "method")
        assert table["error"].null_count() == len(table)
        exact = pl.col("sampling").eq("T=0") | ~pl.col("method").str.starts_with("generate")
        made.append(table.filter(exact).select("prompt", "sampling", "method", "tokens", "steps"))
    assert made[0].equals(made[1])


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"batch": 2, "prompts": {"count": 2}}, PromptError, "line 2: its answer begins with .* batch = 2"),
        ({"methods": [{"kind": "plain"}, {"kind": "assisted", "lengths": [3], "thresholds": [0.0]}]},
         ConfigError, r"methods\[1\]: assisted"),
        ({"methods": [{"kind": "tree", "shape": "chain:2",
                       "draft": {"source": "early_exit", "layers": 1}}]},
         ConfigError, r"methods\[0\]\.draft: early_exit skips layers"),
        ({"models": {"passes": "compiled"}}, ConfigError, "models.passes = 'compiled'"),
        ({"models": {"attention": "sdpa"}}, ConfigError, "models.attention = 'sdpa'"),
        ({"search": {}}, ConfigError, "search.prompts: the run measures all"),
        ({"prompts": {"source": None, "field": "article"}}, PromptError, "line 1: .*prompts.source"),
        ({"prompts": {"source": "missing"}}, PromptError, "line 1: field 'missing' holds None"),
        ({"prompts": {"source": "blank"}}, PromptError, "line 1: field 'blank': the source has no tokens"),
    ],
)  # fmt: skip
def test_what_a_run_does_not_cover_is_refused_before_weights_are_read(
    over_sources, tmp_path, changes, error, said, monkeypatch
):
    monkeypatch.setattr("treespec.models.load.read_model", None)
    changed = {
        **over_sources,
        **changes,
        "prompts": over_sources["prompts"] | changes.get("prompts", {}),
    }
    if "models" in changes:
        changed["models"] = over_sources["models"] | changes["models"]
    with pytest.raises(error, match=said):
        run(Config.model_validate(changed), folder=tmp_path / "run")


@pytest.fixture(scope="module")
def bart_pairs(tiny_pair, tmp_path_factory):
    """Pairs of BART, one half of which takes sources of 64 tokens at most, by that half."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_pair / "target")
    folders = {}
    for short in ("target", "draft"):
        folders[short] = tmp_path_factory.mktemp(f"short_{short}")
        for half in ("target", "draft"):
            positions = 64 if half == short else 512
            model = encoder_decoder(
                "bart", vocab_size=len(tokenizer), max_position_embeddings=positions
            )
            model.save_pretrained(folders[short] / half)
            tokenizer.save_pretrained(folders[short] / half)
    return folders


def swept(data, tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump(data | {"sweep": {"seed": [0, 1]}}))
    run_sweep(load_grid(path), tmp_path / "sweep", lambda logs: None)


READERS = {
    "run": lambda data, folder: run(Config.model_validate(data), folder=folder / "run"),
    "trace": lambda data, _: trace(Config.model_validate(data), sampling="T=0"),
    "check": lambda data, _: check_lossless(Config.model_validate(data), samples=8),
    "sweep": swept,
}


@pytest.mark.parametrize("short", ["target", "draft"])
@pytest.mark.parametrize("reader", READERS)
def test_a_source_that_is_too_long_is_refused_before_weights_are_read(
    over_sources, bart_pairs, tmp_path, monkeypatch, reader, short
):
    monkeypatch.setattr("treespec.models.load.read_model", None)
    path = tmp_path / "articles.jsonl"
    articles = (SOURCES[0], SOURCES[0] * 20)
    path.write_text("".join(json.dumps({"article": text}) + "\n" for text in articles))
    data = over_sources | {
        "models": over_sources["models"] | {"target": os.fspath(bart_pairs[short])},
        "prompts": over_sources["prompts"] | {"path": os.fspath(path)},
    }
    with pytest.raises(
        PromptError, match=r"line 2: .*the source has \d+ tokens, but the encoder takes 64"
    ):
        READERS[reader](data, tmp_path)


def test_the_shipped_study_runs(t5_pair, tmp_path):
    """Its texts are sources, from which lookup drafts; decoders are refused."""
    overrides = [
        f"models.target={t5_pair}", "models.draft=null", "models.dtype=float32",
        "models.passes=eager", "models.draft_passes=eager", "prompts.count=1", "max_new_tokens=6",
        "samplings=[{temperature: 0}]", "warmup=0", "alone=0",
    ]  # fmt: skip
    config = load_config("summarise", overrides)
    prompts = pl.read_parquet(run(config, folder=tmp_path / "run").folder / "prompts.parquet")
    assert prompts["error"].null_count() == len(prompts)
    assert set(prompts["equal_to_plain"].to_list()) == {True}
    sources = [prompt.source for prompt in read_prompts(SummaryPrompts(kind="summaries"))]
    assert len(sources) == 18
    assert all(sources)
    with pytest.raises(PromptError, match="'summaries' is read by encoder-decoders"):
        run(load_config("summarise", ["models.target=embedded", "models.draft=null"]))


def test_one_text_behind_a_source(t5_pair):
    """`treespec generate --encoder-source`."""

    def decoded(prompt, source, target=None):
        config = one_text_config(
            {"target": target or os.fspath(t5_pair), "dtype": "float32"},
            {"shape": "expansion:2x2", "draft": None, "law": None, "rule": None},
            {"temperature": 0}, tokens=12, seed=0, chat=False,
        )  # fmt: skip
        return decode_one(config, prompt, source=source)

    expected = generate(load_pair(t5_pair), "def", source=SOURCES[1], max_new_tokens=12)
    assert decoded("def", SOURCES[1]).tokens == expected.tokens
    assert decoded("", SOURCES[0]).tokens
    with pytest.raises(PromptError, match=r"encoder-decoder: give the text .* --encoder-source"):
        decoded("def", None)
    with pytest.raises(PromptError, match="--encoder-source: the source has no tokens"):
        decoded("def", " ")
    with pytest.raises(PromptError, match="--encoder-source is read by encoder-decoders"):
        decoded("def", "text", "embedded")


def test_losslessness_is_checked_behind_the_source_of_each_prompt(over_sources):
    tree = {"kind": "tree", "shape": {"kind": "expansion", "branching": [2, 2]}}
    lookup = {"kind": "tree", "shape": BUDGET, "draft": {"source": "lookup"}}
    changed = {"methods": [tree, lookup]}
    check = check_lossless(Config.model_validate(over_sources | changed), samples=400)
    assert len(check.greedy) == len(check.laws) == 2
    assert not check.failed
    assert [row.compared for row in check.greedy] == [3, 3]
    lossy = tree | {"rule": "typical"}
    wrong = check_lossless(Config.model_validate(over_sources | {"methods": [lossy]}), samples=400)
    assert not wrong.laws[0].comparison.passed


def test_a_check_without_sources_is_refused(over_sources):
    prompts = over_sources["prompts"] | {"source": None, "field": "article"}
    with pytest.raises(PromptError, match=r"line 1: .*prompts\.source"):
        check_lossless(Config.model_validate(over_sources | {"prompts": prompts}), samples=8)


def test_an_encoder_decoder_cannot_draft_for_a_decoder(t5_pair, tiny_pair):
    pair = os.fspath(tiny_pair / "target"), os.fspath(t5_pair / "draft")
    for load in (load_pair, outline_pair):
        with pytest.raises(
            UnsupportedModel, match=r"encoder-decoder \(t5\), but the target reads no"
        ):
            load(*pair)
    with pytest.raises(UnsupportedModel, match="the target reads no source"):
        with_drafts(load_pair(pair[0], "none"), [pair[1]])


def test_sources_that_cannot_be_read_are_refused(t5_pair, loaded_pair):
    pair = load_pair(t5_pair)
    with pytest.raises(InvalidPrompt, match="the source has no tokens"):
        generate(pair, source=" ")
    with pytest.raises(InvalidPrompt, match="encoder-decoders and need a source"):
        generate(pair, "def")
    with pytest.raises(UnsupportedModel, match="llama models have no encoder"):
        generate(loaded_pair, "def", source="def walk")
