"""`treespec profile`: measure the times of a config's pair, print them, and write them to a file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as Printed

from experiments.builder import build
from experiments.config import Config, ModelsConfig
from experiments.errors import ConfigError
from experiments.manifest import environment, now
from experiments.models import load_models
from experiments.profile_settings import settings_of
from experiments.profile_shapes import Setting, completed, drift_of
from experiments.profiling import Samples, profile_pair
from experiments.prompts import read_prompts
from experiments.stand_ins import stand_ins
from search.interpolation import Curve, Table
from search.latency import LatencyModel
from search.latency_file import VERSION
from treespec.errors import TreespecError

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = [
    "PREFIXES",
    "SIZES",
    "Profile",
    "default_sizes",
    "integers",
    "print_profile",
    "profile",
]

SIZES = (
    *range(1, 9),
    *range(10, 17, 2),
    *range(20, 33, 4),
    40,
    48,
    64,
    96,
    128,
    192,
    256,
    384,
    512,
)
"""Dense where trees are mostly chosen: times do not climb evenly there, with every kernel's own steps."""

PREFIXES = (64, 256, 1024)
REPEATS = 7

FEW = 3
"""Samples below which a cell has no quartiles to speak of."""


@dataclass(frozen=True)
class Profile:
    """What was measured.

    Args:
        model: the times.
        rounds: whole rounds that count.
        interrupted: whether the user stopped it.
        notes: what was left out, and why.
    """

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
) -> Profile:
    """Measure the times of a config's pair under its sampling settings.

    For every law that the config's trees use under a sampling setting, and those that are the default
    there: deterministic children at temperature 0; above it, drawn without replacement, and independently
    for chains. A law that occurs under several settings is measured under the first.

    Args:
        config: models, prompts, samplings and methods.
        sizes: trees, nodes with the root; `default_sizes` by default. 2, 3 and 5 are always measured.
        prefixes: committed tokens before the root. By default those of `PREFIXES` that fit the context.
        repeats: rounds.
        console: where progress is shown.
        load: gives the models.

    Raises:
        ConfigError: if a size, prefix or number of rounds is no positive integer, or nothing fits the
            context, or nothing was measured before an interruption.
    """
    for name, values in (("sizes", sizes), ("prefixes", prefixes), ("repeats", [repeats])):
        for value in values if values is not None else ():
            if value < 1:
                raise ConfigError(f"{name} = {value}, but must be at least 1")
    experiment = build(stand_ins(config))
    raw = read_prompts(config.prompts)
    pair = load(config.models)
    notes: list[str] = []
    sizes = completed(sizes or default_sizes(pair.target.device.type))
    context = min(pair.target.max_length, pair.draft.max_length)
    settings = settings_of(experiment, pair, sizes, context, notes)
    deepest = max(shape.depth for setting in settings for shape in setting.shapes)
    steps = max(len(setting.shapes) for setting in settings)
    fits = {p: p + drift_of(p, steps) + 2 * deepest + 2 <= context for p in prefixes or PREFIXES}
    for prefix in (p for p, fine in fits.items() if not fine):
        notes.append(
            f"prefix {prefix} is left out: with trees of depth {deepest} and the text that grows while "
            f"they are measured it passes the models' context of {context}"
        )
    chosen = sorted(p for p, fine in fits.items() if fine)
    if not chosen:
        raise ConfigError("; ".join(notes) + "; give shorter --prefixes")
    whole = [list(pair.tokenizer.encode(prompt.text, verbose=False)) for prompt in raw]
    ids = [own[config.prompts.start :] or own for own in whole]

    def text(number: int, length: int) -> list[int]:
        found: list[int] = []
        while len(found) < length:
            found += ids[number % len(ids)]
            number += 1
        return found[:length]

    samples = _measured(pair, settings, chosen, text, repeats, config.seed, console)
    data = _data(samples, settings, _about(config, pair, samples, repeats))
    try:
        model = LatencyModel.from_json(data, "the profile")
    except TreespecError as error:
        if samples.interrupted:
            raise ConfigError("interrupted before a round was over: nothing to write") from error
        raise
    if samples.interrupted:
        notes.append(f"interrupted: {samples.rounds} of {repeats} rounds, and a part of one more")
    return Profile(model, samples.rounds, samples.interrupted, tuple(notes))


def default_sizes(device: str) -> tuple[int, ...]:
    """The sizes that are measured on such a device.

    On CUDA passes are padded to buckets, so that times climb in stairs: both sides of every edge count.
    """
    if device != "cuda":
        return SIZES
    from treespec.models.static_pass import bucket

    edges = sorted({bucket(size) for size in range(1, SIZES[-1] + 1)})
    return tuple(sorted({size for edge in edges for size in (edge, edge + 1) if size <= SIZES[-1]}))


