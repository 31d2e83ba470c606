"""`treespec profile`: time the steps of a config's pair in rounds; the calm ones make a latency model.

A round measures everything once, so that rounds can be compared part by part. Two things give a neighbour
away: counters of the kernel, which say how much of the processor others used during the round, and the
parts themselves, which took longer than in calm rounds. The first sees a load that never changes; the
second works on every system and in rounds of any length. Disturbed rounds are measured again.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from treespec.errors import TreespecError
from treespec.experiments.config.base import MOST_ROUNDS, MOST_TIMED, MOST_TOKENS
from treespec.experiments.config.build import build
from treespec.experiments.config.files import require_within
from treespec.experiments.config.model_draft import label_of_draft
from treespec.experiments.config.schema import MOST_BATCH, MOST_SIZES, Config, ModelsConfig
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure.profile.loop import Text
from treespec.experiments.measure.profile.plan import (
    Setting,
    named_method,
    plan_profile,
)
from treespec.experiments.measure.profile.timed_steps import Samples, measure_round
from treespec.experiments.records.machine_load import BUSY_RUN_PERCENT, LoadWatch
from treespec.experiments.records.manifest import environment, now
from treespec.experiments.run.inputs import read_by, require_own_passes
from treespec.experiments.run.models import load_models, weights_data
from treespec.experiments.run.passes import load_with_passes
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import read_prompts
from treespec.search import InvalidLatency, LatencyModel
from treespec.search.latency.file import table_of
from treespec.search.latency.step_parts import StepParts

if TYPE_CHECKING:
    from treespec.models.load import Pair
    from treespec.models.outline import PairOutline

REPEATS = 9
"""Enough for a fall of the time with the size to be proved, see `treespec.search.latency.interpolation`."""

MOST_PREFIXES = 64

MOST_BATCHES = 64

SLOW_ROUND = 1.25
"""A round is disturbed if its parts took this many times as long as in calm ones, in the median."""

CALM_SHARE = 5
"""Rounds are compared with the calmest fifth of them."""

LARGE_PARTS = ("verify", "level", "first", "plain")
"""Tables of whole passes, by which rounds are compared. The times of other parts are short and vary."""

ROUNDS_PER_EXTRA = 2
"""For this many rounds that were asked for, at most one more is measured instead of a disturbed one."""


@dataclass(frozen=True)
class Round:
    """Everything, measured once.

    Args:
        samples: the times.
        busy: percent of the processor that other processes used meanwhile; None if it is not known.
        slower: how many times as long parts took as in the calmest fifth of the rounds (`compared`).
    """

    samples: Samples
    busy: float | None = None
    slower: float = 1.0

    @property
    def disturbed(self) -> bool:
        return self.slower > SLOW_ROUND or (self.busy or 0.0) > BUSY_RUN_PERCENT


def compared(rounds: Sequence[Round]) -> list[Round]:
    """The rounds with `slower`, from the medians of their large parts."""
    medians = [
        {
            place: float(np.median(seconds))
            for place, seconds in one.samples.items()
            if place.table in LARGE_PARTS
        }
        for one in rounds
    ]
    shared = sorted(set.intersection(*map(set, medians)), key=str) if rounds else []
    if not shared:
        return list(rounds)
    times = np.log([[max(of[place], 1e-9) for place in shared] for of in medians])
    levels = np.median(times - np.median(times, axis=0), axis=1)
    calmest = np.sort(levels)[(len(levels) - 1) // CALM_SHARE]
    slower = np.exp(levels - calmest).tolist()
    return [replace(one, slower=times) for one, times in zip(rounds, slower, strict=True)]


def calmest(rounds: Sequence[Round], wanted: int) -> list[Round]:
    """So many rounds in their order: calm ones first, then those that were disturbed least."""

    def harm(i: int) -> tuple[bool, float]:
        one = rounds[i]
        return one.disturbed, one.disturbed * max(one.slower, 1 + (one.busy or 0.0) / 100)

    kept = sorted(range(len(rounds)), key=harm)[:wanted]
    return [rounds[i] for i in sorted(kept)]


def what_disturbed(rounds: Sequence[Round], measured: int) -> str | None:
    """A sentence, with numbers and the way out, on what disturbed these rounds; None if nothing did."""
    bad = [one for one in rounds if one.disturbed]
    if not bad:
        return None
    busy, slower = max(one.busy or 0.0 for one in bad), max(one.slower for one in bad)
    seen = []
    if busy > BUSY_RUN_PERCENT:
        seen.append(f"other processes used up to {busy:.0f} % of the CPU")
    if slower > SLOW_ROUND:
        seen.append(f"parts took up to {slower:.1f} times as long as in the calmest rounds")
    again = f" (the calmest of {measured})" if measured > len(rounds) else ""
    return (
        f"{len(bad)} of {len(rounds)} rounds{again} were disturbed: {', and '.join(seen)}. "
        "These times are not reliable: profile again on a quiet machine."
    )


@dataclass(frozen=True)
class Timed:
    """What was measured.

    Args:
        parts: samples of the rounds that count, and of the part of one that the user interrupted.
        rounds: whole rounds that count.
        measured: whole rounds, with those that were disturbed and measured again.
        disturbed: what disturbed the rounds that count, as a sentence; None if nothing did.
        interrupted: whether the user stopped it.
    """

    parts: tuple[Samples, ...]
    rounds: int
    measured: int
    disturbed: str | None
    interrupted: bool


@dataclass(frozen=True)
class Profile:
    model: LatencyModel
    rounds: int
    interrupted: bool
    notes: tuple[str, ...]


def profile(
    config: Config,
    *,
    sizes: Sequence[int] | None = None,
    prefixes: Sequence[int] | None = None,
    batches: Sequence[int] | None = None,
    method: str | None = None,
    repeats: int = REPEATS,
    console: Console | None = None,
    load: Callable[[ModelsConfig], "Pair"] = load_models,
    watch: Callable[[], LoadWatch] = LoadWatch,
) -> Profile:
    """Measure the times of a config's pair under its sampling settings; see `plan_profile` for which.

    `batches`: numbers of texts to decode side by side; by default one text. Times are of a whole round.
    `method`: the method, with a trained head or a model of its own, whose draft is timed.
    """
    for name, values, most, largest in (
        ("sizes", sizes or (), MOST_SIZES, MOST_TIMED),
        ("prefixes", prefixes or (), MOST_PREFIXES, MOST_TOKENS),
        ("batch", batches or (), MOST_BATCHES, MOST_BATCH),
        ("repeats", (repeats,), 1, MOST_ROUNDS),
    ):
        require_within(f"the number of --{name}", len(values), 0, most)
        for value in values:
            require_within(f"--{name}", value, 1, largest)
    raw = read_prompts(config.prompts)
    reporter = Reporter(console)
    experiment = build(config)
    named = [] if method is None else [named_method(experiment, method)]
    chosen_for = experiment.methods if config.models.dtype == "fastest" else None

    def check(pair: "Pair | PairOutline") -> None:
        if pair.target.needs_source:
            require_own_passes(config.models)
            read_by(pair, raw, config.prompts)

    loaded = load_with_passes(
        config.models, named, load, reporter, chosen_for=chosen_for, check=check
    )
    check(loaded.pair)
    pair, config = loaded.pair, config.model_copy(update={"models": loaded.models})
    plan = plan_profile(config, pair, raw, sizes, prefixes, batches, method)
    notes = list(plan.notes)
    total = (repeats + 1) * len(plan.settings) * len(plan.prefixes)
    with reporter.units(total, doing="measuring", finished="measured") as begin:
        timed = profile_pair(
            pair,
            plan.settings,
            plan.prefixes,
            plan.text,
            repeats=repeats,
            seed=config.seed,
            behind=plan.behind,
            progress=begin,
            watch=watch,
        )
    about = about_times(config, pair, timed, repeats)
    for one in named:
        about["models"]["draft"] = label_of_draft(one.config.draft)  # pyrefly: ignore[missing-attribute]
    try:
        model = model_of_rounds(timed.parts, plan.settings, about, timed.disturbed)
    except TreespecError as error:
        if timed.interrupted:
            raise ConfigError("interrupted before a round was over: nothing to write") from error
        raise
    if timed.interrupted:
        notes.append(f"interrupted: {timed.rounds} of {repeats} rounds, and a part of one more")
    if timed.disturbed is not None:
        notes.append(f"Caution: {timed.disturbed}")
    elif timed.measured > timed.rounds:
        again = timed.measured - timed.rounds
        notes.append(
            f"{again} round{'s were' if again > 1 else ' was'} disturbed by something else on the machine, "
            "and measured again: only calm rounds count"
        )
    return Profile(model, timed.rounds, timed.interrupted, tuple(notes))


def profile_pair(
    pair: "Pair",
    settings: Sequence[Setting],
    prefixes: Sequence[int],
    text: Text,
    *,
    repeats: int,
    seed: int = 0,
    behind: "Callable[[int], Pair] | None" = None,
    progress: Callable[[str], None] = lambda what: None,
    watch: Callable[[], LoadWatch] = LoadWatch,
) -> Timed:
    """Measure all settings after all prefixes, round after round, until the user interrupts.

    One round warms up, `repeats` count, and up to half as many again are measured instead of rounds that
    something else disturbed. `progress` is called once for each setting and prefix of a round. `behind` is
    that of `Plan`.
    """
    order = random.Random(seed)
    places = [(setting, prefix) for setting in settings for prefix in prefixes]
    rounds: list[Round] = []
    most = repeats + -(-repeats // ROUNDS_PER_EXTRA)
    part: Samples = {}
    whole, interrupted = watch(), False
    load = whole

    def missing() -> bool:
        calm = [one for one in compared(rounds) if not one.disturbed]
        return len(rounds) < repeats or (len(rounds) < most and len(calm) < repeats)

    try:
        measure_round(pair, places, text, order, {}, "warming up", progress, behind)
        while missing():
            number = len(rounds) + 1
            role = f" of {repeats}" if number <= repeats else ", instead of a disturbed one"
            part, load = {}, watch()
            measure_round(
                pair, places, text, order, part, f"round {number}{role}", progress, behind
            )
            rounds.append(Round(part, load.busy_percent()))
            part = {}
    except KeyboardInterrupt:
        interrupted = True
    begun = [Round(part, load.busy_percent())] if part else []  # the one that was stopped
    if all(one.busy is None for one in (*rounds, *begun)):  # too short for the counters
        busy = whole.busy_percent()
        rounds, begun = ([Round(one.samples, busy) for one in some] for some in (rounds, begun))
    kept = calmest(compared(rounds), repeats)
    counted = compared([*kept, *begun]) if begun else kept
    return Timed(
        tuple(one.samples for one in counted),
        len(kept),
        len(rounds),
        what_disturbed(counted, len(rounds) + len(begun)),
        interrupted,
    )


def model_of_rounds(
    rounds: Sequence[Samples],
    settings: Sequence[Setting],
    about: Mapping[str, Any],
    disturbed: str | None = None,
) -> LatencyModel:
    """A latency model of the times, with their rounds; as precise as its file (0.1 microseconds)."""
    times: dict[tuple[int, str], dict[str, Any]] = {}  # by batch and law; table, prefix and size
    places = {place for one in rounds for place in one}
    for place in sorted(places, key=lambda place: (*place[:2], place.prefix or 0, place.size or 0)):
        lists = [[round(1e3 * seconds, 4) for seconds in one.get(place, ())] for one in rounds]
        tables = times.setdefault((place.texts, place.law), {})
        tables.setdefault(place.table, {}).setdefault(place.prefix, {})[place.size] = lists
    batches: dict[int, dict[str, StepParts]] = {}
    for setting in settings:
        texts, law = setting.texts, str(setting.law)
        own: dict[str, Any] = {
            name: table_of(name, table, 1e-3)
            for of in ("", law)
            for name, table in times.get((texts, of), {}).items()
        }
        if "level" in own:
            parts = StepParts(**own, sampling=setting.name, rule=str(setting.rule))
            batches.setdefault(texts, {})[law] = parts
    if not batches:
        raise InvalidLatency("the profile: no step was measured whose draft has two levels")
    return LatencyModel(batches, about, disturbed)


def about_times(config: Config, pair: "Pair", timed: Timed, repeats: int) -> dict[str, Any]:
    from treespec.models.load import NoDraftModel

    def described(model: Any) -> dict[str, Any] | None:
        if isinstance(model, NoDraftModel):
            return None
        return weights_data(model) | {"attention": model.attention, "passes": model.passes.kind}

    return {
        "measured": now(),
        "pair": pair.name,
        "models": config.models.model_dump(mode="json"),
        "target": described(pair.target),
        "draft": described(pair.draft),
        "rounds": timed.rounds,
        "rounds_wanted": repeats,
        "rounds_measured": timed.measured,
        **environment(),
    }
