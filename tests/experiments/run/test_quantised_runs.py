"""A run of a quantised pair: the baseline is the quantised target, and the manifest says so."""

import json
import os

import polars as pl
import pytest

from treespec.errors import Unavailable
from treespec.experiments.config.schema import Config, ModelsConfig
from treespec.experiments.measure.searched_run import run
from treespec.experiments.run.models import dequantised, load_models
from treespec.models import quantised

CONFIG = {
    "name": "quantised",
    "prompts": {"kind": "embedded", "count": 1, "tokens": 24},
    "max_new_tokens": 12,
    "warmup": 0,
    "samplings": [{"temperature": 0}],
    "methods": [
        {"kind": "generate"},
        {"kind": "plain"},
        {"kind": "tree", "shape": {"kind": "expansion", "branching": [2, 2]}},
    ],
}


def test_a_run_of_a_quantised_target(tiny_pair, tmp_path):
    pytest.importorskip("torchao")
    models = {
        "target": os.fspath(tiny_pair), "dtype": "float32", "draft_dtype": "bfloat16",
        "quantised": "int8-weight-only", "passes": "eager", "draft_passes": "eager",
    }  # fmt: skip
    folder = run(Config.model_validate(CONFIG | {"models": models}), folder=tmp_path / "run").folder
    prompts = pl.read_parquet(folder / "prompts.parquet")
    assert prompts["error"].null_count() == len(prompts)
    assert set(prompts["equal_to_plain"].to_list()) == {True}
    target, draft = (json.loads((folder / "manifest.json").read_text())["models"][role]
                     for role in ("target", "draft"))  # fmt: skip
    assert target["quantised"] == "torchao Int8WeightOnlyConfig"
    assert draft["quantised"] is None
    assert (target["dtype"], draft["dtype"]) == ("float32", "bfloat16")
    assert target["weight_bytes"] < 4 * target["parameters"]
    assert draft["weight_bytes"] == 2 * draft["parameters"]


def test_unpacked_weights_are_told(tiny_pair, tmp_path, monkeypatch):
    pair = load_models(ModelsConfig(target=os.fspath(tiny_pair), dtype="float32"))
    assert dequantised(pair) == []
    pair.target.model.config.quantization_config = {"quant_method": "compressed-tensors"}
    (sentence,) = dequantised(pair)
    assert "(compressed-tensors): its weights are dequantised to float32" in sentence


def test_a_missing_package_is_named_with_the_key(monkeypatch):
    monkeypatch.setattr(quantised, "find_spec", lambda name: None)
    for key in ("quantised", "draft_quantised"):
        with pytest.raises(Unavailable, match=rf"^models\.{key}='int8-dynamic' needs the package"):
            load_models(ModelsConfig.model_validate({key: "int8-dynamic"}))
