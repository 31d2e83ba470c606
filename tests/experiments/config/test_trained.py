"""Trained heads in configs: read once, refused before the first token, recorded with their conventions."""

import json
from pathlib import Path

import pytest
from head_formats import FORMATS
from heads import files
from rich.console import Console

from treespec.draft import BlockDraft, Medusa, Merge
from treespec.draft.trained.mtp_files import load_mtp
from treespec.errors import LoadError
from treespec.experiments.config.build import build
from treespec.experiments.config.file import validated
from treespec.experiments.config.trained import heads_in
from treespec.experiments.errors import ConfigError, PromptError, RunFolderError
from treespec.experiments.records.changes import require_same_methods
from treespec.experiments.records.manifest import method_data
from treespec.experiments.report.details import facts
from treespec.experiments.report.run import load_run
from treespec.experiments.run.inputs import require_fits
from treespec.experiments.run.prompts import Prompt
from treespec.models.load import load_pair
from treespec.models.outline import outline_pair


@pytest.fixture(scope="module")
def pair():
    return load_pair("embedded", "none")


def experiment(draft, shape="kary:2x3", **more):
    data = {
        "name": "heads",
        "models": {"draft": "none"},
        "prompts": {"kind": "embedded", "count": 1},
        "max_new_tokens": 8,
        "samplings": [{"temperature": 0}, {"temperature": 1}],
        "methods": [{"kind": "tree", "draft": draft, "shape": shape, **more}],
    }
    return build(validated("test.yaml", data))


@pytest.fixture(scope="module")
def heads(pair, tmp_path_factory):
    return written(tmp_path_factory.mktemp("heads"), pair.target)


def written(folder, target):
    """A folder for each family, with random heads for a target."""
    random, config = files.Random(0), target.model.config
    width, vocab = config.hidden_size, config.vocab_size
    tensors = {}
    for i in range(4):
        tensors[f"{i}.0.linear.weight"] = random.linear(width, width)
        tensors[f"{i}.0.linear.bias"] = random.normal(width)
    files.write(folder / "medusa", {"medusa_num_heads": 4}, tensors, "medusa_lm_head.pt")
    tensors = {"fc.weight": random.linear(width, 2 * width)}
    for name in (
        "hidden_norm",
        "norm",
        *(f"layers.0.{n}_layernorm" for n in ("input", "post_attention")),
    ):
        tensors[f"{name}.weight"] = random.gain(width)
    attention = "layers.0.self_attn"
    for name, rows in (("q", 32), ("k", 16), ("v", 16)):
        tensors[f"{attention}.{name}_proj.weight"] = random.linear(rows, width)
    tensors[f"{attention}.o_proj.weight"] = random.linear(width, 32)
    tensors |= {f"{attention}.{name}_norm.weight": random.gain(8) for name in "qk"}
    for name, rows, columns in (("gate", 64, width), ("up", 64, width), ("down", width, 64)):
        tensors[f"layers.0.mlp.{name}_proj.weight"] = random.linear(rows, columns)
    layer = {
        **files.LAYER, "hidden_size": width, "vocab_size": vocab, "model_type": "qwen3", "head_dim": 8,
        "block_size": 6,
        "dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, target.layer_count - 1]},
    }  # fmt: skip
    files.write(folder / "block", layer, tensors)
    return folder


def test_each_is_made_along_its_shape(pair, heads):
    for source, kind in (("medusa", Medusa), ("block", BlockDraft)):
        built = experiment({"source": source, "model": str(heads / source)})
        require_fits(built, pair, [])
        (method,) = built.methods
        one, other = (method.drafter(pair, sampling) for sampling in ("T=0", "T=1"))
        assert type(one) is kind
        assert one.given is other.given  # read once
        assert (method.by_pair, method.own_models, method.max_depth) == (False, (), 3)
        assert [str(c.rule) for c in method.choices.values()] == ["greedy", "rrsw"]
    causal = experiment({"source": "block", "model": str(heads / "block"), "causal": True})
    assert causal.methods[0].drafter(pair, "T=1").given.rules.causal
    assert experiment(
        {"source": "block", "model": str(heads / "block")},
        {"kind": "ddtree", "size": 9, "depth": 5},
    )


def test_a_changed_file_is_read_anew(pair, heads):
    built = experiment({"source": "medusa", "model": str(heads / "medusa")}).methods[0]
    (before,) = heads_in([built.config.draft])
    head, digest = before.head(pair.target), before.sha256
    config = heads / "medusa" / "config.json"
    config.write_text(json.dumps({"medusa_num_heads": 2}))
    assert before.head(pair.target) is not head
    assert before.sha256 != digest


