"""The growths of a run, made again from what its manifest says of them and the files that they read."""

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from treespec.errors import TreespecError
from treespec.experiments.config.shapes import AnyShape, GrowthShape
from treespec.experiments.config.trees import tree_of
from treespec.experiments.records.loading import Method
from treespec.experiments.records.manifest import GROWTH_FILES, sha256_of
from treespec.protocols import Growth

__all__ = ["growth_of"]


def growth_of(method: Method, searched: Path) -> Growth | None:
    """How the trees of a method grew.

    Args:
        method: of the run.
        searched: the run's folder `search`, where files are looked for first, because a run may have been
            moved since it named them.

    Returns:
        None if it is none of ours, or a file that it read is gone or has changed.
    """
    try:
        shape: Any = TypeAdapter(AnyShape).validate_python(method.growth)
        if not isinstance(shape, GrowthShape):
            return None
        for key in GROWTH_FILES:
            named = getattr(shape, key, None)
            if named is not None:
                places = (str(searched / Path(named).name), named)
                file = next((one for one in places if _is(one, method.files.get(key))), None)
                if file is None:
                    return None
                shape = shape.model_copy(update={key: file})
        tree = tree_of(shape)
    except (ValidationError, TreespecError):
        return None
    return tree if isinstance(tree, Growth) else None


def _is(path: str, digest: str | None) -> bool:
    return digest is not None and sha256_of(path) == digest
