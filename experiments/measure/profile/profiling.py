"""`treespec profile`: measure the times of a config's pair, print them, and write them to a file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from treespec.errors import TreespecError
from treespec.experiments.config.base import MOST_ROUNDS, MOST_TIMED, MOST_TOKENS
from treespec.experiments.config.build import build
from treespec.experiments.config.files import require_within
from treespec.experiments.config.schema import MOST_SIZES, Config, ModelsConfig
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure.profile.plan import plan_profile
from treespec.experiments.measure.profile.profile import about_times, profile_pair
from treespec.experiments.measure.profile.rounds import json_of_rounds
from treespec.experiments.records.machine_load import LoadWatch
from treespec.experiments.report.table import NONE, Column, Table
from treespec.experiments.report.terminal import print_table
from treespec.experiments.run.models import load_models
from treespec.experiments.run.passes import load_with_passes
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import read_prompts
from treespec.files import brief
from treespec.search.latency.interpolation import Curve
from treespec.search.latency.latency import LatencyModel

if TYPE_CHECKING:
    from treespec.models.load import Pair

REPEATS = 9
"""Enough for a fall of the time with the size to be proved, see `treespec.search.latency.interpolation`."""

MOST_PREFIXES = 64

SAMPLES_FOR_QUARTILES = 3
"""Samples of a cell from which on its quartiles are shown."""


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
    repeats: int = REPEATS,
    console: Console | None = None,
    load: Callable[[ModelsConfig], "Pair"] = load_models,
    watch: Callable[[], LoadWatch] = LoadWatch,
) -> Profile:
    """Measure the times of a config's pair under its sampling settings; see `plan_profile` for which."""
    for name, values, most, largest in (
        ("sizes", sizes or (), MOST_SIZES, MOST_TIMED),
        ("prefixes", prefixes or (), MOST_PREFIXES, MOST_TOKENS),
        ("repeats", (repeats,), 1, MOST_ROUNDS),
    ):
        require_within(f"the number of --{name}", len(values), 0, most)
        for value in values:
            require_within(f"--{name}", value, 1, largest)
    raw = read_prompts(config.prompts)
    reporter = Reporter(console)
    chosen_for = build(config).methods if config.models.dtype == "fastest" else None
    loaded = load_with_passes(config.models, (), load, reporter, chosen_for=chosen_for)
    pair, config = loaded.pair, config.model_copy(update={"models": loaded.models})
    plan = plan_profile(config, pair, raw, sizes, prefixes)
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
            progress=begin,
            watch=watch,
        )
    about = about_times(config, pair, timed, repeats)
    data = json_of_rounds(timed.parts, plan.settings, about, timed.disturbed)
    try:
        model = LatencyModel.from_json(data, "the profile")
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


def integers(name: str, text: str | None) -> list[int] | None:
    """Numbers with commas between them, as they are typed."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"{name} = {brief(text)}, but must be integers with commas between them, such as 64,256"
        ) from None


def print_profile(model: LatencyModel, console: Console) -> None:
    """Medians and quartiles of what was measured, two tables for each prefix length."""
    laws = model.times()
    for prefix in model.prefixes:
        title = f"after {prefix} tokens, milliseconds"
        verify = next(iter(laws.values())).verify.curves[prefix]
        columns = [
            Column[int]("nodes", str),
            Column[int]("verify", partial(_middle, verify)),
            Column[int]("q1–q3", partial(_quartiles, verify)),
            *(
                Column[int](f"accept, {name}", partial(_middle, law.accept.curves.get(None)))
                for name, law in laws.items()
            ),
        ]
        print_table(Table("", columns, verify.sizes, title=title), console)
        drafts: list[_Draft] = []
        for name, law in laws.items():
            level = law.level.curves.get(prefix)
            for what, table in (("plain step", law.plain_step), ("first pass", law.first)):
                curve = None if table is None else table.curves.get(prefix)
                drafts.append((what, name, curve, None))
            drafts += [(f"a level of {w}", name, level, w) for w in (level.sizes if level else ())]
        print_table(Table("", DRAFTS, drafts, title=title), console)


def _middle(curve: Curve | None, size: int | None) -> str:
    times = curve.samples.get(size) if curve else None
    return f"{1e3 * np.median(times):.2f}" if times else NONE


def _quartiles(curve: Curve | None, size: int | None) -> str:
    times = curve.samples.get(size, ()) if curve else ()
    if len(times) < SAMPLES_FOR_QUARTILES:
        return NONE
    low, high = 1e3 * np.quantile(times, [0.25, 0.75])
    return f"{low:.2f}–{high:.2f}"


_Draft = tuple[str, str, Curve | None, int | None]
"""A pass of the draft, its law, its times, and the nodes that it runs."""

DRAFTS = (
    Column[_Draft]("draft", lambda row: row[0], left=True),
    Column[_Draft]("law", lambda row: row[1], left=True),
    Column[_Draft]("ms", lambda row: _middle(*row[2:])),
    Column[_Draft]("q1–q3", lambda row: _quartiles(*row[2:])),
)
