"""Whether acceptance and times are of the same pair of models, as far as both name theirs."""

from collections.abc import Mapping
from typing import Any

__all__ = ["different_pairs"]


def different_pairs(acceptance: Any, times: Any) -> tuple[str, str] | None:
    """The models of each in words, where they differ; None if they agree, or one does not say.

    How large the target was made (`grow`), dtype and device may differ: they change times alone, and to
    compare these is what times of several machines are for.

    Args:
        acceptance: a trace, an estimate or anything else; what is named stands in `about["models"]`.
        times: a `LatencyModel`, likewise.

    Example:
        >>> from types import SimpleNamespace as Measured
        >>> one, other = (
        ...     Measured(about={"models": {"target": "big", "draft": draft}}) for draft in ("a", "b")
        ... )
        >>> different_pairs(one, other)
        ('draft a', 'draft b')
    """
    recorded, timed = _pair_of(acceptance), _pair_of(times)
    other = [key for key in recorded if key in timed and recorded[key] != timed[key]]
    if not other:
        return None
    ours, theirs = (
        " and ".join(f"{key} {models[key] or 'none named'}" for key in other)
        for models in (recorded, timed)
    )
    return ours, theirs


def _pair_of(measured: Any) -> dict[str, Any]:
    """Target and draft, as far as they are named."""
    about = getattr(measured, "about", None)
    models = about.get("models") if isinstance(about, Mapping) else None
    given = models if isinstance(models, Mapping) else {}
    return {key: given[key] for key in ("target", "draft") if key in given}
