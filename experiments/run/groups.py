"""Group the methods that take turns with each other: all of them, or as many as memory holds.

In every group a judging copy of plain decoding takes turns with the methods, from which it is seen in which
rounds the machine was slow (`report.rounds`). The first group also holds a twin of plain decoding, another
copy with the same coins; the ratio of the two shows how small a difference the run can resolve.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from treespec.experiments.config.build import BuiltMethod, Experiment
from treespec.experiments.errors import ConfigError
from treespec.experiments.run.models import parts_of
from treespec.experiments.run.room import largest_tree, rows_of

if TYPE_CHECKING:
    from treespec.models.load import Pair
    from treespec.models.transformers_model import TransformersModel

Group = Mapping[str, BuiltMethod]
"""Methods by the name of their rows, which differs from the method's own name for twins."""

COPIES = ("twin", "judge")
"""Copies of plain decoding that take turns with the methods, beside those that are compared."""

LOGIT_BYTES = 4

PART_OF_MEMORY = 0.5
"""Share of the free memory that caches may take; passes need memory too."""


def reference_of(methods: Sequence[BuiltMethod]) -> BuiltMethod | None:
    """The method that is copied: the first plain baseline, else the first fixed tree."""
    plain = [method for method in methods if method.kind in ("generate", "plain")]
    return next(iter([*plain, *(m for m in methods if m.shape is not None)]), None)


def groups_of(
    methods: Sequence[BuiltMethod], together: int
) -> tuple[list[Group], dict[str, BuiltMethod]]:
    """Divide the methods into groups, and find their judging copies.

    Args:
        methods: the methods of the experiment.
        together: how many may be open at once, including copies. With 1, each method is a group. There is
            no judging copy below 3, and no twin below 4.

    Returns:
        The groups, and the judging copy of each by its name in `steps`; none if there is no room.

    Raises:
        ConfigError: if a method has the name of a copy.

    Example:
        >>> from treespec import Sampling
        >>> from treespec.experiments.config.build import plain_method
        >>> methods = [plain_method(name, {"T=0": Sampling(temperature=0.0)}) for name in "abcd"]
        >>> groups, judges = groups_of(methods, 4)
        >>> [list(group) for group in groups], list(judges)
        ([['a', 'a (twin)', 'b'], ['c', 'd']], ['a (judge)', 'a (judge 2)'])
    """
    reference = reference_of(methods)
    judged = together > 2 and reference is not None and len(methods) > 1
    size = max(1, together - judged)
    members = [(method.name, method) for method in methods]
    if judged:
        assert reference is not None
        members.remove((reference.name, reference))
        twin = [(f"{reference.name} (twin)", reference)] * (size > 2)
        members = [(reference.name, reference), *twin, *members]
    groups: list[Group] = [dict(members[i : i + size]) for i in range(0, len(members), size)]
    judges = {
        f"{reference.name} (judge{f' {number}' * (number > 1)})": reference
        for number in range(1, 1 + len(groups) * judged)
        if reference is not None
    }
    names = [method.name for method in methods]
    for copy in (*twins_of(groups), *judges):
        if copy in names:
            raise ConfigError(
                f"{copy!r} is a name that runs use themselves: give the method another name"
            )
    return groups, judges


def twins_of(groups: Sequence[Group]) -> dict[str, str]:
    """The names that twins have in rows, each with the name of the method that it copies."""
    return {
        name: method.name
        for group in groups
        for name, method in group.items()
        if name != method.name
    }


def that_fit(experiment: Experiment, pair: "Pair", tokens: int) -> int:
    """How many methods fit into free memory with their caches and captured passes; at least 1.

    On CUDA every open method captures passes of its own, since a captured pass is tied to the address of
    its cache. They stay with the cache when the text is over, and serve the next prompt.

    Args:
        experiment: the methods and the token budget.
        pair: the loaded models.
        tokens: length of the longest prompt.
    """
    nodes, rows = largest_tree(experiment), rows_of(experiment, tokens)
    parts = [*parts_of(experiment.methods, pair.target).values()]
    own_caches = [_row_bytes(part) for part in parts if part.in_cache_of(pair.target) is None]
    method_bytes = rows * (sum(map(_row_bytes, pair.models)) + max(own_caches, default=0))
    if pair.target.device.type == "cuda":
        method_bytes += _captured_bytes(pair.target, nodes, parts=False)
        method_bytes += sum(
            _captured_bytes(draft, nodes, parts=True)
            for draft in [*pair.models, *parts]
            if draft is not pair.target and draft.passes.kind == "captured"
        )
    return max(1, int(PART_OF_MEMORY * _free_bytes(pair.target) / max(1, method_bytes)))


def together_in_words(group: Group) -> str:
    """The methods of a group in words, such as `6 methods in turns`."""
    return f"{len(group)} methods in turns" if len(group) > 1 else next(iter(group))


def _row_bytes(model: "TransformersModel") -> int:
    """Bytes that one token takes in a model's cache."""
    return sum(
        layer.batch * layer.kv_heads * (layer.key_dim + layer.value_dim) * layer.dtype.itemsize
        for layer in model.finding.layout
        if layer is not None
    )


def _captured_bytes(model: "TransformersModel", nodes: int, parts: bool) -> int:
    """Bytes of all passes that are captured of a model at one place (`treespec.models.captured_runner`).

    There is one pass for each size (`treespec.models.static_pass.size_of`), and each keeps its logits. All
    other intermediate values are taken to need as much as the largest logits.

    Args:
        model: the model.
        nodes: nodes of the largest tree.
        parts: whether trees are also run in parts, as drafters run them.
    """
    from treespec.models.static_pass import size_of

    firsts = range(nodes) if parts else (0,)
    sizes = {size_of(first, count) for first in firsts for count in range(1, nodes - first + 1)}
    rows = sum(size.rows for size in sizes)
    return (rows + nodes) * model.vocab_size * LOGIT_BYTES


def _free_bytes(model: "TransformersModel") -> int:
    """Free memory of the model's device, in bytes."""
    import torch

    if model.device.type == "cuda":
        return torch.cuda.mem_get_info(model.device)[0]
    import psutil

    return psutil.virtual_memory().available
