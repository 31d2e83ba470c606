"""Loading pairs from folders, and every way in which it can fail: at once, and in one sentence."""

import json
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import HfApi
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    ViTConfig,
)
from transformers.utils import logging as hf_logging

from treespec.errors import CannotEnlarge, LoadError, TokenizerMismatch, UnsupportedModel
from treespec.models import source
from treespec.models.load import Pair, load_pair
from treespec.models.same_tokenizer import require_same_tokenizer

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def tokenizer_of(
    merges: tuple[tuple[str, str], ...] = (("t", "h"), ("th", "e")),
    change: Callable[[Tokenizer], None] = lambda _: None,
    **special: str,
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with a few merges."""
    words = [*BYTES, "th", "the", "<|end|>"]
    core = Tokenizer(BPE({word: i for i, word in enumerate(words)}, list(merges)))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    change(core)
    return PreTrainedTokenizerFast(tokenizer_object=core, **({"eos_token": "<|end|>"} | special))


def llama(vocab_size: int, layers: int = 1) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        num_hidden_layers=layers,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with target (bfloat16, vocabulary padded to 264) and draft (float32, padded to 260)."""
    folder = tmp_path_factory.mktemp("pair")
    torch.manual_seed(0)
    llama(264, layers=2).to(torch.bfloat16).save_pretrained(folder / "target")
    llama(260).save_pretrained(folder / "draft")
    for role in ("target", "draft"):
        tokenizer_of().save_pretrained(folder / role)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def reconfigure(folder: Path, **fields: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_a_pair_of_two_folders(saved: Path) -> None:
    pair = load_pair(saved / "target", str(saved / "draft"))
    assert isinstance(pair, Pair)
    assert pair.target.vocab_size == pair.draft.vocab_size == 264, (
        "the draft is padded to the target"
    )
    assert pair.draft.model.config.vocab_size == 260
    assert pair.target.model.dtype is pair.draft.model.dtype is torch.float32
    assert not pair.target.model.training
    assert not any(p.requires_grad for p in pair.target.model.parameters())
    assert pair.tokenizer.decode(pair.tokenizer.encode("in the end")) == "in the end"
    assert pair.name == f"{saved / 'target'} + {saved / 'draft'}"
    pair.draft.prefill(torch.tensor([1, 2]))
    assert pair.draft.run(torch.tensor([3]), (-1,)).logits.shape == (1, 264)


def test_a_folder_of_a_pair(saved: Path) -> None:
    pair = load_pair(saved)
    assert (pair.target.model.config.num_hidden_layers, pair.name) == (2, str(saved))
    other = load_pair(saved, saved / "target")
    assert other.draft.model.config.num_hidden_layers == 2
    assert other.draft.model is not other.target.model


@pytest.mark.parametrize(
    ("asked", "target", "draft"),
    [
        ("auto", torch.bfloat16, torch.float32),
        ("bfloat16", torch.bfloat16, torch.bfloat16),
        ("torch.float32", torch.float32, torch.float32),
        (torch.float64, torch.float64, torch.float64),
    ],
)
def test_dtypes(saved: Path, asked: str, target: torch.dtype, draft: torch.dtype) -> None:
    pair = load_pair(saved, dtype=asked, device=torch.device("cpu"))
    assert (pair.target.model.dtype, pair.draft.model.dtype) == (target, draft)


def test_enlarge_is_of_the_target_only(saved: Path) -> None:
    plain, enlarged = load_pair(saved), load_pair(saved, enlarge="100K")
    assert 100_000 <= enlarged.target.model.num_parameters() <= 105_000
    assert enlarged.draft.model.num_parameters() == plain.draft.model.num_parameters()
    tokens = torch.tensor([4, 8, 15])
    for pair in (plain, enlarged):
        pair.target.prefill(tokens)
    before, after = (
        p.target.run(torch.tensor([16, 23]), (-1, 0)).logits for p in (plain, enlarged)
    )
    assert torch.allclose(before, after, atol=1e-4 * float(before.abs().max()))


def test_embedded() -> None:
    pair = load_pair("embedded")
    assert pair.name == "embedded"
    assert pair.target.model.num_parameters() > 5 * pair.draft.model.num_parameters()
    assert pair.target.vocab_size == pair.draft.vocab_size
    named = load_pair("embedded", "embedded")  # as a grid over drafts names it
    assert named.draft.model.num_parameters() == pair.draft.model.num_parameters()
    text = "def f(x):\n    return x + 1\n"
    assert pair.tokenizer.decode(pair.tokenizer.encode(text)) == text


def test_loading_is_quiet(saved: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    load_pair(saved)
    assert capfd.readouterr() == ("", "")
    assert (hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()) == before


# -- early errors -----------------------------------------------------------------------------------


def test_no_draft(saved: Path) -> None:
    with pytest.raises(
        LoadError, match=r"target' is a target without a draft: .*--draft none --source lookup"
    ):
        load_pair(saved / "target")
    with pytest.raises(LoadError, match=r"'embeded' .*\(and not a local folder\).*only 'embedded'"):
        load_pair("embeded")


@pytest.mark.parametrize("draft", [None, "embedded"])
def test_a_target_that_is_missing_or_damaged_is_refused_for_that(
    tmp_path: Path, draft: str | None
) -> None:
    """Even if no draft is named: the target's error comes first."""
    with pytest.raises(
        LoadError, match=r"there is no model folder '/no/such/model'.*check the path"
    ):
        load_pair("/no/such/model", draft)
    (tmp_path / "config.json").write_text('{"model_type": ')
    with pytest.raises(LoadError, match=r"config\.json\S* is not (a valid )?JSON"):
        load_pair(tmp_path, draft)


@pytest.mark.parametrize(
    "name", ["/no/such/model", "./no-model", "no/such/model", "~/no-such-model", ""]
)
def test_missing_folder(saved: Path, name: str) -> None:
    with pytest.raises(LoadError, match=f"there is no model folder '{name}'"):
        load_pair(name, saved / "draft")
    with pytest.raises(LoadError, match="there is no model folder"):
        load_pair(saved / "target", Path("nowhere"))


@pytest.mark.parametrize("reason", ["HF_HUB_OFFLINE", "no network"])
def test_hub_id_offline(saved: Path, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    if reason == "no network":

        def refused(*_: object, **__: object) -> None:
            raise OSError("[Errno -2] Name or service not known")

        monkeypatch.setattr(HfApi, "model_info", refused)
    started = time.monotonic()
    with pytest.raises(
        LoadError, match=r"'some-org/some-model' is neither .* nor in the local cache"
    ) as caught:
        load_pair("some-org/some-model", saved / "draft")
    assert time.monotonic() - started < 5, "no retries"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__, "no second traceback"


def test_hub_id_in_the_cache(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--some-org--some-model" / "snapshots" / "abc"
    shutil.copytree(saved / "target", snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(source, "try_to_load_from_cache", lambda repo, file: str(snapshot / file))
    assert source.find("some-org/some-model") == source.Place("some-org/some-model", local=True)


def test_hub_says_no(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        response = SimpleNamespace(headers={}, request=None)
        raise source.RepositoryNotFoundError("404", response=response)

    monkeypatch.setattr(HfApi, "model_info", unknown)
    with pytest.raises(LoadError, match="has no model 'some-org/some-model' that you may read"):
        load_pair("some-org/some-model", saved / "draft")


def test_folder_without_config(folder: Path) -> None:
    (folder / "draft" / "config.json").unlink()
    with pytest.raises(LoadError, match=r"draft' has no config\.json"):
        load_pair(folder)
    with pytest.raises(LoadError, match="is a file: give the folder"):
        load_pair(folder / "target" / "config.json", folder / "draft")


def test_folder_without_weights(folder: Path) -> None:
    (folder / "target" / "model.safetensors").unlink()
    with pytest.raises(
        LoadError, match=r"cannot read the weights of .*target': .*model\.safetensors"
    ):
        load_pair(folder)


def test_broken_files(folder: Path) -> None:
    (folder / "target" / "model.safetensors").write_bytes(b"short")
    with pytest.raises(LoadError, match=r"cannot read the weights of .*target': "):
        load_pair(folder)
    (folder / "target" / "config.json").write_text("{")
    with pytest.raises(LoadError, match=r"target': .*config\.json is not JSON: line 1"):
        load_pair(folder)
    (folder / "target" / "tokenizer.json").write_text("{")
    with pytest.raises(LoadError, match=r"cannot read the tokenizer of .*target': "):
        load_pair(folder)


@pytest.mark.parametrize("change", [{"num_hidden_layers": 3}, {"intermediate_size": 48}])
def test_weights_that_do_not_fit(folder: Path, change: dict) -> None:
    """transformers would fill the gaps with random numbers, print a table and continue."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger("transformers").addHandler(handler)
    reconfigure(folder / "target", **change)
    with pytest.raises(
        LoadError, match=r"do not match its config\.json: \d+ tensors .*model\.layers"
    ):
        load_pair(folder)
    logging.getLogger("transformers").removeHandler(handler)
    assert not records


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_folder_without_tokenizer(folder: Path, model_type: str) -> None:
    """For gpt2 and other types, transformers would make an empty tokenizer."""
    for file in (folder / "draft").glob("tokenizer*"):
        file.unlink()
    reconfigure(folder / "draft", model_type=model_type)
    with pytest.raises(LoadError, match="draft' has no tokenizer"):
        load_pair(folder)


def test_model_types_that_are_no_causal_language_model(folder: Path) -> None:
    ViTConfig().save_pretrained(folder / "target")
    with pytest.raises(
        UnsupportedModel, match="'vit' model, which transformers does not know as a causal"
    ):
        load_pair(folder)
    reconfigure(folder / "target", model_type="gloop")
    with pytest.raises(
        UnsupportedModel, match="model type `gloop` but Transformers does not recognize"
    ):
        load_pair(folder)


def test_code_of_the_folder_is_not_run(folder: Path) -> None:
    reconfigure(folder / "target", model_type="gloop", auto_map={"AutoConfig": "evil.Config"})
    started = time.monotonic()
    with pytest.raises((LoadError, UnsupportedModel), match="custom code"):
        load_pair(folder)
    assert time.monotonic() - started < 10, "nobody is asked, nobody waited for"


def test_models_that_cannot_run_trees(folder: Path) -> None:
    config = BloomConfig(vocab_size=264, hidden_size=16, n_layer=1, n_head=2)
    BloomForCausalLM(config).save_pretrained(folder / "target")
    with pytest.raises(UnsupportedModel, match="bloom"):
        load_pair(folder)


@pytest.mark.parametrize("dtype", ["float23", "int8", torch.int64, ""])
def test_dtype_that_is_none(saved: Path, dtype: object) -> None:
    with pytest.raises(LoadError, match=f"dtype='{dtype}' .* choose one of float32, bfloat16"):
        load_pair(saved, dtype=dtype)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_that_is_not_there(saved: Path, device: str) -> None:
    with pytest.raises(LoadError, match=f"device='{device}', but torch finds no CUDA device"):
        load_pair(saved, device=device)


def test_device_that_is_none(saved: Path) -> None:
    with pytest.raises(LoadError, match="device='gpu' cannot be used"):
        load_pair(saved, device="gpu")


def test_enlarge_to_less(saved: Path) -> None:
    with pytest.raises(CannotEnlarge, match="cannot enlarge to 1,000 parameters"):
        load_pair(saved, enlarge="1K")


# -- tokenizers -------------------------------------------------------------------------------------


def other(role: str) -> PreTrainedTokenizerFast:
    if role == "renamed":
        words = [*BYTES, "th", "thx", "<|end|>"]
        core = Tokenizer(BPE({word: i for i, word in enumerate(words)}, [("t", "h")]))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>")
    if role == "longer":
        longer = tokenizer_of()
        longer.add_tokens(["<|more|>"])
        return longer
    if role == "merges":
        return tokenizer_of(merges=(("t", "h"),))
    if role == "splits":
        digits = pre_tokenizers.Split(Regex(r"[a-z]"), "isolated")
        return tokenizer_of(
            change=lambda core: setattr(
                core, "pre_tokenizer", pre_tokenizers.Sequence([digits, core.pre_tokenizer])
            )
        )
    return tokenizer_of(change=lambda core: setattr(core, "normalizer", normalizers.NFKC()))


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ("renamed", "token 257 is 'the' for the target and 'thx' for the draft"),
        ("longer", r"token 259 is missing for the target and '<\|more\|>' for the draft"),
        ("merges", r"split text differently: token \d+ of a probe text is 'the' .* and 'th' "),
        ("splits", r"split text differently"),
        ("normalises", r"split text differently"),
    ],
)
def test_different_tokenizers(folder: Path, role: str, words: str) -> None:
    other(role).save_pretrained(folder / "draft")
    with pytest.raises(TokenizerMismatch, match=words):
        load_pair(folder)


def test_roles_of_special_tokens_may_differ() -> None:
    """A base draft for a chat target: ids mean the same, though texts end differently."""
    require_same_tokenizer(tokenizer_of(), tokenizer_of(eos_token="the", pad_token="<|end|>"))
