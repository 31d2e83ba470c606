"""Rebuild the growths of a run from its manifest and the files that they read."""

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from treespec.errors import TreespecError
from treespec.experiments.config.shapes import AnyShape
from treespec.experiments.config.trees import tree_of
from treespec.experiments.records.loading import Method
from treespec.experiments.records.manifest import GROWTH_FILES, sha256_of
from treespec.protocols import Growth
from treespec.search.growth.keys import GrowthSettings


def growth_of(method: Method, searched: Path) -> Growth | None:
    """Rebuild the growth that a method used; None if it is not one of ours, or a file has changed.

    Files are looked for in `searched`, the run's folder `search`, first: the run may have been moved.
    """
    try:
        shape: Any = TypeAdapter(AnyShape).validate_python(method.growth)
        if not isinstance(shape, GrowthSettings):
            return None
        for key in GROWTH_FILES:
            named = getattr(shape, key, None)
            if named is not None:
                paths, digest = (str(searched / Path(named).name), named), method.files.get(key)
                file = next((path for path in paths if digest and sha256_of(path) == digest), None)
                if file is None:
                    return None
                shape = shape.model_copy(update={key: file})
        tree = tree_of(shape)
    except (ValidationError, TreespecError):
        return None
    return tree if isinstance(tree, Growth) else None
