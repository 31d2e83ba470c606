"""Turn the errors of reading a model into one sentence that names the file.

transformers, tokenizers, safetensors and torch report errors in terms of their own code. Their text is kept
only if it is a sentence that a user understands. Otherwise the files are inspected, and the first damaged
file is named. The original error remains chained.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import (
    StrictDataclassClassValidationError,
    StrictDataclassFieldValidationError,
)
from safetensors import SafetensorError, safe_open

from treespec.errors import LoadError, TreespecError, Unreadable, for_people, said
from treespec.reading import in_json, open_file, parse_json, read_bytes

__all__ = ["Files", "permitted", "reading"]

LARGEST_JSON_FILE = 2**28
"""Bytes of a JSON file: tokenizers of 256,000 tokens take 33 MB."""

CONFIG = "config.json"
GENERATION = "generation_config.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")

SIZES = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers"), 10_000),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_head", "head_dim"), 100_000),
    **dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size", "n_embd"), 100_000_000),
}
"""Config keys that are sizes, with bounds far above any model: they decide how much memory is allocated."""

UNKNOWN = {
    "configuration": f"transformers cannot build a model from its {CONFIG}",
    "weights": f"transformers cannot build this model from its {CONFIG} and weights",
    "tokenizer": "the files of its tokenizer are damaged or belong to another version",
}
"""Message for each part if nothing more precise is known."""

TYPES = {"int": "an integer", "float": "a number", "str": "text", "bool": "true or false"}
TYPES |= {"list": "a list", "dict": "an object", "NoneType": "null"}


class Files:
    """The files of a model, in its folder or in the hub's local cache.

    Args:
        name: a folder or a hub id.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def path(self, file: str) -> Path | None:
        """The path of a file, or None if it does not exist.

        Raises:
            LoadError: if its folder may not be read.
        """
        folder = Path(self.name)
        with permitted():
            if folder.is_dir():
                return folder / file if (folder / file).exists() else None
        cached = try_to_load_from_cache(self.name, file)
        return Path(cached) if isinstance(cached, str) else None

    def data(self, file: str) -> dict[str, Any]:
        """The object in a JSON file; empty if there is no such file.

        Raises:
            LoadError: if the file holds anything other than a JSON object.
        """
        path = self.path(file)
        if path is None:
            return {}
        try:
            content = read_bytes(path, LARGEST_JSON_FILE)
        except Unreadable as error:
            raise LoadError(str(error)) from error
        try:
            data = parse_json(content, constants=True, unique=False, most=LARGEST_JSON_FILE)
        except Unreadable as error:
            raise LoadError(f"{path} is not JSON: {error}; {_again('file')}") from error
        if not isinstance(data, dict):
            raise LoadError(f"{path} holds {in_json(data)}, but must hold a JSON object")
        return data

    def require_settings(self) -> None:
        """Refuse settings that transformers would ignore or that would allocate excessive memory.

        Raises:
            LoadError: naming file, key and value.
        """
        config = self.data(CONFIG)
        for file, settings in ((CONFIG, config), (GENERATION, self.data(GENERATION))):
            eos = settings.get("eos_token_id")
            ids = eos if isinstance(eos, list) else [0 if eos is None else eos]
            if not all(type(token) is int for token in ids):
                raise LoadError(
                    f"{self.path(file)}: eos_token_id = {in_json(eos)}, but must be a token id or a list "
                    "of token ids"
                )
        nested = [value for value in config.values() if isinstance(value, dict)]
        for section in (config, *nested):
            for key, most in SIZES.items():
                value = section.get(key)
                if type(value) is int and not 1 <= value <= most:
                    raise LoadError(
                        f"{self.path(CONFIG)}: {key} = {in_json(value)}, but must be in 1..{most:,}"
                    )

    def damaged(self, part: str) -> str | None:
        """Which file of a part is damaged, and how; None if no damage can be detected."""
        try:
            if part == "tokenizer":
                for file in TOKENIZER:
                    self.data(file)
            if part == "weights":
                return self._damaged_weights()
        except LoadError as error:
            return str(error)
        return None

    def _damaged_weights(self) -> str | None:
        weights, index = self.path(WEIGHTS), self.path(INDEX)
        files = [] if weights is None else [weights]
        if weights is None and index is not None:
            weight_map = self.data(INDEX).get("weight_map")
            if not isinstance(weight_map, dict) or not weight_map:
                return f"{index} has no weight_map, which says in which file each tensor is stored"
            for file in dict.fromkeys(weight_map.values()):
                shard = self.path(file) if isinstance(file, str) else None
                if shard is None:
                    return f"{index} names the file {in_json(file)}, which does not exist"
                files.append(shard)
        for file in files:
            try:
                with open_file(file, sys.maxsize), safe_open(file, "pt"):
                    pass
            except Unreadable as error:
                return str(error)
            except (SafetensorError, OSError):
                return f"{file} is truncated, damaged, or not a safetensors file: {_again('file')}"
        if files:
            return None
        pickles = [path for name in PICKLES if (path := self.path(name)) is not None]
        if pickles:
            return (
                f"{pickles[0]} cannot be read as weights (only tensors are read from a pickle, and no code "
                "in it is run): save the model as safetensors"
            )
        return f"there is no {WEIGHTS}, {INDEX} or {PICKLES[0]}: give the folder that holds the weights"


