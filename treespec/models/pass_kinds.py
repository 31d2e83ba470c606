"""The kinds of passes that can be requested, and the description of those that a model runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

PassKind = Literal["eager", "compiled", "captured"]

PASSES = ("eager", "compiled", "captured", "auto")
"""Kinds that can be requested."""


@dataclass(frozen=True)
class Passes:
    """How a model runs its passes over trees.

    Args:
        kind: "eager", operation by operation; "compiled", as one graph (`compiled_pass`); "captured", by
            replaying a CUDA graph (`treespec.target.graph`).
        asked: the requested kind; None if none was requested.
        why: why the kind differs from the requested one, if it does.
        seconds: time that compiling took; of captured passes, that of the first numbers of rows.
        from_disk: whether an earlier process had left the machine code on disk.
        packed_bytes: memory of packed weights in compiled graphs, besides the model's own weights; all
            caches share them. For a shortened model, only copies that the full model does not have.
        frozen: whether compiled graphs read packed copies of the weights.
        unpacked: why compiled graphs read the model's own weights, if they do.
        uncompiled: why the layers in captured passes are not compiled, if they are not.
    """

    kind: PassKind
    asked: str | None = None
    why: str | None = None
    seconds: float = 0.0
    packed_bytes: int = 0
    frozen: bool = False
    unpacked: str | None = None
    from_disk: bool = False
    uncompiled: str | None = None


EAGER = Passes("eager")


def in_words(passes: Mapping[str, Any]) -> str:
    """The kind of passes, with the time of compiling and the reason, from a manifest.

    Example:
        >>> in_words({"kind": "compiled", "seconds": 12.3, "from_disk": True, "why": "it is faster"})
        'compiled (12 s, machine code from disk), since it is faster'
        >>> in_words({"kind": "captured", "seconds": 4.0, "uncompiled": "their layers are not a list"})
        'captured (layers not compiled: their layers are not a list)'
    """
    kind, why = passes["kind"], passes.get("why")
    if kind == "compiled":
        disk = ", machine code from disk" if passes.get("from_disk") else ""
        kind += f" ({passes['seconds']:.0f} s{disk})"
    elif kind == "captured" and (reason := passes.get("uncompiled")):
        kind += f" (layers not compiled: {reason})"
    return kind + (f", since {why}" if why else "")
