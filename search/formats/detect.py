"""Detect the format of an input."""

from typing import Any

from treespec.search.formats.errors import MalformedTree, UnknownFormat
from treespec.search.formats.reading import read_json, shown, text_of

__all__ = ["detect"]

# A dictionary has the first format of which it contains all keys.
_KEYS = [
    ("treespec", {"version", "parents"}),
    ("sequoia", {"Successors"}),
    ("sglang-tensors", {"retrive_next_token"}),
    ("sglang-tensors", {"retrieve_next_token"}),
    ("networkx", {"directed", "nodes"}),
    ("vllm", {"speculative_token_tree"}),
    ("sglang", {"speculative_eagle_topk"}),
    ("tensorrt-llm", {"speculative_config"}),
    ("tensorrt-llm", {"max_draft_len"}),
    ("tensorrt-llm-choices", {"medusa_choices"}),
    ("tensorrt-llm-choices", {"eagle_choices"}),
    ("vllm-chain", {"num_speculative_tokens"}),
]
_YAML = ("speculative_config:", "decoding_type:", "max_draft_len:", "use_dynamic_tree:")


def detect(data: Any) -> str:
    """The name of the format of an input.

    Lists of rank paths of Medusa and of EAGLE-1 are indistinguishable; their format is called "medusa".

    Args:
        data: the contents: text, bytes, or an object of another tool; not the name of a file.

    Raises:
        UnknownFormat: if the input does not look like any known format.

    Example:
        >>> detect("[(0,), (1,)]"), detect("[[0], [1]]"), detect('{"num_speculative_tokens": 3}')
        ('vllm', 'medusa', 'vllm-chain')
    """
    if isinstance(data, bytes | bytearray):
        if data[:2] == b"PK":
            return "sequoia"
        if data[:1] == b"\x80":
            raise MalformedTree(
                "a bare pickle is refused, since it can run programs: give an archive of torch.save, as "
                "Sequoia's growmaps are since PyTorch 1.6"
            )
        data = text_of(data, "every format but Sequoia's")
    name = _of_text(data) if isinstance(data, str) else _of_object(data)
    if name is None:
        raise UnknownFormat(
            f"{shown(data)} does not look like any known format: name one, such as format='medusa'"
        )
    return name


def _of_text(text: str) -> str | None:
    start = text.strip()
    if "--speculative-" in start:
        return "sglang"
    if any(line.strip().startswith(_YAML) for line in start.splitlines()):
        return "tensorrt-llm"
    if start[:1] == "{":
        return _of_object(read_json(start))
    if "[" not in start and "(" not in start:
        return None
    name, _, rest = start.partition("=")
    inside = (rest if name.strip().isidentifier() else start).replace(" ", "").replace("\n", "")
    if inside[:2] in ("[(", "(("):
        return "vllm"
    if inside[:2] in ("[[", "([", "[]"):
        return "medusa"
    return "llama.cpp" if inside[:2] == "[{" else None


def _of_object(data: Any) -> str | None:
    if callable(getattr(data, "is_directed", None)):
        return "networkx"
    if isinstance(data, dict):
        return next((name for name, keys in _KEYS if keys <= data.keys()), None)
    if isinstance(data, list | tuple):
        if not data or isinstance(data[0], list | tuple):
            return "medusa"
        if isinstance(data[0], dict):
            return "llama.cpp"
    return None
