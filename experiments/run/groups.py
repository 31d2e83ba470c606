"""Which methods take turns with each other: all at once, or as many as memory holds.

Every group holds the plain baseline or a copy of it, its twin, which does the same work with the same
coins: methods of different groups are compared through them (`report.common_reference`). The first group
holds both, so that the ratio of the two tells how small a difference this machine could show in this run.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from treespec.experiments.config.build import BuiltMethod, Experiment
from treespec.experiments.errors import ConfigError
from treespec.experiments.run.parts import parts_of
from treespec.experiments.run.room import largest_tree, rows_of

if TYPE_CHECKING:
    from treespec.models.load import Pair
    from treespec.models.transformers_model import TransformersModel

__all__ = ["Group", "groups_of", "reference_of", "that_fit", "together_in_words", "twins_of"]

Group = Mapping[str, BuiltMethod]
"""Methods by the name of their rows, which is another than the method's for twins of the reference."""

LOGIT_BYTES = 4

PART_OF_MEMORY = 0.5
"""Of what is free; passes need room of their own."""


def reference_of(methods: Sequence[BuiltMethod]) -> BuiltMethod | None:
    """What the others are compared through: the first plain baseline, else the first tree that is fixed."""
    plain = [method for method in methods if method.kind in ("generate", "plain")]
    return next(iter([*plain, *(m for m in methods if m.shape is not None)]), None)


def groups_of(methods: Sequence[BuiltMethod], together: int) -> list[Group]:
    """Share the methods out.

    Args:
        methods: of the experiment.
        together: how many may be open at once, twins included; 1 for none beside another, and no twin.

    Raises:
        ConfigError: if a method has the name of a twin.

    Example:
        >>> from treespec import Sampling
        >>> from treespec.experiments.config.build import plain_method
        >>> methods = [plain_method(name, {"T=0": Sampling(temperature=0.0)}) for name in "abcd"]
        >>> [list(group) for group in groups_of(methods, 4)]
        [['a', 'a (twin)', 'b', 'c'], ['a (twin 2)', 'd']]
    """
    reference = reference_of(methods)
    if together == 1 or reference is None or len(methods) == 1:
        each = 1 if together == 1 else max(1, together)
        starts = range(0, len(methods), each)
        return [{m.name: m for m in methods[i : i + each]} for i in starts]
    others = [method for method in methods if method is not reference]
    groups: list[Group] = []
    taken = {method.name for method in methods}
    while others or not groups:
        twin = f"{reference.name} (twin{f' {len(groups) + 1}' * bool(groups)})"
        if twin in taken:
            raise ConfigError(
                f"{twin!r} is a name that runs use themselves: give the method another"
            )
        first = {} if groups else {reference.name: reference}
        copies = {twin: reference} if together > 2 or groups else {}
        room = together - len(first) - len(copies)
        group, others = others[:room], others[room:]
        groups.append(first | copies | {method.name: method for method in group})
    return groups


def twins_of(groups: Sequence[Group]) -> dict[str, str]:
    """The names of twins in rows, each with the method that it is of."""
    members = (item for group in groups for item in group.items())
    return {name: method.name for name, method in members if name != method.name}


def that_fit(experiment: Experiment, pair: "Pair", tokens: int) -> int:
    """How many methods the memory that is free holds the caches and captured passes of, at least 1.

    On CUDA every method that is open captures passes of its own, since a captured pass knows where its
    cache is. They stay with their cache when the text is over, and serve the next prompt.

    Args:
        experiment: its methods.
        pair: the models, loaded.
        tokens: of the longest prompt.
    """
    nodes, rows = largest_tree(experiment), rows_of(experiment, tokens)
    parts = parts_of(experiment.methods, pair.target).values()
    caches = [_row_bytes(part) for part in parts if part.in_cache_of(pair.target) is None]
    each = rows * (sum(map(_row_bytes, pair.models)) + max(caches, default=0))
    if pair.target.device.type == "cuda":
        drafts = [model for model in pair.models if model is not pair.target]
        captured = [model for model in drafts if model.passes.kind == "captured"]
        each += sum(_captured_bytes(model, nodes) for model in (pair.target, *captured))
    return max(1, int(PART_OF_MEMORY * _free_bytes(pair.target) / max(1, each)))


def together_in_words(group: Group) -> str:
    """Such as `6 methods in turns`."""
    return f"{len(group)} methods in turns" if len(group) > 1 else next(iter(group))


def _row_bytes(model: "TransformersModel") -> int:
    """Of one token in a model's cache."""
    layers = [layer for layer in model.finding.layout if layer is not None]
    return sum(
        layer.batch * layer.kv_heads * (layer.key_dim + layer.value_dim) * layer.dtype.itemsize
        for layer in layers
    )


def _captured_bytes(model: "TransformersModel", nodes: int) -> int:
    """Of the passes that one method captures.

    One for each bucket (`treespec.models.static_pass`), of which each keeps its logits; what else it
    computes is in memory that all of them share, and less than the largest logits.
    """
    from treespec.models.static_pass import bucket

    rows = sum({bucket(size) for size in range(1, nodes + 1)})
    return (rows + nodes) * model.vocab_size * LOGIT_BYTES


def _free_bytes(model: "TransformersModel") -> int:
    import torch

    if model.device.type == "cuda":
        return torch.cuda.mem_get_info(model.device)[0]
    import psutil

    return psutil.virtual_memory().available
