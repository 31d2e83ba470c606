"""What goes wrong while transformers reads a model, in one sentence that names the file.

transformers, tokenizers, safetensors and torch say it in the words of their own code, each in others. So
their words are kept only where they are a sentence; else the files are looked at, and the first that is
damaged is named. What they said stays chained to the error.
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
"""Keys of a config that are sizes, with a bound far above all models: memory is taken by them."""

UNKNOWN = {
    "configuration": f"transformers can make no model of its {CONFIG}",
    "weights": f"transformers cannot make this model of its {CONFIG} and weights",
    "tokenizer": "the files of its tokenizer are damaged, or those of another version",
}
"""What is said of a part where nobody has said it better."""

TYPES = {"int": "an integer", "float": "a number", "str": "text", "bool": "true or false"}
TYPES |= {"list": "a list", "dict": "an object", "NoneType": "null"}


class Files:
    """The files of a model, in its folder or in the cache of the hub.

    Args:
        name: a folder or a hub id.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def path(self, file: str) -> Path | None:
        """Where a file is; None if it is not there.

        Raises:
            LoadError: if nobody may look into its folder.
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
            LoadError: if there is one and it holds anything else.
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
        """Refuse settings that transformers would overlook, or take memory by.

        Raises:
            LoadError: naming file, key and value.
        """
        config = self.data(CONFIG)
        for file, settings in ((CONFIG, config), (GENERATION, self.data(GENERATION))):
            ends = settings.get("eos_token_id")
            given = ends if isinstance(ends, list) else [0 if ends is None else ends]
            if not all(type(end) is int for end in given):
                raise LoadError(
                    f"{self.path(file)}: eos_token_id = {in_json(ends)}, but must be a token id or a list "
                    "of token ids"
                )
        inner = [value for value in config.values() if isinstance(value, dict)]
        for part in (config, *inner):
            for key, most in SIZES.items():
                value = part.get(key)
                if type(value) is int and not 1 <= value <= most:
                    raise LoadError(
                        f"{self.path(CONFIG)}: {key} = {in_json(value)}, but must be in 1..{most:,}"
                    )

    def damaged(self, part: str) -> str | None:
        """Which file of a part is damaged, and how; None if none is, as far as one can see."""
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
        whole, index = self.path(WEIGHTS), self.path(INDEX)
        files = [] if whole is None else [whole]
        if whole is None and index is not None:
            named = self.data(INDEX).get("weight_map")
            if not isinstance(named, dict) or not named:
                return f"{index} has no weight_map, which says in which file each tensor is"
            for file in dict.fromkeys(named.values()):
                shard = self.path(file) if isinstance(file, str) else None
                if shard is None:
                    return f"{index} names the file {in_json(file)}, which is not there"
                files.append(shard)
        for file in files:
            try:
                with open_file(file, sys.maxsize), safe_open(file, "pt"):
                    pass
            except Unreadable as error:
                return str(error)
            except (SafetensorError, OSError):
                return f"{file} is cut short, damaged, or no safetensors file: {_again('file')}"
        if files:
            return None
        pickles = [path for name in PICKLES if (path := self.path(name)) is not None]
        if pickles:
            return (
                f"{pickles[0]} cannot be read as weights (a pickle is opened only for tensors, and nothing "
                "in it is run): save the model as safetensors"
            )
        return f"there is no {WEIGHTS}, {INDEX} or {PICKLES[0]}: give the folder with the weights"


@contextmanager
def permitted() -> Iterator[None]:
    """Name the folder that nobody may look into.

    Raises:
        LoadError: naming it.
    """
    try:
        yield
    except PermissionError as error:
        raise LoadError(f"{error.filename}: {error.strerror}") from error


@contextmanager
def reading(name: str, part: str) -> Iterator[None]:
    """Turn whatever goes wrong inside into one sentence.

    Args:
        name: the folder or hub id.
        part: `configuration`, `weights` or `tokenizer`.

    Raises:
        LoadError: with what was raised as its cause.
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
        config = _of_config(files, error)
        if config is not None:
            raise LoadError(config) from error
        why = files.damaged(part) or said(error) or f"{UNKNOWN[part]}: {_again('model')}"
        raise LoadError(f"cannot read the {part} of {name!r}: {why}") from error


def _of_config(files: Files, error: Exception) -> str | None:
    """What is wrong with a key of the config, where transformers found it there."""
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
