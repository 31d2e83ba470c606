"""Turn the errors of reading a model into one sentence that names the damaged file.

The original error remains chained.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError, safe_open

from treespec.errors import LoadError, TreespecError, Unreadable, in_words
from treespec.files import brief, open_file, parse_json, read_bytes
from treespec.models.gguf_files import is_damaged

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
JSON_FILES = {
    "configuration": ("config.json", "generation_config.json"),
    "tokenizer": (
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
    ),
}
AGAIN = "download or save the file again"


class Files:
    """The files of a model, in its folder or in the hub's local cache."""

    def __init__(self, name: str) -> None:
        self.name = name

    def path(self, file: str) -> Path | None:
        """The path of a file, or None if it does not exist; for the path of a GGUF file, none."""
        folder = Path(self.name)
        if folder.is_file():
            return None
        if folder.is_dir():
            return folder / file if (folder / file).exists() else None
        cached = try_to_load_from_cache(self.name, file)
        return Path(cached) if isinstance(cached, str) else None

    def data(self, file: str) -> dict[str, Any]:
        """The object in a JSON file; empty if there is no such file."""
        path = self.path(file)
        if path is None:
            return {}
        content = read_bytes(path, None)
        try:
            data = parse_json(content, constants=True, unique=False)
        except Unreadable as error:
            raise Unreadable(f"{path} is not JSON: {error}; {AGAIN}") from None
        if not isinstance(data, dict):
            raise Unreadable(f"{path} holds {brief(data)}, but must hold a JSON object")
        return data

    def damaged(self, part: str) -> str | None:
        """Which file of a part is damaged, and how; None if no damage can be detected."""
        if Path(self.name).is_file():
            damaged = is_damaged(Path(self.name))
            return f"it is truncated, damaged, or not a GGUF file: {AGAIN}" if damaged else None
        try:
            for file in JSON_FILES.get(part, ()):
                self.data(file)
            if part == "weights":
                self._require_weights()
        except Unreadable as error:
            return str(error)
        return None

    def shards(self) -> list[Path]:
        """The safetensors files of the weights; none if they are stored otherwise, or are not here."""
        weights, index = self.path(WEIGHTS), self.path(INDEX)
        files = [] if weights is None else [weights]
        if weights is None and index is not None:
            for file in dict.fromkeys(dict(self.data(INDEX).get("weight_map") or {}).values()):
                shard = self.path(str(file))
                if shard is None:
                    raise Unreadable(f"{index} names the file {file!r}, which does not exist")
                files.append(shard)
        return files

    def _require_weights(self) -> None:
        files = self.shards()
        for file in files:
            try:
                with open_file(file, None), safe_open(file, "pt"):
                    pass
            except (SafetensorError, OSError):
                raise Unreadable(
                    f"{file} is truncated, damaged, or not a safetensors file: {AGAIN}"
                ) from None
        if files:
            return
        pickles = [path for name in PICKLES if (path := self.path(name)) is not None]
        if pickles:
            raise Unreadable(
                f"{pickles[0]} cannot be read as weights (only tensors are read from a pickle, and no code "
                "in it is run): save the model as safetensors"
            )
        raise Unreadable(
            f"there is no {WEIGHTS}, {INDEX} or {PICKLES[0]}: give the folder that holds the weights"
        )


@contextmanager
def reading(name: str, part: str) -> Iterator[None]:
    """Turn any error inside the context into a `LoadError` of one sentence.

    Args:
        name: the folder, GGUF file or hub id.
        part: `configuration`, `weights` or `tokenizer`.
    """
    try:
        yield
    except TreespecError:
        raise
    except Exception as error:
        why = Files(name).damaged(part) or in_words(error, "transformers")
        raise LoadError(f"cannot read the {part} of {name!r}: {why}") from error
