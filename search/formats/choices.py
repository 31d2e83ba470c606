"""Medusa's and EAGLE-1's choices: a list of rank paths, without the root.

Facts: FasterDecoding/Medusa `medusa/model/medusa_choices.py` holds such lists in the order in which a
search found them, `generate_medusa_buffers` in `medusa/model/utils.py` sorts them by (length, path);
SafeAILab/EAGLE `eagle/model/choices.py` has the same notation. **The root is not counted**:
`mc_sim_7b_63` has 63 paths and verifies 64 tokens.
"""

from typing import Any

from treespec.search.formats.export import NUMBERING, Export, Format, numbering
from treespec.search.formats.rank_paths import from_paths, from_text, to_paths
from treespec.shape import TreeShape

__all__ = ["FORMAT", "dump", "load"]


def load(data: Any) -> TreeShape:
    """Read choices: the text of a list (also `name = [...]`, as their files have it), or the list.

    Raises:
        MalformedTree: if it is not such a list, or a parent or an elder sibling is missing.

    Example:
        >>> load("tree = [[0], [0, 0], [1]]").parents
        (-1, 0, 0, 1)
    """
    return from_text(data) if isinstance(data, str) else from_paths(data)


def dump(shape: TreeShape) -> Export:
    """The shape as sorted choices.

    Example:
        >>> print(dump(TreeShape.expansion([2, 1])).content)
        [[0], [1], [0, 0], [1, 0]]
    """
    value = [list(path) for path in to_paths(shape)]
    return Export(str(value), counts_root=False, lost=numbering(shape), value=value)


FORMAT = Format(load, dump, False, (NUMBERING,), "rank paths of Medusa and EAGLE-1: [[0], [0, 0]]")
