"""Which format something is in, where only one is possible."""

from typing import Any

from treespec.search.formats.errors import MalformedTree, UnknownFormat
from treespec.search.formats.reading import read_json, shown, text_of

__all__ = ["detect"]

# A dictionary is of the first format of which it has all the keys.
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
    """The name of the format.

    The same list of rank paths is a tree of Medusa and of EAGLE-1; it is called "medusa".

    Args:
        data: the contents: text, bytes, or an object of another tool; no file name.

    Raises:
        UnknownFormat: if it looks like none of them.

    Example:
        >>> detect("[(0,), (1,)]"), detect("[[0], [1]]"), detect('{"num_speculative_tokens": 3}')
        ('vllm', 'medusa', 'vllm-chain')
    """
    if isinstance(data, bytes | bytearray):
        if data[:2] == b"PK":
            return "sequoia"
        if data[:1] == b"\x80":
            raise MalformedTree(
                "a bare pickle, which can run programs: refused; Sequoia's growmaps are archives of "
                "torch.save since PyTorch 1.6"
            )
        data = text_of(data, "every format but Sequoia's")
    name = _of_text(data) if isinstance(data, str) else _of_object(data)
    if name is None:
        raise UnknownFormat(
            f"{shown(data)} looks like no known format: name one, such as format='medusa'"
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
