"""Drafts whose vocabulary does not suit a method are refused before any weights are read."""

import json
import os

import polars as pl
import pytest
from other_tokenizers import metaspace, save_tiny_model
from tiny_encoder_decoders import encoder_decoder
from torch import nn
from transformers import AutoTokenizer

from treespec.errors import LoadError, TokenizerMismatch
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError, PromptError
from treespec.experiments.lossless.check import check_lossless
from treespec.experiments.measure.merge_rates import measured
from treespec.experiments.measure.searched_run import run
from treespec.experiments.measure.traces import trace
from treespec.experiments.run.models import load_models


@pytest.fixture(scope="module")
def places(tiny_pair, tmp_path_factory):
    """A pair of one tokenizer, a draft of another one, and an encoder-decoder, by name."""
    folder = tmp_path_factory.mktemp("drafts")
    tokenizer = AutoTokenizer.from_pretrained(tiny_pair / "target")
    encoder_decoder("t5", vocab_size=len(tokenizer)).save_pretrained(folder / "t5")
    tokenizer.save_pretrained(folder / "t5")
    save_tiny_model(folder / "other", metaspace())
    (folder / "texts").write_text("def walk(tree):\n    return tree\n")
    (folder / "empty").write_text("\n")
    (folder / "bytes").write_bytes(b"\xff")
    return {"target": tiny_pair / "target", "draft": tiny_pair / "draft", "folder": folder}


def config_of(places, source, **models):
    return Config.model_validate({
        "name": "vocabularies",
        "models": {"target": os.fspath(places["target"]), "draft": os.fspath(places["draft"]),
                   "dtype": "float32", "passes": "eager", "draft_passes": "eager", **models},
        "prompts": {"kind": "embedded", "count": 1, "tokens": 20}, "max_new_tokens": 4, "warmup": 0,
        "samplings": [{"temperature": 0}],
        "methods": [{"kind": "plain"}, {"kind": "tree", "shape": "chain:2", "draft": source,
                     "name": "mine"}],
    })  # fmt: skip


def never(config):
    raise AssertionError("weights were read")


def frequent(places, n=16, texts="texts"):
    return {"source": "model", "frequent": n, "texts": [os.fspath(places["folder"] / texts)]}


@pytest.mark.parametrize(
    ("draft", "models", "said"),
    [
        ("strings", {"other_tokenizer": True}, "draft.source = strings is for a draft model of another"),
        ((9_999,), {}, "draft.frequent = 9,999, but the draft has logits of"),
        ((16,), {"draft": "other", "other_tokenizer": True},
         "draft.frequent = 16, but the draft has another tokenizer"),
        ((16,), {"target": "t5", "draft": "t5"}, "draft.frequent = 16, but .* is an encoder-decoder"),
        ((16, "none"), {}, "draft.texts: .*none: No such file"),
        ((16, "bytes"), {}, "draft.texts: .*bytes: not UTF-8"),
        ((16, "empty"), {}, "draft.texts = .*empty: no text"),
    ],
)  # fmt: skip
def test_what_a_vocabulary_does_not_allow_is_refused(places, tmp_path, draft, models, said):
    draft = {"source": draft} if draft == "strings" else frequent(places, *draft)
    models = {
        key: os.fspath(places["folder"] / value) if isinstance(value, str) else value
        for key, value in models.items()
    }
    with pytest.raises(ConfigError, match=rf"^method 'mine': {said}"):
        run(config_of(places, draft, **models), folder=tmp_path / "run", load=never)


READERS = {
    "check": lambda config: check_lossless(config, samples=8),
    "merge rates": measured,
    "run": run,
    "trace": trace,
    "trace of a method": lambda config: trace(config, method="mine"),
}


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("reader", READERS)
def test_a_special_token_of_the_draft_is_refused_before_weights_are_read(
    places, tmp_path, monkeypatch, reader, own
):
    """Of the draft of the pair, or of one that only the method names."""
    if own and reader == "trace":
        pytest.skip("records the draft of the pair alone")
    monkeypatch.setattr("treespec.models.load.read_model", None)
    other, path = os.fspath(places["folder"] / "other"), tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "def walk(tree): </s> " * 20}) + "\n")
    model = {"source": "model", "model": other if own else None}
    config = config_of(places, model, draft="none" if own else other, other_tokenizer=True)
    data = config.model_dump(mode="json") | {
        "prompts": {"kind": "jsonl", "path": os.fspath(path), "tokens": 40}
    }
    if reader == "merge rates":
        merge = {
            "source": "merge",
            "sources": [model, {"source": "lookup"}],
            "rates": [[[0.5]]] * 2,
        }
        shape = {"kind": "budget", "depth": 3, "size": 8, "branching": 2}
        data["methods"] = [{"kind": "tree", "draft": merge, "shape": shape, "name": "mine"}]
    with pytest.raises(PromptError, match=r"line 1.*'</s>', a special token of the draft"):
        READERS[reader](Config.model_validate(data))


def test_what_suits_is_loaded(places, tmp_path):
    other = {"draft": os.fspath(places["folder"] / "other"), "other_tokenizer": True}
    for draft, models in ((frequent(places), {}), ({"source": "strings"}, other)):
        folder = run(config_of(places, draft, **models), folder=tmp_path / draft["source"]).folder
        rows = pl.read_parquet(folder / "prompts.parquet")
        assert rows["error"].null_count() == len(rows)
        assert set(rows["equal_to_plain"].to_list()) == {True}


def test_a_model_that_is_missing_is_named_by_its_key(places, tmp_path):
    config = config_of(places, frequent(places), draft=os.fspath(tmp_path / "none"))
    with pytest.raises(LoadError, match=r"^models\.draft: "):
        run(config, folder=tmp_path / "run", load=never)


@pytest.mark.parametrize(
    ("models", "key"),
    [
        ({"target": "none", "draft": "none"}, "models.target: "),  # whatever names a message holds
        ({"draft": "none"}, "models.draft: "),
        ({"draft": "folder"}, "models.draft: "),
        (
            {"draft": "other"},
            r"models.draft: target and draft \(.*other'\) have different tokenizers",
        ),
        ({"device": "cuda:99"}, "models.device='cuda:99'"),
    ],
)
def test_an_error_in_loading_names_the_key_of_its_model(places, models, key):
    folders = {"none": "/none", "folder": places["folder"], "other": places["folder"] / "other"}
    models = {name: os.fspath(folders.get(value, value)) for name, value in models.items()}
    with pytest.raises((LoadError, TokenizerMismatch), match=f"^{key}"):
        load_models(config_of(places, {"source": "model"}, **models).models)


def test_a_head_that_cannot_be_trimmed_is_named_by_its_key(places, tmp_path):
    class Head(nn.Linear):
        pass

    def load(config):
        pair = load_models(config)
        pair.draft.model.lm_head.__class__ = Head
        return pair

    with pytest.raises(
        ConfigError, match=r"^method 'mine': draft.frequent = 16: .*not a plain matrix"
    ):
        run(config_of(places, frequent(places)), folder=tmp_path / "run", load=load)
