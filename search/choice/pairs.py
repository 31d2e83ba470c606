"""Check that acceptance and times belong to the same pair of models and the same kind of passes.

Models and settings are read from `about`, as far as both name them. A compiled pass takes a fraction of an
eager one's time, so times of one kind predict nothing for a run of the other.
"""

from collections.abc import Iterable, Mapping
from typing import Any

KINDS = ("eager", "compiled", "captured")

KEYS = {"target": "passes", "draft": "draft_passes"}
"""The key of each model's passes in the section `models` of a config."""


def different_pairs(acceptance: Any, times: Any) -> tuple[str, str] | None:
    """Both pairs of models in words if they differ; None if they agree or either is unknown.

    The enlargement of the target (`enlarge`), dtype and device may differ: they change times only, and
    times of several machines serve to compare these.

    Example:
        >>> from types import SimpleNamespace as Measured
        >>> recorded, timed = (
        ...     Measured(about={"models": {"target": "big", "draft": draft}}) for draft in ("a", "b")
        ... )
        >>> different_pairs(recorded, timed)
        ('draft a', 'draft b')
    """
    recorded, timed = _pair_of(acceptance), _pair_of(times)
    different = [key for key in recorded if key in timed and recorded[key] != timed[key]]
    if not different:
        return None
    recorded_words, timed_words = (
        " and ".join(f"{key} {models[key] or 'none named'}" for key in different)
        for models in (recorded, timed)
    )
    return recorded_words, timed_words


def passes_of(measured: Any) -> dict[str, str]:
    """The kinds of passes of target and draft, as far as known: "eager", "compiled" or "captured".

    Args:
        measured: a trace, an estimate, a `LatencyModel` or anything else. The kind that was recorded while
            measuring counts; failing that, the kind that the config asked for, unless it is "auto".

    Example:
        >>> from types import SimpleNamespace as Measured
        >>> passes_of(Measured(about={"models": {"target": "big", "passes": "compiled"}}))
        {'target': 'compiled'}
    """
    about = _mapping(getattr(measured, "about", None))
    models = _mapping(about.get("models"))
    kinds = {}
    for role, key in KEYS.items():
        if role not in models or _left_to_the_device(models, key):
            continue
        passes = _mapping(about.get(role)).get("passes") or _mapping(models[role]).get("passes")
        kind = _mapping(passes).get("kind", passes)
        if kind is None and key in models:
            kind = models[key] or "eager"
        if kind in KINDS:
            kinds[role] = kind
    return kinds


def other_passes(
    what: str,
    used: Mapping[str, str],
    times: str,
    timed: Mapping[str, str],
    way_out: str | None = None,
) -> str | None:
    """A sentence if times are of other kinds of passes than those predicted for; None if they agree.

    Example:
        >>> print(other_passes("it", {"target": "eager"}, "times", {"target": "compiled"}, "mend it"))
        it has eager passes of the target, but times are of compiled ones, whose speed is predicted: mend it
    """
    different = [role for role in used if role in timed and used[role] != timed[role]]
    if not different:
        return None
    used_passes = " and ".join(f"{used[role]} passes of the {role}" for role in different)
    timed_kinds = " and ".join(dict.fromkeys(timed[role] for role in different))
    if way_out is None:
        way_out = (
            f"run with {_settings(different, timed)}, or profile with {_settings(different, used)}"
        )
    return (
        f"{what} has {used_passes}, but {times} are of {timed_kinds} ones, whose speed is predicted: "
        f"{way_out}"
    )


def _settings(roles: Iterable[str], kinds: Mapping[str, str]) -> str:
    return " ".join(f"models.{KEYS[role]}={kinds[role]}" for role in roles)


def _left_to_the_device(models: Mapping[str, Any], key: str) -> bool:
    """Whether no passes were requested for a target on CUDA, where they are captured if possible."""
    on_cuda = str(models.get("device", "")).startswith("cuda")
    return on_cuda and key == KEYS["target"] and key in models and models[key] is None


def _pair_of(measured: Any) -> dict[str, Any]:
    """Target and draft, as far as they are named.

    A run names each within a mapping of further facts, and a draft that comes with the target by the
    target."""
    models = _mapping(_mapping(getattr(measured, "about", None)).get("models"))
    named = {role: models[role] for role in KEYS if role in models}
    names = {role: _mapping(model).get("name", model) for role, model in named.items()}
    if "draft" in names:
        names["draft"] = names["draft"] or names.get("target")
    return names


def _mapping(data: Any) -> Mapping[str, Any]:
    return data if isinstance(data, Mapping) else {}
