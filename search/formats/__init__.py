"""Import and export of tree shapes in the formats of other tools.

    >>> from treespec import TreeShape
    >>> export = dump(TreeShape.kary(2, 2), "medusa")
    >>> export.content
    '[[0], [1], [0, 0], [0, 1], [1, 0], [1, 1]]'
    >>> export.lost, export.counts_root
    ((), False)
    >>> load(export.content) == TreeShape.kary(2, 2)
    True

Each format has a module; `FORMATS` is the table. No input is ever executed: texts are parsed, not
evaluated, and files of torch.save are read with `weights_only`.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from treespec.errors import InvalidTree, Unreadable
from treespec.files import read_bytes
from treespec.search.formats import (
    choices,
    llama_cpp,
    networkx_graph,
    sequoia,
    sglang_flags,
    sglang_tensors,
    tensorrt_llm,
    treespec_json,
    vllm,
)
from treespec.search.formats.detect import detect
from treespec.search.formats.errors import (
    FormatError,
    MalformedTree,
    NoShape,
    NotExportable,
    UnknownFormat,
)
from treespec.search.formats.export import Export, Format
from treespec.search.formats.reading import MAX_NODES, MAX_TEXT, shown, text_of
from treespec.shape import TreeShape

__all__ = [
    "FORMATS",
    "Export",
    "Format",
    "FormatError",
    "MalformedTree",
    "NoShape",
    "NotExportable",
    "UnknownFormat",
    "detect",
    "dump",
    "load",
]

FORMATS: dict[str, Format] = {
    "treespec": treespec_json.FORMAT,
    "medusa": choices.FORMAT,
    "eagle": choices.FORMAT,
    "sequoia": sequoia.FORMAT,
    "vllm": vllm.FORMAT,
    "vllm-chain": vllm.CHAIN,
    "sglang": sglang_flags.FORMAT,
    "sglang-tensors": sglang_tensors.FORMAT,
    "tensorrt-llm": tensorrt_llm.FORMAT,
    "tensorrt-llm-choices": tensorrt_llm.CHOICES,
    "llama.cpp": llama_cpp.FORMAT,
    "networkx": networkx_graph.FORMAT,
}
"""Name -> (load, dump, counts_root, loses, about)."""


def load(source: Any, format: str | None = None) -> TreeShape:
    """Read a shape from a file, a text, or an object of another tool.

    Args:
        source: a `Path`; a string, which is a file if there is one of that name and a text otherwise;
            bytes; or an object (a list of choices, a dictionary, a graph).
        format: a name in `FORMATS`; by default detected from the source.

    Raises:
        UnknownFormat: if the format is not in the table, or cannot be detected.
        MalformedTree: if the source is not a tree of this format; names the file, the place, the value and
            what is allowed.
        NoShape: if the source consists of settings that do not determine a shape.

    Example:
        >>> load("[(0,), (0, 0)]").parents
        (-1, 0, 1)
    """
    if format is not None:
        _known(format)
    name, data = _contents(source, format)
    try:
        if format is None:
            format = detect(data)
        if isinstance(data, bytes | bytearray) and format != "sequoia":
            data = text_of(data, f"the format {format!r}")
        return FORMATS[format].load(data)
    except FormatError as error:
        raise type(error)(f"{name}: {error}") from error
    except InvalidTree as error:
        raise MalformedTree(f"{name}: {error}") from error


def dump(shape: TreeShape, format: str) -> Export:
    """Write a shape in the format of another tool.

    Args:
        shape: a shape of at most 4096 nodes, so that `load` can read the result.
        format: a name in `FORMATS`.

    Returns:
        The content to write, what it loses, and whether it counts the root.

    Raises:
        UnknownFormat: if the format is not in the table.
        NotExportable: if the format cannot express the shape.
    """
    known = _known(format)
    if not isinstance(shape, TreeShape):
        raise NotExportable(f"shape = {shown(shape)}, but must be a tree (treespec.TreeShape)")
    if shape.size > MAX_NODES:
        raise NotExportable(f"the shape has {shape.size} nodes: at most {MAX_NODES} are exported")
    return known.dump(shape)


def _known(format: str) -> Format:
    if not isinstance(format, str) or format not in FORMATS:
        raise UnknownFormat(f"no format {shown(format)}: choose one of {', '.join(FORMATS)}")
    return FORMATS[format]


def _contents(source: Any, format: str | None) -> tuple[str, Any]:
    """The name of the source in messages, and its contents; sizes are checked before parsing."""
    path = Path(source) if isinstance(source, Path) or _is_file(source) else None
    name = f"the {type(source).__name__}" if path is None else str(path)
    if path is not None:
        with suppress(PermissionError):  # in a forbidden folder: reading the file reports it
            if path.is_dir() or not path.exists():
                raise MalformedTree(f"{path}: there is no such file")
        try:
            source = read_bytes(path, sequoia.MAX_BYTES)
        except Unreadable as error:
            raise MalformedTree(str(error)) from None
    elif isinstance(source, str):
        name = f"{shown(source)} (a text: there is no file of that name)"
        if format == "sequoia":
            raise MalformedTree(f"{shown(source)}: there is no such file")
    if isinstance(source, str | bytes | bytearray):
        most = sequoia.MAX_BYTES if source[:2] == b"PK" else MAX_TEXT
        if len(source) > most:
            raise MalformedTree(f"{name}: more than the {most} bytes of the largest tree file")
    return name, source


def _is_file(source: Any) -> bool:
    try:
        return isinstance(source, str) and Path(source).is_file()
    except PermissionError:
        return True
    except (OSError, ValueError):  # too long for a name, or contains a zero byte: a text
        return False
