"""Parts of the target that draft in an experiment: early exits, and the target without some sublayers."""

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from treespec.errors import TreespecError
from treespec.experiments.config.build import BuiltMethod
from treespec.experiments.config.drafts import all_of
from treespec.experiments.config.layers import PartOfTarget
from treespec.experiments.config.schema import TreeMethod
from treespec.models.sublayers import Sublayer, layers_from

if TYPE_CHECKING:
    from treespec.models.transformers_model import TransformersModel

__all__ = ["part_name", "parts_of"]


def part_name(skip: Iterable[Sublayer], layers: int) -> str:
    """A name for the target without some sublayers.

    Args:
        skip: the sublayers left out.
        layers: number of layers of the target.

    Example:
        >>> part_name(layers_from(2, 6), 6), part_name([Sublayer(3, "mlp"), Sublayer(1, "mlp")], 6)
        ('the first 2 of 6 layers', 'the target without mlp.1, mlp.3')
    """
    left_out = frozenset(skip)
    first = layers - len(left_out) // 2
    if left_out == {*layers_from(first, layers)}:
        return f"the first {first} of {layers} layers"
    return f"the target without {', '.join(map(str, sorted(left_out)))}"


def parts_of(
    methods: Iterable[BuiltMethod], target: "TransformersModel"
) -> dict[str, "TransformersModel"]:
    """The parts of a target that draft, each once, by name.

    Parts that cannot be made are left out here; they are refused when the drafter is made, by an error that
    names the config's key.

    Args:
        methods: the methods; their sources, nested ones included, may be such parts.
        target: the loaded target.
    """
    parts: dict[str, TransformersModel] = {}
    drafts = [m.config.draft for m in methods if isinstance(m.config, TreeMethod)]
    for source in (source for draft in drafts for source in all_of(draft)):
        if isinstance(source, PartOfTarget):
            with suppress(TreespecError):
                skip = source.skipped(target.layer_count)
                parts[part_name(skip, target.layer_count)] = target.without(skip)
    return parts
