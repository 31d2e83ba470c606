"""Run the same methods under several settings, in turns: does the verdict depend on dtype or passes?

    treespec run CONFIG --settings dtype=float32,bfloat16 --settings passes=eager,compiled

The methods are chosen once, under the settings of the config and on prompts that are not measured: what
follows the texts of the run, or the next prompts of its source. Of each side of every question the `BEST`
fastest are kept, and plain decoding. Then every prompt is decoded under every combination of the settings
before the next prompt is, in an order that changes from prompt to prompt, so that a slow phase of the
machine affects all of them alike. Each combination is a run in a folder of its own, which can be reported,
and resumed, like any other.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from torch import OutOfMemoryError

from treespec.errors import TreespecError
from treespec.experiments.config.build import build
from treespec.experiments.config.file import parse_override, validated
from treespec.experiments.config.places import place_of
from treespec.experiments.config.schema import Config, ModelsConfig, Prompts
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure.searched_run import SEARCHING, run
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.report.comparisons import Comparison, compare, duels, speculation
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.report.table import Column, Finding, Table, interval
from treespec.experiments.run.models import load_models
from treespec.experiments.run.preparation import prepare
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import following, read_prompts, reads_sources
from treespec.experiments.run.runner import decode, place_for
from treespec.experiments.run.session import Session, open_session
from treespec.experiments.run.unit import Unit

if TYPE_CHECKING:
    from treespec.models.load import Pair

BEST = 3
"""Methods that are kept of each side."""

CHOOSING_PROMPTS = 6

SHORT = {
    "dtype": ("models.dtype",),
    "passes": ("models.passes", "models.draft_passes"),
    "attention": ("models.attention",),
}
"""Settings that stand for one key, or for several, of a config."""


@dataclass(frozen=True)
class Combination:
    """One combination of settings; its name is also that of its folder."""

    name: str
    config: Config


@dataclass(frozen=True)
class UnderSettings:
    """The runs by combination, and why others could not run here."""

    folder: Path
    chosen: tuple[str, ...]
    runs: Mapping[str, Run]
    left_out: Mapping[str, str]


def combinations(config: Config, settings: Sequence[str]) -> list[Combination]:
    """All combinations of settings such as `dtype=float32,bfloat16`.

    Raises:
        ConfigError: if a setting is not one of `SHORT` or a key of `models`, is given twice or has one
            value only.
    """
    axes: list[list[tuple[str, dict[str, Any]]]] = []
    names: list[str] = []
    for text in settings:
        name, _, values = text.partition("=")
        keys = SHORT.get(name, (name,) if name.startswith("models.") else ())
        if not keys or {name, *keys} & set(names):
            known = ", ".join(SHORT)
            raise ConfigError(
                f"--settings {text}: write one of {known}, or a key of models, once, with its values: "
                "--settings dtype=float32,bfloat16"
            )
        parsed = [parse_override(f"{name}={value}")[1] for value in values.split(",")]
        if len(set(map(str, parsed))) < max(2, len(parsed)):
            raise ConfigError(
                f"--settings {text}: give at least two different values, separated by commas"
            )
        names += [name, *keys]
        axes.append([(f"{name}={value}", dict.fromkeys(keys, value)) for value in parsed])
    found = []
    for point in product(*axes):
        data = config.model_dump()
        for _, changes in point:
            for key, value in changes.items():
                data["models"][key.removeprefix("models.")] = value
        label = " ".join(label for label, _ in point)
        found.append(Combination(label, validated(Path("--settings"), data)))
    return found


def run_under_settings(
    config: Config,
    settings: Sequence[str],
    *,
    folder: Path | None = None,
    source: Path | None = None,
    fresh: bool = False,
    console: Console | None = None,
    load: Callable[[ModelsConfig], "Pair"] = load_models,
) -> UnderSettings:
    """Choose the methods, and run them under every combination of settings in turns.

    The arguments are those of `runner.run`. Combinations that this machine cannot run are listed.

    Raises:
        ConfigError: as `combinations`; if the config searches its trees; or if nothing can run.
    """
    every = combinations(config, settings)
    if config.search is not None or config.until is not None:
        key = "search" if config.search is not None else "until"
        raise ConfigError(f"--settings compares given methods on given prompts: remove `{key}`")
    parent = folder or place_of(config.output, config.name, "runs")
    chosen = _chosen(
        config, parent / "choice", source=source, fresh=fresh, console=console, load=load
    )
    built = build(config).methods
    methods = tuple(
        written
        for written, method in zip(config.methods, built, strict=True)
        if method.group == "plain" or method.name in chosen
    )
    reporter, left_out, folders = Reporter(console), {}, {}
    with ExitStack() as stack:
        decoding: list[Iterator[Unit]] = []
        units = 0
        for number, combination in enumerate(every, start=1):
            reporter.note(f"settings {number} of {len(every)}: {combination.name}")
            own = combination.config.model_copy(update={"methods": methods})
            path = parent / combination.name.replace(" ", ",")
            try:
                session = _opened(stack, own, path, source, fresh, reporter)
                folders[combination.name] = path
                if session.complete:
                    continue
                prepared = prepare(session, load)
            except (TreespecError, MemoryError, OutOfMemoryError) as error:
                left_out[combination.name] = str(error) or "it does not fit in memory"
                folders.pop(combination.name, None)
                continue
            units += ceil((session.wanted - len(session.finished)) / own.batch)
            quiet = replace(session, reporter=Reporter(None))
            decoding.append(stack.enter_context(closing(decode(quiet, *prepared))))
        if not folders:
            raise ConfigError(
                "--settings: nothing can run here: "
                + "; ".join(f"{name}: {why}" for name, why in left_out.items())
            )
        with reporter.units(units, counted="units") as begin:
            _in_turns(decoding, begin)
    runs = {name: load_run(path) for name, path in folders.items()}
    return UnderSettings(parent, tuple(chosen), runs, left_out)


def _opened(
    stack: ExitStack,
    config: Config,
    path: Path,
    source: Path | None,
    fresh: bool,
    reporter: Reporter,
) -> Session:
    path, checked = place_for(config, path, source, reporter.note)
    records = stack.enter_context(RunFolder(path))
    return open_session(SEARCHING, checked, records, reporter, fresh=fresh, retry=False)


def _in_turns(decoding: list[Iterator[Unit]], begin: Callable[[str], None]) -> None:
    """Decode one unit under each combination in turn, beginning with another one in each round."""
    going, first = list(decoding), 0
    while going:
        first = (first + 1) % len(going)
        for units in [*going[first:], *going[:first]]:
            unit = next(units, None)
            if unit is None:
                going.remove(units)
            else:
                begin(f"{unit.numbers}, {unit.sampling}")


def _chosen(config: Config, folder: Path, **options: Any) -> list[str]:
    """The fastest methods of each side of every question, on prompts that are not measured."""
    pilot = config.model_copy(
        update={
            "prompts": _others(config),
            "repeats": 1,
            "alone": 0,
            "trees": 0,
        }
    )
    found = load_run(run(pilot, folder=folder, **options).folder)
    measured = list(found.measurements.values())
    kept: dict[str, None] = {}
    for question, _ in [pair for data in measured for pair in duels(found, data)]:
        for side in (question.left, question.right):
            speeds = {
                name: prod(
                    data.rate(name) for data in measured if (name, "decode_s") in data.values
                )
                for name in side.methods
            }
            kept |= dict.fromkeys(sorted(speeds, key=lambda name: -speeds[name])[:BEST])
    return list(kept)


def _others(config: Config) -> Prompts:
    """Prompts that are not measured: what follows their texts, or the next ones of the same source."""
    prompts = config.prompts
    if prompts.tokens is not None and not reads_sources(prompts):
        count = min(CHOOSING_PROMPTS, prompts.count or CHOOSING_PROMPTS)
        return following(prompts, config.max_new_tokens).model_copy(update={"count": count})
    present = len(read_prompts(prompts.model_copy(update={"count": None})))
    measured = prompts.count or present
    count = min(CHOOSING_PROMPTS, present - measured)
    if count < 1:
        raise ConfigError(
            "--settings chooses methods on prompts that are not measured, but the run measures all prompts "
            "of its source, as whole texts: lower prompts.count, or shorten them with prompts.tokens"
        )
    return prompts.model_copy(update={"skip": prompts.skip + measured, "count": count})


def answers(found: UnderSettings, sampling: str) -> dict[str, dict[str, Comparison]]:
    """By question and by combination of settings: the comparison."""
    by_question: dict[str, dict[str, Comparison]] = {}
    for name, of in found.runs.items():
        data = of.measurements.get(sampling)
        if data is None:
            continue
        gain = compare(data, speculation(data))
        for duel in [*(duel for _, duel in duels(of, data)), gain]:
            if duel is not None:
                key = f"{duel.left.family.name} and {duel.right.family.name}"
                by_question.setdefault(key, {})[name] = duel
    return by_question


def silent(found: UnderSettings, sampling: str) -> list[str]:
    """A sentence for each combination under which a question has no answer."""
    return [
        f"{sampling}, {name}: {question} could not be compared"
        for question, answered in answers(found, sampling).items()
        for name in found.runs
        if name not in answered
    ]


def sentence(duels_by_settings: Mapping[str, Comparison]) -> str:
    """The outcome of one question under all settings, with the exceptions named."""
    outcomes = {name: _outcome(duel) for name, duel in duels_by_settings.items()}
    (usual, count), *others = Counter(outcomes.values()).most_common()
    total = len(outcomes)
    if not others:
        every = {1: "the only setting that could run", 2: "both settings"}
        return f"{usual} in {every.get(total, f'all {total} settings')}."
    named = {name: outcome for name, outcome in outcomes.items() if outcome != usual}
    if 2 * count <= total:  # nothing is usual
        named = outcomes
    parts = [
        f"under {name}: {outcome[0].lower()}{outcome[1:]} "
        f"({duels_by_settings[name].ratio.text(in_sentence=True)})"
        for name, outcome in named.items()
    ]
    if named is not outcomes:
        parts.insert(0, f"{usual} in {count} of {total} settings")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _outcome(duel: Comparison) -> str:
    if duel.winner is None:
        return duel.question.undecided
    return duel.question.won if duel.winner is duel.left else duel.question.lost


COLUMNS = (
    Column[tuple[str, Comparison]]("settings", lambda row: row[0], left=True),
    Column[tuple[str, Comparison]]("chosen", lambda row: row[1].left.label, left=True),
    Column[tuple[str, Comparison]]("against", lambda row: row[1].right.label, left=True),
    Column[tuple[str, Comparison]]("times as fast", lambda row: interval(row[1].ratio, 3)),
    Column[tuple[str, Comparison]]("", lambda row: row[1].outcome, left=True),
)


def settings_finding(found: UnderSettings) -> Finding:
    """A table for each sampling setting and question, with the sentence that sums it up."""
    samplings = dict.fromkeys(s for of in found.runs.values() for s in of.samplings)
    tables = [
        Table(f"{sampling}: {question}", COLUMNS, list(rows.items()), said=sentence(rows))
        for sampling in samplings
        for question, rows in answers(found, sampling).items()
    ]
    left_out = [f"{name} could not run here: {why}" for name, why in found.left_out.items()]
    left_out += [line for sampling in samplings for line in silent(found, sampling)]
    chosen = f"Chosen on other prompts, once: {', '.join(found.chosen)}."
    return Finding("Under several settings", tables, (chosen,), left_out)


def settings_data(found: UnderSettings) -> dict[str, Any]:
    """The same as plain data, for `--json`."""
    samplings = dict.fromkeys(s for of in found.runs.values() for s in of.samplings)
    return {
        "folder": found.folder,
        "chosen": found.chosen,
        "left_out": found.left_out,
        "runs": {name: of.folder for name, of in found.runs.items()},
        "samplings": [
            {
                "sampling": sampling,
                "answers": [
                    {
                        "question": question,
                        "sentence": sentence(rows),
                        "settings": {
                            name: {"ratio": duel.ratio, "outcome": _outcome(duel)}
                            for name, duel in rows.items()
                        },
                    }
                    for question, rows in answers(found, sampling).items()
                ],
            }
            for sampling in samplings
        ],
    }