def integers(name: str, text: str | None) -> list[int] | None:
    """Numbers with commas between them, as they are typed.

    Raises:
        ConfigError: for anything else.
    """
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"{name} = {text!r}, but must be integers with commas between them, such as 64,256"
        ) from None


def print_profile(model: LatencyModel, console: Console) -> None:
    """Medians and quartiles of what was measured, two tables for each prefix length."""
    times = model.times()
    for prefix in model.prefixes:
        title = f"behind {prefix} tokens, milliseconds"
        verify = times.verify.curves[prefix]
        table = Printed("nodes", "verify", "q1–q3", title=title)
        for name in times.laws:
            table.add_column(f"accept, {name}")
        for size in verify.sizes:
            accepts = [_middle(law.accept.curves.get(None), size) for law in times.laws.values()]
            table.add_row(str(size), _middle(verify, size), _quartiles(verify, size), *accepts)
        console.print(table)
        table = Printed("draft", "law", "ms", "q1–q3", title=title)
        for name, law in times.laws.items():
            cells: list[tuple[str, Table | None, int | None]] = [
                ("plain step", law.plain, None),
                ("first pass", law.first, None),
            ]
            level = law.level.curves.get(prefix)
            cells += [(f"a level of {w}", law.level, w) for w in (level.sizes if level else ())]
            for what, part, width in cells:
                curve = None if part is None else part.curves.get(prefix)
                table.add_row(what, name, _middle(curve, width), _quartiles(curve, width))
        console.print(table)


def _measured(
    pair: "Pair",
    settings: Sequence[Setting],
    prefixes: Sequence[int],
    text: Callable[[int, int], list[int]],
    repeats: int,
    seed: int,
    console: Console | None,
) -> Samples:
    if console is None:
        return profile_pair(pair, settings, prefixes, text, repeats=repeats, seed=seed)
    columns = [TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
               TextColumn("left"), TimeRemainingColumn()]  # fmt: skip
    total = (repeats + 1) * len(settings) * len(prefixes)
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("measuring", total=total)
        begun = 0

        def begin(what: str) -> None:
            nonlocal begun
            bar.update(task, description=what, completed=begun)
            begun += 1

        samples = profile_pair(
            pair, settings, prefixes, text, repeats=repeats, seed=seed, progress=begin
        )
        if not samples.interrupted:
            bar.update(task, description="measured", completed=total)
    return samples


def _about(config: Config, pair: "Pair", samples: Samples, repeats: int) -> dict[str, Any]:
    def facts(model: Any) -> dict[str, Any]:
        parameters = {id(p): p for p in model.model.parameters()}.values()
        return {
            "parameters": sum(p.numel() for p in parameters),
            "dtype": str(next(iter(parameters)).dtype).removeprefix("torch."),
            "attention": model.attention,
        }

    return {
        "measured": now(),
        "pair": pair.name,
        "models": config.models.model_dump(mode="json"),
        "target": facts(pair.target),
        "draft": facts(pair.draft),
        "rounds": samples.rounds,
        "rounds_wanted": repeats,
        **environment(),
    }


def _data(samples: Samples, settings: Sequence[Setting], about: Mapping[str, Any]) -> str:
    """The samples as the JSON of a latency model."""
    import json

    laws = {}
    for setting in settings:
        own = samples.of_law.get(str(setting.law), {})
        tables = {f"{name}_ms": _milliseconds(by_prefix) for name, by_prefix in own.items()}
        if "level_ms" in tables:
            laws[str(setting.law)] = {"sampling": setting.name, "rule": str(setting.rule)} | tables
    shared = {f"{name}_ms": _milliseconds(own) for name, own in samples.shared.items()}
    batches = {"1": {**shared, "laws": laws}}
    return json.dumps({"version": VERSION, "about": about, "batches": batches})


def _milliseconds(by_prefix: Mapping[int | None, Mapping[int | None, list[float]]]) -> Any:
    def by_size(own: Mapping[int | None, list[float]]) -> Any:
        cells = {
            size: [round(1e3 * s, 4) for s in own[size]]
            for size in sorted(own, key=lambda s: s or 0)
        }
        return cells[None] if None in cells else {str(size): times for size, times in cells.items()}

    tables = {prefix: by_size(own) for prefix, own in by_prefix.items()}
    if None in tables:
        return tables[None]
    return {str(prefix): tables[prefix] for prefix in sorted(tables, key=lambda p: p or 0)}


def _middle(curve: Curve | None, size: int | None) -> str:
    times = curve.samples.get(size) if curve else None
    return f"{1e3 * np.median(times):.2f}" if times else "–"


def _quartiles(curve: Curve | None, size: int | None) -> str:
    times = curve.samples.get(size, ()) if curve else ()
    if len(times) < FEW:
        return "–"
    low, high = 1e3 * np.quantile(times, [0.25, 0.75])
    return f"{low:.2f}–{high:.2f}"
