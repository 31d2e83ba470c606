"""Room for the caches of a batch of texts: whether memory holds them, said before any pass runs.

A text takes the rows of its prompt, of its new tokens and of its largest tree, in the cache of every model
that runs it. Models without a cache that we know take nothing here, and neither do weights and passes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from treespec.draft.cascade import parts_of
from treespec.draft.growth import NODES_UNSAID, nodes_of
from treespec.models.memory import free_bytes, row_bytes, rows_for

if TYPE_CHECKING:
    from treespec.models.transformers_model import TransformersModel

Bytes = Mapping[torch.device, int]
"""Memory by device."""


def lacking_room(texts: Sequence[Bytes], most: int | None = None) -> str | None:
    """Why these texts do not fit into free memory side by side; None if they do.

    Args:
        texts: what each takes.
        most: texts at a time, by default all. The largest are taken to meet.

    Returns:
        A sentence that says how many fit.
    """
    count = len(texts) if most is None else min(most, len(texts))
    for device in {device for text in texts for device in text}:
        free, taken, fit = free_bytes(device), 0, 0
        for size in sorted((text.get(device, 0) for text in texts), reverse=True)[:count]:
            taken += size
            fit += taken <= free
        if fit < count:
            texts_at_a_time = f"{count} text{'s' * (count > 1)} at a time"
            return (
                f"the caches of {texts_at_a_time} take {taken / 2**20:,.1f} MiB on {device}, of which "
                f"{free / 2**20:,.1f} MiB are free: memory holds {fit or 'not even one'} of them"
            )
    return None


def bytes_of(target: object, drafter: object, tokens: int) -> Counter[torch.device]:
    """What is allocated for the caches of a text if it begins after `reserve`.

    Args:
        target: its target.
        drafter: its drafter.
        tokens: tokens of its prompt and new tokens.
    """
    taken: Counter[torch.device] = Counter()
    for model in models_of(target, drafter):
        cache = model.runner.cache
        if (capacity := cache.capacity_for(_rows(model, drafter, tokens))) > cache.capacity:
            for device, size in row_bytes(model).items():
                taken[device] += size * capacity
    return taken


def reserve(target: object, drafter: object, tokens: int) -> None:
    """Let the caches of a text be allocated once, for the whole text; see `bytes_of`.

    A cache that grows takes twice its memory while it is copied, and loses captured graphs.
    """
    for model in models_of(target, drafter):
        cache = model.runner.cache
        cache.least = max(cache.least, _rows(model, drafter, tokens))


def models_of(target: object, drafter: object) -> "list[TransformersModel]":
    """The models of a text that have caches of their own, and that we know."""
    scoring = _known(getattr(target, "model", None))
    # Early exit keeps its rows in the target's cache, if that is possible.
    shares = scoring is not None and scoring.runner.any_cache
    drafting = [
        _known(getattr(part, "model", None))
        for part in parts_of(drafter)
        if not (shares and getattr(getattr(part, "reads", None), "cache", 0))
    ]
    return [model for model in (scoring, *drafting) if model is not None]


def _rows(model: "TransformersModel", drafter: object, tokens: int) -> int:
    return rows_for(min(tokens, model.max_length), _largest_tree(drafter))


def _known(model: Any) -> "TransformersModel | None":
    """A model, also one under processors; None if it is not ours."""
    model = getattr(model, "inner", model)
    return model if hasattr(model, "finding") and hasattr(model, "runner") else None


def _largest_tree(drafter: Any) -> int:
    """Nodes of a drafter's largest tree, as far as it states it."""
    growth = getattr(drafter, "growth", None)
    if growth is not None:
        return nodes_of(getattr(growth, "shape", growth))
    return getattr(drafter, "size", NODES_UNSAID if getattr(drafter, "max_depth", 1) else 1)