def test_a_prompt_beyond_the_context_of_a_head_is_refused_before_the_run(pair, heads):
    built = experiment({"source": "block", "model": str(heads / "block")})  # 256 positions
    require_fits(built, pair, [Prompt(0, "short", None, tuple(range(200)), "short", 0)])
    with pytest.raises(PromptError, match="context is 256"):
        require_fits(built, pair, [Prompt(0, "long", None, tuple(range(250)), "long", 0)])


def test_a_run_is_not_resumed_with_another_head(pair, heads):
    built = experiment({"source": "block", "model": str(heads / "block")})
    before = {"methods": json.loads(json.dumps([method_data(method) for method in built.methods]))}
    require_same_methods(Path("run"), built, before)
    config = heads / "block" / "config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(RunFolderError, match=r"files of the head '.*block' have changed"):
        require_same_methods(Path("run"), built, before)


def test_what_does_not_fit_is_refused_with_its_key(pair, heads, tmp_path):
    for draft, shape, said in (
        ({"source": "medusa", "model": str(heads / "medusa")}, "chain:5", "the head predicts 4 positions"),
        ({"source": "block", "model": str(heads / "block")}, "chain:6", "the head predicts 5 positions"),
        ({"source": "medusa", "model": str(heads / "block")}, "chain:2", "is no medusa head"),
        ({"source": "block", "model": "nobody/nothing"}, "chain:2", "there is no head 'nobody/nothing'"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as refused:
            require_fits(experiment(draft, shape), pair, [])
        assert str(refused.value).startswith("methods[0].draft: ")
        assert said in str(refused.value)
    require_fits(experiment(draft, shape), outline_pair("embedded", "none"), [])  # no weights yet
    with pytest.raises(ConfigError, match="a budget is for sources that bring their own"):
        experiment({"source": "medusa", "model": "x"}, {"kind": "budget", "depth": 4})
    with pytest.raises(ConfigError, match=r"methods\[0\]\.draft\.model is missing"):
        experiment({"source": "medusa"})


def test_a_module_of_a_target(tmp_path):
    """Its conventions are keys; without a folder, the target's is meant."""
    model = FORMATS["mtp, speculators"].target()
    FORMATS["mtp, speculators"].write(tmp_path)
    for key, value in (("state", "pre"), ("zero_first", True), ("model", None)):
        draft = {"source": "mtp", "model": str(tmp_path), key: value}
        (head,) = heads_in([experiment(draft).methods[0].config.draft])
        if key == "model":
            assert head.sha256 is None
            with pytest.raises(LoadError, match="was not read from files"):
                head.head(model)
        else:
            assert head.head(model) is head.head(model)
            wanted = load_mtp(str(tmp_path), model, **{key: value}).contract
            assert head.head(model).contract == wanted


def test_within_a_merge(pair, heads):
    sources = [{"source": "medusa", "model": str(heads / "medusa")}, {"source": "lookup"}]
    built = experiment(
        {"source": "merge", "sources": sources, "rates": [[[0.8, 0.1]], [[0.5]]]},
        shape={"kind": "budget", "depth": 3, "size": 6, "branching": 2},
    )
    require_fits(built, pair, [])
    assert type(built.methods[0].drafter(pair, "T=1")) is Merge


def test_a_run_prints_and_records_the_conventions(start, loaded_pair, tmp_path):
    heads = written(tmp_path / "written", loaded_pair.target)
    methods = [{"kind": "plain"}] + [
        {
            "kind": "tree", "name": source, "shape": "kary:2x2",
            "draft": {"source": source, "model": str(heads / source)},
        }
        for source in ("medusa", "block")
    ]  # fmt: skip
    console = Console(record=True, width=400)
    folder = start(
        {"methods": methods, "samplings": [{"temperature": 0}, {"temperature": 1}], "max_new_tokens": 6},
        out="heads", console=console,
    ).folder  # fmt: skip
    contract = "block: reads boundary 1, the state after the final norm; order [boundary 1, final]"
    assert contract in " ".join(console.export_text().split())
    manifest = json.loads((folder / "manifest.json").read_text())
    recorded = manifest["models"]["heads"]
    assert [entry["contract"].split(":")[0] for entry in recorded.values()] == ["medusa", "block"]
    assert any(contract in entry["contract"] for entry in recorded.values())
    told = [text for key, text in facts(load_run(folder)).items() if key.startswith("head ")]
    assert len(told) == 2
    assert contract in told[1]
    digests = [method["files"] for method in manifest["methods"] if method["files"]]
    assert [len(str(digest)) > 64 for digest in digests] == [True, True]
