"""Group the methods that take turns with each other: all of them, or as many as memory holds.

Every group holds the plain baseline or a copy of it, its twin, which does the same work with the same
coins: from its steps it is also read how slow the machine was. The first group holds both, so that their
ratio shows how small a difference this machine can resolve in this run.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from treespec.batch.room import lacking_room
from treespec.experiments.config.build import BuiltMethod, Experiment
from treespec.experiments.errors import ConfigError
from treespec.experiments.run.models import parts_of
from treespec.experiments.run.room import largest_tree, rows_of
from treespec.models.memory import free_bytes, row_bytes

if TYPE_CHECKING:
    import torch

    from treespec.models.load import Pair
    from treespec.models.transformers_model import TransformersModel

Group = Mapping[str, BuiltMethod]
"""Methods by the name of their rows, which differs from the method's own name for twins."""

LOGIT_BYTES = 4

PART_OF_MEMORY = 0.5
"""Share of the free memory that caches may take; passes need memory too."""


def reference_of(methods: Sequence[BuiltMethod]) -> BuiltMethod | None:
    """The method that is copied: the first plain baseline, else the first fixed tree."""
    plain = [method for method in methods if method.kind in ("generate", "plain")]
    return next(iter([*plain, *(m for m in methods if m.shape is not None)]), None)


def groups_of(methods: Sequence[BuiltMethod], together: int) -> list[Group]:
    """Divide the methods into groups.

    Args:
        methods: the methods of the experiment.
        together: how many may be open at once, including twins. With 1, each method is a group and there
            are no twins.

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
        size = max(1, together)
        return [{m.name: m for m in methods[i : i + size]} for i in range(0, len(methods), size)]
    waiting = [method for method in methods if method is not reference]
    groups: list[Group] = []
    names = {method.name for method in methods}
    while waiting or not groups:
        twin = f"{reference.name} (twin{f' {len(groups) + 1}' * bool(groups)})"
        if twin in names:
            raise ConfigError(
                f"{twin!r} is a name that runs use themselves: give the method another name"
            )
        original = {} if groups else {reference.name: reference}
        copy = {twin: reference} if together > 2 or groups else {}
        room = together - len(original) - len(copy)
        members, waiting = waiting[:room], waiting[room:]
        groups.append(original | copy | {method.name: method for method in members})
    return groups


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
    nodes = largest_tree(experiment)
    parts = [*parts_of(experiment.methods, pair.target).values()]
    text = text_bytes(experiment, pair, tokens)
    method_bytes = sum(text.values()) * experiment.config.batch
    if pair.target.device.type == "cuda":
        method_bytes += _captured_bytes(pair.target, nodes * experiment.config.batch, parts=False)
        method_bytes += sum(
            _captured_bytes(draft, nodes, parts=True)
            for draft in [*pair.models, *parts]
            if draft is not pair.target and draft.passes.kind == "captured"
        )
    return max(1, int(PART_OF_MEMORY * free_bytes(pair.target.device) / max(1, method_bytes)))


def text_bytes(experiment: Experiment, pair: "Pair", tokens: int) -> Counter["torch.device"]:
    """Bytes, by device, of the caches of one text of the method that needs most.

    Args:
        experiment: the methods and the token budget.
        pair: the loaded models.
        tokens: length of the prompt.
    """
    parts = parts_of(experiment.methods, pair.target).values()
    own = [row_bytes(part) for part in parts if part.in_cache_of(pair.target) is None]
    a_row = sum(map(row_bytes, pair.models), max(own, key=Counter.total, default=Counter()))
    rows = rows_of(experiment, tokens)
    return Counter({device: rows * size for device, size in a_row.items()})


def require_batch_fits(experiment: Experiment, pair: "Pair", lengths: Iterable[int]) -> None:
    """Check that memory holds the caches of a batch of texts.

    Raises:
        ConfigError: if it does not, with the number of texts that it holds.
    """
    batch = experiment.config.batch
    texts = [text_bytes(experiment, pair, tokens) for tokens in lengths]
    if batch > 1 and (why := lacking_room(texts, batch)) is not None:
        raise ConfigError(f"batch = {batch}: {why}; choose a smaller batch")


def together_in_words(group: Group) -> str:
    """The methods of a group in words, such as `6 methods in turns`."""
    return f"{len(group)} methods in turns" if len(group) > 1 else next(iter(group))


def _captured_bytes(model: "TransformersModel", nodes: int, parts: bool) -> int:
    """Bytes of all passes that are captured of a model at one place (`models.passes.captured_runner`).

    There is one pass for each size (`models.passes.static_sizes.size_of`), and each keeps its logits. All
    other intermediate values are taken to need as much as the largest logits.

    Args:
        model: the model.
        nodes: nodes of the largest tree.
        parts: whether trees are also run in parts, as drafters run them.
    """
    from treespec.models.passes.static_sizes import size_of

    firsts = range(nodes) if parts else (0,)
    sizes = {size_of(first, count) for first in firsts for count in range(1, nodes - first + 1)}
    rows = sum(size.rows for size in sizes)
    return (rows + nodes) * model.vocab_size * LOGIT_BYTES
