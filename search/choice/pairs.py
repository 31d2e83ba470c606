"""Which acceptance belongs to which times: the same pair of models, law, settings and kind of passes.

Models and settings are read from `about`, as far as both name them. A compiled pass takes a fraction of an
eager one's time, so times of one kind predict nothing for a run of the other.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from treespec.search.errors import InvalidAcceptance, InvalidLimit
from treespec.search.latency.latency import LatencyModel
from treespec.search.traces.rule_notes import accepts_alike
from treespec.search.traces.sampling_names import is_greedy, name_of
from treespec.search.traces.trace import Trace
from treespec.tree import Law
from treespec.tree.shape import TreeShape
from treespec.verify import RULE_OF_LAW

ONE_CHILD = TreeShape.chain(1)

KINDS = ("eager", "compiled", "captured")

KEYS = {"target": "passes", "draft": "draft_passes"}
"""The key of each model's passes in the section `models` of a config."""


def acceptance_by_law(
    acceptance: Any, latency: LatencyModel, laws: Sequence[str] | None, batch: int
) -> dict[str, Any]:
    """The acceptance of each law to compare."""
    known = _by_law(acceptance, latency, laws)
    settings = {}
    for law, measured in known.items():
        if (pairs := different_pairs(measured, latency)) is not None:
            raise InvalidAcceptance(
                f"acceptance of {law} is of {pairs[0]}, but the times are of {pairs[1]}: give times of "
                "that pair (`treespec profile`); or, if its passes take as long, remove `models` from the "
                "`about` of the times"
            )
        settings[f"acceptance of {law}"] = name_of(getattr(measured, "sampling", None))
        settings[f"times of {law}"] = latency.law_times(law, batch).sampling
    known_settings = {what: setting for what, setting in settings.items() if setting}
    if laws is None and len(set(known_settings.values())) > 1:
        raise InvalidLimit(
            "acceptance and times were measured under different sampling settings: "
            + ", ".join(f"{what} ({setting})" for what, setting in known_settings.items())
            + "; measure all under the same settings and rank each setting separately, or name the laws in "
            "laws=[...] (`--law`) to combine them anyway"
        )
    return known


def chains_as_run(acceptance: Any, latency: LatencyModel, batch: int) -> dict[str, Trace] | None:
    """The trace to rank chains by, if `treespec run` draws them under another law than trees.

    Above temperature 0 it draws children of trees without replacement, and those of chains independently. A
    single child is drawn and accepted alike under both laws, so a trace without replacement serves chains
    drawn independently, with the times of these.

    Returns:
        The trace under the law `iid`; None if the trace is of another law or rule, or the two laws were not
        timed under the same sampling settings, so that chains are drawn as in the trace.
    """
    drawn, single = Law.WITHOUT_REPLACEMENT, Law.IID
    if not isinstance(acceptance, Trace) or acceptance.law != str(drawn):
        return None
    names = str(drawn), str(single)
    if acceptance.rule != str(RULE_OF_LAW[drawn]) or not {*names} <= {*latency.laws}:
        return None
    of_tree, of_chain = (latency.law_times(name, batch).sampling for name in names)
    return {str(single): acceptance} if of_tree == of_chain else None


def _by_law(acceptance: Any, latency: LatencyModel, laws: Sequence[str] | None) -> dict[str, Any]:
    wanted = None if laws is None else [str(law) for law in laws]
    if isinstance(laws, str) or wanted == []:
        raise InvalidLimit(
            f"laws = {laws!r}, but must be a list of names, not empty: name at least one of "
            f"{', '.join(latency.laws)}, or leave it out"
        )
    if isinstance(acceptance, Mapping):
        known = {str(law): measured for law, measured in acceptance.items()}
        missing = [law for law in wanted or () if law not in known]
        if missing or not known:
            raise InvalidAcceptance(
                f"laws = {wanted}, but acceptance has rates for {', '.join(known) or 'no law'}: "
                "give {law: rates} for each"
            )
        return known if wanted is None else {law: known[law] for law in wanted}
    law_of_rates = getattr(acceptance, "law", None)
    if law_of_rates is not None:
        if wanted is not None and wanted != [law_of_rates]:
            raise InvalidAcceptance(
                f"laws = {wanted}, but the acceptance is of law {law_of_rates!r}"
            )
        return {law_of_rates: acceptance}
    if wanted is not None:
        return {law: acceptance for law in wanted}  # noqa: C420  (names, not places)
    names = list(latency.laws)
    if len(names) > 1:
        raise InvalidAcceptance(
            f"the times are known by law ({', '.join(names)}), but the acceptance does not say which law "
            "it belongs to: give {law: rates}, or laws=[...]"
        )
    return {names[0]: acceptance}


def cautions(known: Mapping[str, Any], latency: LatencyModel, batch: int) -> Iterator[str]:
    """Cautions where acceptance was recorded with other passes, settings or rules than the times."""
    timed_passes = passes_of(latency)
    for law, acceptance in known.items():
        passes = passes_of(acceptance)
        if text := other_passes("what was recorded", passes, "the times", timed_passes):
            yield f"caution: {text}"
        times, sampling = latency.law_times(law, batch), getattr(acceptance, "sampling", None)
        setting, rule = name_of(sampling), getattr(acceptance, "rule", None)
        if setting and times.sampling and setting != times.sampling:
            timed, recorded = f"under {times.sampling}", f"under {setting}"
        elif (
            rule
            and times.rule
            and not accepts_alike(rule, times.rule, ONE_CHILD, is_greedy(sampling))
        ):
            timed, recorded = f"with rule {times.rule}", f"with rule {rule}"
        else:
            continue
        yield (
            f"caution: steps of law {law} were timed {timed}, and acceptance was recorded {recorded}: "
            "drawing and accepting children takes a different time there"
        )


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
