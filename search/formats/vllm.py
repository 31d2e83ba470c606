"""vLLM: `speculative_token_tree` of older versions, and the chain that newer versions take.

Facts about the versions that had trees (pull requests 20401 to 42121, the latter "Remove tree attention",
merged in May 2026): the setting is a *string* of a list of tuples; `SpeculativeConfig` in
`vllm/config/speculative.py` sorts it by (length, path); `num_speculative_tokens` is the number of paths
(`tests/v1/spec_decode/test_tree_attention.py`), so **the root is not counted**. `propose_tree` in
`vllm/v1/spec_decode/eagle.py` drafts the same number of children at every node of a level
(`child_drafts_per_level`: this level's nodes divided by those of the level before, rounded down), so only
SpecInfer's expansions are drafted as they are written.
"""

import json
from typing import Any

from treespec.door import integer
from treespec.search.formats.errors import MalformedTree, NotExportable
from treespec.search.formats.export import NUMBERING, Export, Format, numbering
from treespec.search.formats.rank_paths import from_paths, from_text, to_paths
from treespec.search.formats.reading import MAX_NODES, read_json, shown
from treespec.shape import TreeShape

__all__ = ["CHAIN", "FORMAT", "dump", "dump_chain", "load", "load_chain"]

UNEVEN = (
    "which nodes of a level have children: vLLM drafts equally many at each, so it does not draw this "
    "shape as written"
)
BRANCHES = "everything but the depth: current versions draft chains"
REMOVED = (
    "vLLM removed trees in pull request 42121 (May 2026); for newer versions export vllm-chain"
)


def load(data: Any) -> TreeShape:
    """Read the string, a list of tuples, or a speculative config (JSON or dictionary) that contains it.

    Raises:
        MalformedTree: if it is not a tree, or `num_speculative_tokens` is not the number of its paths.
    """
    if isinstance(data, str) and data.lstrip().startswith("{"):
        data = read_json(data)
    if not isinstance(data, dict):
        return from_text(data) if isinstance(data, str) else from_paths(data)
    tree = data.get("speculative_token_tree")
    if not isinstance(tree, str):
        raise MalformedTree(f"speculative_token_tree must be a string, not {shown(tree)}")
    shape = from_text(tree)
    if "num_speculative_tokens" in data:
        tokens = integer("num_speculative_tokens", data["num_speculative_tokens"], 1, MalformedTree)
        if tokens != shape.size - 1:
            raise MalformedTree(
                f"num_speculative_tokens = {tokens}, but the tree has {shape.size - 1} paths"
            )
    return shape


def dump(shape: TreeShape) -> Export:
    """The shape as vLLM's string.

    Raises:
        NotExportable: if the shape is the root alone.

    Example:
        >>> print(dump(TreeShape.kary(2, 1)).content)
        [(0,), (1,)]
    """
    _drafts(shape)
    tree = str(to_paths(shape))
    lost = numbering(shape) + (() if _even(shape) else (UNEVEN,))
    value = {"num_speculative_tokens": shape.size - 1, "speculative_token_tree": tree}
    return Export(tree, counts_root=False, lost=lost, notes=(REMOVED,), value=value)


def load_chain(data: Any) -> TreeShape:
    """The chain of `num_speculative_tokens`, read from a speculative config (JSON or dictionary)."""
    config = read_json(data) if isinstance(data, str) else data
    if not isinstance(config, dict):
        raise MalformedTree(f"a speculative config must be an object, not {shown(config)}")
    if "speculative_token_tree" in config:
        raise MalformedTree("speculative_token_tree is set: this is the format 'vllm'")
    tokens = integer(
        "num_speculative_tokens",
        config.get("num_speculative_tokens"),
        1,
        MalformedTree,
        MAX_NODES - 1,
    )
    return TreeShape.chain(tokens)


def dump_chain(shape: TreeShape) -> Export:
    """The chain of the same depth, as a speculative config.

    Raises:
        NotExportable: if the shape is the root alone.

    Example:
        >>> dump_chain(TreeShape.kary(2, 3)).content
        '{"num_speculative_tokens": 3}'
    """
    _drafts(shape)
    value = {"num_speculative_tokens": shape.depth}
    lost = () if shape.is_chain else (BRANCHES,)
    return Export(json.dumps(value), counts_root=False, lost=lost, value=value)


def _drafts(shape: TreeShape) -> None:
    if shape.size == 1:
        raise NotExportable(
            "the root alone is plain decoding, but num_speculative_tokens must be at least 1: "
            "leave out vLLM's speculative config"
        )


def _even(shape: TreeShape) -> bool:
    """Whether the nodes of each level have equally many children: an expansion <k1, ..., km>."""
    widths: dict[int, set[int]] = {}
    for node, depth in enumerate(shape.depths):
        widths.setdefault(depth, set()).add(len(shape.children[node]))
    return all(len(counts) == 1 for counts in widths.values())


FORMAT = Format(
    load, dump, False, (NUMBERING, UNEVEN), "speculative_token_tree of vLLM before PR 42121"
)
CHAIN = Format(load_chain, dump_chain, False, (BRANCHES,), "num_speculative_tokens of vLLM")
