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

from pathlib import Path
from typing import Any

from treespec.errors import InvalidTree, Unreadable
from treespec.files import read_bytes
from treespec.search.formats import (
    networkx_graph,
    openvino,
    rank_paths,
    sequoia,
    sglang_flags,
    treespec_json,
)
from treespec.search.formats.export import Export, Format
from treespec.search.formats.reading import (
    MAX_NODES,
    MAX_TEXT,
    FormatError,
    MalformedTree,
    NoShape,
    NotExportable,
    UnknownFormat,
    read_json,
    shown,
    text_of,
)
from treespec.search.formats.sequoia_rates import dump_rates, load_rates
from treespec.tree.shape import TreeShape

__all__ = [
    "FORMATS",
    "Export",
    "Format",
    "FormatError",
    "MalformedTree",
    "NoShape",
    "NotExportable",
    "UnknownFormat",
    "dump",
    "dump_rates",
    "load",
    "load_rates",
]

FORMATS: dict[str, Format] = {
    "treespec": treespec_json.FORMAT,
    "medusa": rank_paths.FORMAT,
    "eagle": rank_paths.FORMAT,
    "sequoia": sequoia.FORMAT,
    "sglang": sglang_flags.FORMAT,
    "openvino": openvino.FORMAT,
    "networkx": networkx_graph.FORMAT,
}
"""Name -> (load, dump, counts_root, loses, about)."""


def load(source: Any, format: str | None = None) -> TreeShape:
    """Read a shape from a file, a text, or an object of another tool.

    Args:
        source: a `Path`; a string, which is a file if there is one of that name and a text otherwise;
            bytes; or an object (a list of choices, a dictionary, a graph).
        format: a name in `FORMATS`; by default recognised by the first characters or the keys.

    Raises:
        UnknownFormat: if the format is not in the table, or not recognised.
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
            format = _recognised(data)
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


_KEYS = {
    "parents": "treespec",
    "Successors": "sequoia",
    "directed": "networkx",
    sglang_flags.FLAGS[0]: "sglang",
    openvino.FIELDS[0]: "openvino",
}
"""A key by which an object of each format is recognised."""


def _recognised(data: Any) -> str:
    """The format of an input. Rank paths of Medusa and of EAGLE-1 are the same."""
    if isinstance(data, bytes | bytearray):
        if (
            data[:2] == b"PK" or data[:1] == b"\x80"
        ):  # an archive, or a bare pickle, which is refused
            return "sequoia"
        data = text_of(data, "every format but Sequoia's")
    if isinstance(data, str) and data.lstrip()[:1] == "{":
        data = read_json(data)
    if callable(getattr(data, "is_directed", None)):
        return "networkx"
    if isinstance(data, dict) and (names := [_KEYS[key] for key in _KEYS if key in data]):
        return names[0]
    if isinstance(data, str) and "--speculative-" in data:
        return "sglang"
    if isinstance(data, list | tuple) or (isinstance(data, str) and {*"[("} & {*data}):
        return "medusa"
    raise UnknownFormat(
        f"{shown(data)} does not look like any known format: name one, such as format='medusa'"
    )


def _contents(source: Any, format: str | None) -> tuple[str, Any]:
    """The name of the source in messages, and its contents; sizes are checked before parsing."""
    name = f"the {type(source).__name__}"
    if isinstance(source, Path) or _is_file(source):
        name = str(source)
        try:
            source = read_bytes(name, sequoia.MAX_BYTES)
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
