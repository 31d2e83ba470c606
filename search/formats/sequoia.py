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
from treespec.search.formats.reading import MAX_NODES, MalformedTree, fields, shape_of, shown
from treespec.tree.shape import TreeShape

MAX_BYTES = 160 * 2**20
"""Limit on the bytes of a growmap: one of `MAX_NODES` nodes, whose mask has 128 MiB, fits."""

KEYS = ["roots", "branches", "Successors", "mask", "depth", "size"]


def load(data: Any) -> TreeShape:
    """Read a growmap: the bytes of its file, or the dictionary.

    Raises:
        MalformedTree: if the file contains anything but plain data, or its fields are inconsistent.
    """
    growmap = unpickled(bytes(data), "a growmap") if isinstance(data, bytes | bytearray) else data
    fields("a growmap", growmap, KEYS)
    size = integer("size", growmap["size"], 1, MalformedTree, MAX_NODES)
    successors = growmap["Successors"]
    if not isinstance(successors, list) or len(successors) != size:
        raise MalformedTree(f"Successors = {shown(successors)}, but must be {size} lists of nodes")
    parents = [-1]
    for node, children in enumerate(successors):
        count = len(children) if isinstance(children, list) else 0
        following = list(range(len(parents), len(parents) + count))
        if repr(children) != repr(following):  # neither 1.0 nor True is a node
            raise MalformedTree(
                f"Successors[{node}] = {shown(children)}, but nodes are numbered level by level: the "
                f"next is {len(parents)}"
            )
        parents += [node] * count
        if len(parents) > size:
            break
    if len(parents) != size:
        raise MalformedTree(f"Successors name other than the size = {size} nodes")
    shape = shape_of(parents)
    for name, expected in _derived(shape).items():
        given = growmap[name]
        if isinstance(expected, Tensor):
            plain = isinstance(given, Tensor) and given.layout == expected.layout
            plain = plain and (given.dtype, given.device) == (expected.dtype, expected.device)
            follows = plain and given.equal(expected)
        else:
            follows = repr(given) == repr(expected)
        if not follows:
            raise MalformedTree(f"{name} = {shown(given)} does not follow from Successors")
    return shape


def unpickled(data: bytes, what: str) -> Any:
    """The plain data in a file of torch.save; nothing in it is ever run. `what` names it in messages."""
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
            f"weights_only refuses it: {what} contains lists, integers and tensors only ({reason})"
        ) from error


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