@contextmanager
def permitted() -> Iterator[None]:
    """Turn a permission error into a `LoadError`.

    Raises:
        LoadError: naming the folder that may not be read.
    """
    try:
        yield
    except PermissionError as error:
        raise LoadError(f"{error.filename}: {error.strerror}") from error


@contextmanager
def reading(name: str, part: str) -> Iterator[None]:
    """Turn any error inside the context into a `LoadError` of one sentence.

    Args:
        name: the folder or hub id.
        part: `configuration`, `weights` or `tokenizer`.

    Raises:
        LoadError: with the original error as its cause.
    """
    try:
        yield
    except LoadError as error:
        raise LoadError(f"cannot read the {part} of {name!r}: {error}") from error
    except TreespecError:
        raise
    except MemoryError as error:
        raise LoadError(f"cannot read the {part} of {name!r}: out of memory") from error
    except Exception as error:
        files = Files(name)
        config_problem = _config_problem(files, error)
        if config_problem is not None:
            raise LoadError(config_problem) from error
        why = files.damaged(part) or said(error) or f"{UNKNOWN[part]}: {_again('model')}"
        raise LoadError(f"cannot read the {part} of {name!r}: {why}") from error


def _config_problem(files: Files, error: Exception) -> str | None:
    """What is wrong with a key of the config, if that is what transformers reported."""
    text = " ".join(str(error).split())
    path = files.path(CONFIG) or CONFIG
    if isinstance(error, StrictDataclassClassValidationError):
        return f"{path}: {re.sub(r'^.*?Error: ', '', text, count=1)}"
    if not isinstance(error, StrictDataclassFieldValidationError):
        return None
    key = match[1] if (match := re.search(r"field '(\w+)'", text)) else "a key"
    value = files.data(CONFIG).get(key)
    if allowed := re.search(r"doesn't match any type in \((.*?)\)$", text) or re.search(
        r"expected ([\w.]+), got", text
    ):
        kinds = re.findall(r"list(?=\[)|\b(?:int|float|str|bool|list|dict|NoneType)\b", allowed[1])
        must = " or ".join(dict.fromkeys(TYPES[kind] for kind in kinds)) or "of another type"
    elif (told := text.rpartition("Error: ")[2]) and for_people(told):
        return f"{path}: {key} = {in_json(value)}: {told}"
    else:
        must = "something else"
    return f"{path}: {key} = {in_json(value)}, but must be {must}"


def _again(what: str) -> str:
    return f"download or save the {what} again"
