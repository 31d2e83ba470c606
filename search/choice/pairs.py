"""Whether acceptance and times are of the same pair of models, and of passes that are run alike.

As far as both say so: models and settings stand in `about`. A compiled pass takes a part of an eager one's
time, so times of one kind predict nothing for a run of the other.
"""

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["different_pairs", "other_passes", "passes_left_to_auto", "passes_of"]

KINDS = ("eager", "compiled", "captured")

KEYS = {"target": "passes", "draft": "draft_passes"}
"""What a config calls the passes of each model, among `models`."""


def different_pairs(acceptance: Any, times: Any) -> tuple[str, str] | None:
    """The models of each in words, where they differ; None if they agree, or one does not say.

    How large the target was made (`enlarge`), dtype and device may differ: they change times alone, and to
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


def passes_of(measured: Any) -> dict[str, str]:
    """How passes of target and draft were run, as far as that is known: "eager", "compiled" or "captured".

    Args:
        measured: a trace, an estimate, a `LatencyModel` or anything else. What was found in the end counts;
            else what the config asked for, of which "auto" says nothing.

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
        said = _mapping(about.get(role)).get("passes") or _mapping(models[role]).get("passes")
        kind = _mapping(said).get("kind", said)
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
    """A sentence where times are of passes that are run in another way; None if they are run alike.

    Args:
        what: is predicted, in words.
        used: its kinds of passes, by model, as `passes_of` gives them.
        times: what they are called.
        timed: the kinds that they are of.
        way_out: what to do; by default to run or to profile otherwise.

    Example:
        >>> print(other_passes("it", {"target": "eager"}, "times", {"target": "compiled"}, "mend it"))
        it has eager passes of the target, but times are of compiled ones, whose speed is predicted: mend it
    """
    other = [role for role in used if role in timed and used[role] != timed[role]]
    if not other:
        return None
    ours = " and ".join(f"{used[role]} passes of the {role}" for role in other)
    theirs = " and ".join(dict.fromkeys(timed[role] for role in other))
    if way_out is None:
        way_out = f"run with {_settings(other, timed)}, or profile with {_settings(other, used)}"
    return (
        f"{what} has {ours}, but {times} are of {theirs} ones, whose speed is predicted: {way_out}"
    )


def passes_left_to_auto(times: str, measured: Any) -> str | None:
    """A sentence where `auto` chose the passes that were timed, of which a run may have others.

    A profile compiles whenever it can; a run, where it is long enough.

    Args:
        times: what they are called.
        measured: a `LatencyModel`.
    """
    models = _mapping(_mapping(getattr(measured, "about", None)).get("models"))
    timed = passes_of(measured)
    chosen = [role for role in timed if models.get(KEYS[role]) == "auto" and timed[role] != "eager"]
    if not chosen:
        return None
    passes = " and ".join(f"{timed[role]} passes of the {role}" for role in chosen)
    return (
        f"{times} are of {passes}, as `auto` chose: a run with `auto` stays eager where compiling does not "
        f"pay, and is slower then; run with {_settings(chosen, timed)} to have the same"
    )


def _settings(roles: Iterable[str], kinds: Mapping[str, str]) -> str:
    return " ".join(f"models.{KEYS[role]}={kinds[role]}" for role in roles)


def _left_to_the_device(models: Mapping[str, Any], key: str) -> bool:
    """Whether nobody asked for passes of the target on CUDA, where they are captured if they can be."""
    on_cuda = str(models.get("device", "")).startswith("cuda")
    return on_cuda and key == KEYS["target"] and key in models and models[key] is None


def _pair_of(measured: Any) -> dict[str, Any]:
    """Target and draft, as far as they are named.

    A run names each with more that is known of it, and a draft that comes with the target by the target.
    """
    models = _mapping(_mapping(getattr(measured, "about", None)).get("models"))
    named = {role: models[role] for role in KEYS if role in models}
    names = {role: _mapping(given).get("name", given) for role, given in named.items()}
    if "draft" in names:
        names["draft"] = names["draft"] or names.get("target")
    return names


def _mapping(data: Any) -> Mapping[str, Any]:
    return data if isinstance(data, Mapping) else {}
