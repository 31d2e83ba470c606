"""Sequoia's growmaps: a dictionary in a file of torch.save.

Facts (Infini-AI-Lab/Sequoia, `tree_search.py` writes and `Tree/SpecTree.py` reads it): `size` nodes,
numbered level by level; `Successors`, the children of each node; `roots`, the nodes of each level, the
last one included; `branches`, how many children each of these has; `depth`, int64 [size]; `mask`, int64
[size, size], 1 where the column is the row's node or its ancestor. **The root is counted.**

Such a file contains a pickle, and a pickle can run any program. So it is read with `weights_only`, after a
check that the archive is stored, not compressed, and cannot grow when unpacked. Every field is checked
against the shape that `Successors` describes.
"""

import io
import zipfile
from typing import Any

import torch
from torch import Tensor

from attention_masks.topology import topology
from treespec.checks import integer
from treespec.search.formats.export import NUMBERING, Export, Format, numbering
from treespec.search.formats.malformed import MalformedTree
from treespec.search.formats.reading import MAX_NODES, fields, integers, shape_of, shown
from treespec.tree.shape import TreeShape

MAX_BYTES = 160 * 2**20
"""Limit on the bytes of a growmap: one of `MAX_NODES` nodes, whose mask has 128 MiB, fits."""

KEYS = ["roots", "branches", "Successors", "mask", "depth", "size"]


def load(data: Any) -> TreeShape:
    """Read a growmap: the bytes of its file, or the dictionary.

    Raises:
        MalformedTree: if the file contains anything but plain data, or its fields are inconsistent.
    """
    growmap = _unpickled(bytes(data)) if isinstance(data, bytes | bytearray) else data
    fields("a growmap", growmap, KEYS)
    size = integer("size", growmap["size"], 1, MalformedTree, MAX_NODES)
    successors = _nodes("Successors", growmap["Successors"], size)
    if len(successors) != size:
        raise MalformedTree(f"Successors has {len(successors)} lists, but size = {size}")
    parents = [-1]
    for node, children in enumerate(successors):
        if children != list(range(len(parents), len(parents) + len(children))):
            raise MalformedTree(
                f"Successors[{node}] = {shown(children)}, but nodes are numbered level by level: the "
                f"next is {len(parents)}"
            )
        parents += [node] * len(children)
    if len(parents) != size:
        raise MalformedTree(
            f"Successors name {len(parents)} nodes with the root, but size = {size}"
        )
    shape = shape_of(parents)
    for name, expected in _derived(shape).items():
        _require_equal(name, growmap[name], expected)
    return shape


def _unpickled(data: bytes) -> Any:
    if len(data) > MAX_BYTES:
        raise MalformedTree(f"{len(data)} bytes, more than the {MAX_BYTES} of the largest growmap")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise MalformedTree(
            f"not an archive of torch.save ({error}); bare pickles can run programs and are not read"
        ) from None
    compressed = [
        member.filename for member in members if member.compress_type != zipfile.ZIP_STORED
    ]
    if compressed or sum(member.file_size for member in members) > len(data):
        raise MalformedTree(
            f"the archive is compressed ({shown(compressed)}), but torch.save does not compress its files"
        )
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # a hostile file may make the reader raise anything
        reason = str(error).strip().partition("\n")[0]
        raise MalformedTree(
            f"weights_only refuses it: a growmap contains lists, integers and tensors only ({reason})"
        ) from error


def _nodes(name: str, value: Any, size: int) -> list[list[int]]:
    """Check a list of lists of nodes: at most one list for each node, and at most `size` entries in all."""
    if type(value) is not list or len(value) > size:
        raise MalformedTree(f"{name} must be a list of at most {size} lists, not {shown(value)}")
    for i, entry in enumerate(value):
        if type(entry) is not list or len(entry) > size:
            raise MalformedTree(
                f"{name}[{i}] must be a list of at most {size} nodes, not {shown(entry)}"
            )
    if sum(map(len, value)) > size:
        raise MalformedTree(f"{name} has more entries than the {size} nodes")
    return [integers(f"{name}[{i}]", entry, 0, size) for i, entry in enumerate(value)]


def _derived(shape: TreeShape) -> dict[str, Any]:
    """The fields of a growmap that follow from `Successors` and `size`."""
    levels: list[list[int]] = [[] for _ in range(shape.depth + 1)]
    for node, depth in enumerate(shape.depths):
        levels[depth].append(node)
    return {
        "roots": levels,
        "branches": [[len(shape.children[node]) for node in level] for level in levels],
        "depth": torch.tensor(shape.depths),
        "mask": topology(shape.parents).ancestors.long(),
    }


def _require_equal(name: str, given: Any, expected: Any) -> None:
    """Refuse a field that does not follow from the shape."""
    if not isinstance(expected, Tensor):
        if _nodes(name, given, sum(map(len, expected))) != expected:
            raise MalformedTree(
                f"{name} = {shown(given)}, but by Successors it must be {shown(expected)}"
            )
        return
    plain = type(given) is Tensor and given.layout == torch.strided and given.device.type == "cpu"
    if not plain or given.dtype != torch.int64 or given.shape != expected.shape:
        kind = f"{given.dtype} {list(given.shape)}" if isinstance(given, Tensor) else shown(given)
        raise MalformedTree(f"{name} must be a tensor of int64 {list(expected.shape)}, not {kind}")
    different = (given != expected).nonzero()
    if len(different):
        index = different[0].tolist()
        value, expected_value = given[tuple(index)].item(), expected[tuple(index)].item()
        raise MalformedTree(
            f"{name}{index} = {value}, but by Successors it must be {expected_value}"
        )


def dump(shape: TreeShape) -> Export:
    """The shape as a growmap: `content` is the file, `value` the dictionary.

    Example:
        >>> dump(TreeShape.expansion([2, 1])).value["roots"]
        [[0], [1, 2], [3, 4]]
    """
    levelled = shape.breadth_first() if numbering(shape) else shape
    value = _derived(levelled)
    value["Successors"] = [list(children) for children in levelled.children]
    value["size"] = levelled.size
    value = {key: value[key] for key in KEYS}
    file = io.BytesIO()
    torch.save(value, file)
    return Export(file.getvalue(), counts_root=True, lost=numbering(shape), value=value)


FORMAT = Format(load, dump, True, (NUMBERING,), "Sequoia's growmap, a file of torch.save")
