"""llama.cpp's batch rows: the position of every node, and the sequences that contain it.

Facts (ggml-org/llama.cpp, `examples/speculative/speculative.cpp`): the target batch starts with the last
committed token at `n_past_tgt`; a drafted token is added by `common_batch_add(batch, token, pos,
{sequences}, logits)`; a branch that splits off gets a new sequence, which all tokens before the split join,
too. So every root-to-leaf path is a sequence, and a node lists the sequences of all leaves below it. There
may be `--parallel` sequences, and at most 256 (`LLAMA_MAX_SEQ` in `src/llama-cparams.h`). **The root is
counted**: it is row 0.
"""

import json
from typing import Any

from treespec.door import integer
from treespec.search.formats.errors import MalformedTree
from treespec.search.formats.export import Export, Format
from treespec.search.formats.reading import (
    MAX_NODES,
    fields,
    integers,
    node_count,
    read_json,
    shape_of,
    shown,
)
from treespec.shape import TreeShape

__all__ = ["FORMAT", "dump", "load"]

MAX_SEQUENCES = 256
POSITIONS = 2**31 - 1


def load(data: Any) -> TreeShape:
    """Read rows: a list of `{"pos": ..., "seq_id": [...]}`, or its JSON.

    Rows may contain `token` and `logits`, which are ignored. The parent of a row is the earlier row at the
    preceding position that is in the same sequences.

    Raises:
        MalformedTree: if a row has no such parent, its sequences have several, or a sequence has two rows
            at one position.

    Example:
        >>> load([{"pos": 7, "seq_id": [0, 1]}, {"pos": 8, "seq_id": [0]}, {"pos": 8, "seq_id": [1]}]
        ...     ).parents
        (-1, 0, 0)
    """
    rows = read_json(data) if isinstance(data, str) else data
    if not isinstance(rows, list) or not rows:
        raise MalformedTree(f"expected a list of rows, got {shown(rows)}")
    node_count(len(rows))
    row_at: dict[tuple[int, int], int] = {}  # by position and sequence
    parents = []
    for i, row in enumerate(rows):
        fields(f"row {i}", row, ["pos", "seq_id"], ["token", "logits"])
        position = integer(f"pos of row {i}", row["pos"], 0, MalformedTree, POSITIONS)
        sequences = integers(f"seq_id of row {i}", row["seq_id"], 0, MAX_NODES - 1)
        if not sequences:
            raise MalformedTree(f"row {i} is in no sequence: seq_id needs at least one")
        above = {row_at.get((position - 1, sequence), -1) for sequence in sequences}
        if i > 0 and (len(above) > 1 or -1 in above):
            raise MalformedTree(
                f"row {i} at position {position} is in the sequences {shown(sequences)}, but these "
                f"have {len(above - {-1})} earlier rows at position {position - 1}: it must be one row "
                "that is in all of them"
            )
        parents.append(above.pop())
        for sequence in sequences:
            if (position, sequence) in row_at:
                raise MalformedTree(
                    f"rows {row_at[position, sequence]} and {i} are both at position {position} of "
                    f"sequence {sequence}"
                )
            row_at[position, sequence] = i
    return shape_of(parents)


def dump(shape: TreeShape) -> Export:
    """The rows of a tree whose root is at position 0; sequences are leaves in depth-first order.

    Example:
        >>> print(dump(TreeShape.kary(2, 1)).content)
        [{"pos": 0, "seq_id": [0, 1]}, {"pos": 1, "seq_id": [0]}, {"pos": 1, "seq_id": [1]}]
    """
    sequences: list[list[int]] = [[] for _ in shape.parents]
    leaves = (node for node in shape.depth_first if not shape.children[node])
    for sequence, leaf in enumerate(leaves):
        for node in shape.path(leaf):
            sequences[node].append(sequence)
    value = [
        {"pos": depth, "seq_id": ids} for depth, ids in zip(shape.depths, sequences, strict=True)
    ]
    notes = [
        "add the committed length - 1 to every pos and a token to every row",
        f"needs --parallel of at least {len(shape.leaves)}, one sequence for each leaf",
    ]
    if len(shape.leaves) > MAX_SEQUENCES:
        notes.append(f"llama.cpp takes at most {MAX_SEQUENCES} sequences (LLAMA_MAX_SEQ)")
    return Export(json.dumps(value), counts_root=True, notes=tuple(notes), value=value)


FORMAT = Format(load, dump, True, (), "batch rows of llama.cpp: pos and seq_id of every node")
